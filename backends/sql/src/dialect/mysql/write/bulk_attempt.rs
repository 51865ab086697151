//! Sends a batch as one statement for all rows.

use std::collections::HashMap;

use distlock_backend_kit::batch::Failure;
use distlock_core::{AcquireRequest, LockName, Result};

use super::{
    answers::Outcome,
    batch::{Batch, FailedBatch},
    bulk::BulkStatement,
};
use crate::{
    dialect::{
        LockRow,
        mysql::{errors::MySqlTrouble, lookup::read_rows, raw_connection::StatementResults, rows},
    },
    statement_error::{Access, StatementError},
};

impl Batch<'_> {
    /// Sends one statement that changes all rows, in one round trip.
    pub(super) async fn attempt_in_one_statement(
        &mut self,
        bulk: &BulkStatement<'_>,
    ) -> Result<Result<Vec<Outcome>, FailedBatch>, Failure> {
        let context = self.context;
        let open = self.slot.ready(context).await.map_err(Failure::Whole)?;
        let (statements, hint_id) = (&context.statements, context.wait_group.hint_id());
        let mut answered = None;
        if open.prepares
            && let Some(prepared) = bulk.prepared(statements.prepared(open.flavour), hint_id)
        {
            match open.send_prepared(context, bulk.name(), prepared).await {
                Err(broken) if broken.failed.mysql_trouble() == Some(MySqlTrouble::NotPrepared) => {
                    open.stop_preparing(broken);
                }
                done => answered = Some(done),
            }
        }
        let prepared = answered.is_some();
        let answered = match answered {
            Some(answered) => answered,
            None => {
                let script = bulk.script(statements, hint_id, open.flavour);
                open.send(context, bulk.name(), script, Access::Write).await
            }
        };
        let outcomes = |answers: &StatementResults| match prepared {
            true => bulk.outcomes_prepared(answers),
            false => bulk.outcomes(answers),
        };
        let failed = match answered {
            Ok(answers) => match (outcomes(&answers), bulk) {
                (Ok(Some(outcomes)), _) => return Ok(Ok(outcomes)),
                (Ok(None), BulkStatement::Acquire(requests)) => {
                    let names: Vec<_> = requests.iter().map(|request| &request.name).collect();
                    match read_rows(open, context, &names, Access::Write).await {
                        Ok(rows) => return Ok(Ok(self.outcomes_from_rows(requests, rows))),
                        Err(failed) => failed.after_partial_work(true),
                    }
                }
                (Ok(None), _) => {
                    StatementError::out_of_step(rows::corrupt("the server gave no answer"))
                        .after_partial_work(true)
                }
                (Err(corrupt), _) => StatementError::out_of_step(corrupt).after_partial_work(true),
            },
            Err(mut broken) => {
                // The prepared statement is alone in its request; a text has the statement that
                // sets the time before it. A grant counts as soon as its statement was carried out,
                // because it is no part of a transaction.
                let before = usize::from(!prepared);
                let granted = matches!(bulk, BulkStatement::Acquire(_)) && broken.done > before;
                broken.failed = broken.failed.after_partial_work(granted);
                if !broken.failed.meaning.reconnect && !open.roll_back(context).await {
                    self.slot.disconnect();
                }
                broken.failed
            }
        };
        Ok(Err(FailedBatch {
            at: None,
            failed: self.slot.failed(failed),
        }))
    }

    /// The outcome of each acquire, by the rows as they are now; the rows also give the refused
    /// callers their reason. A row that cannot be read counts as refused, and its caller gets the
    /// error.
    fn outcomes_from_rows(
        &mut self,
        requests: &[&AcquireRequest],
        rows: Vec<(LockName, Result<LockRow>)>,
    ) -> Vec<Outcome> {
        let rows: HashMap<_, _> = rows.into_iter().collect();
        let outcome = |request: &&AcquireRequest| {
            let row = rows.get(&request.name)?.as_ref().ok()?;
            (row.owner == Some(request.owner)).then_some(row.last_token.get())
        };
        let outcomes = requests.iter().map(outcome).collect();
        self.rows_after = Some(rows);
        outcomes
    }
}
