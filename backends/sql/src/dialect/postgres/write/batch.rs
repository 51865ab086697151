//! Sends a batch: one conditional statement, and one read of the rows of the operations that the
//! statement did not carry out.
//!
//! If the row does not give the reason of a refusal, the operation is sent again alone. So a row
//! that another transaction locked for a moment does not count as a held lock.

use std::collections::HashMap;

use distlock_backend_kit::{
    batch::Reply,
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{Attempt, Error, ErrorKind, RecordKey, Result, Version};
use sqlx::PgConnection;

use super::{
    outcome::{FastTurnover, RefusedRows},
    parameters::{BatchQuery, bind},
    refusal::refusal,
};
use crate::{
    dialect::{
        Effect, carried_out,
        postgres::{context::StoreContext, lookup::read_rows, rows},
    },
    statement_error::{Access, StatementError},
};

/// The largest number of sends of a lone operation whose row changes between the statement and the
/// read of the row.
const TRIES: u8 = 4;

/// One batch in flight.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Operation],
    pub(crate) context: &'a StoreContext,
    pub(crate) connection: &'a mut PgConnection,
    /// Set to true when the read of the refused rows has shown that the connection is unusable.
    pub(crate) broke: &'a mut bool,
}

type BatchResult = Result<Vec<Reply<Answer>>, StatementError>;

impl Batch<'_> {
    pub(crate) async fn send(mut self, kind: OperationKind) -> BatchResult {
        let lone = self.ops.len() == 1;
        let mut tries = if lone { TRIES } else { 1 };
        let mut turnover = FastTurnover::default();
        loop {
            tries -= 1;
            let mut done = self.change(kind, lone).await?;
            let refused_rows = self.refused_rows(&done).await;
            if let ([op], Ok(refused_rows)) = (self.ops, &refused_rows) {
                turnover.see(op, refused_rows);
            }
            let last = tries == 0;
            let replies: Vec<_> = self
                .ops
                .iter()
                .map(|op| match done.remove(op.key()) {
                    Some(effect) => Reply::Done(carried_out(op, effect, &self.context.epoch())),
                    None => match refusal(op, &refused_rows, self.context) {
                        Some(answer) => Reply::Done(answer),
                        None if last && turnover.is_reason(op) => {
                            Reply::Done(Ok(Answer::Acquired(Attempt::Busy(None))))
                        }
                        None if last && lone => Reply::Done(Err(left_unchanged())),
                        // The row allows the operation now: another transaction had the row locked,
                        // or the row has changed since the statement.
                        None => Reply::Alone,
                    },
                })
                .collect();
            let again = !last && replies.iter().any(|it| matches!(it, Reply::Alone));
            if !again {
                return Ok(replies);
            }
        }
    }

    /// Sends the statement. Returns its effect for each name or key whose row it changed.
    async fn change(
        &mut self,
        kind: OperationKind,
        lone: bool,
    ) -> Result<HashMap<String, Effect>, StatementError> {
        let context = self.context;
        context.common.counters.count(kind.name());
        let query = BatchQuery {
            query: sqlx::query(context.statements.batch(kind, lone).text()),
            lone,
        };
        // All rows are read, because an error of the commit comes only after the last row.
        let rows = bind(query, kind, self.ops, context)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| StatementError::postgres(error, Access::Write))?;
        rows.iter()
            .map(|row| {
                let mut effect = Effect::default();
                match kind {
                    OperationKind::Release | OperationKind::ForceRelease => {
                        effect.others_waiting = Some(rows::column(row, 1)?);
                    }
                    OperationKind::HandOver => {
                        effect.number = Some(rows::token(row, 1));
                        effect.others_waiting = Some(rows::column(row, 2)?);
                    }
                    _ => effect.number = Some(rows::token(row, 1)),
                }
                Ok((rows::column(row, 0)?, effect))
            })
            .collect::<Result<_>>()
            .map_err(|error| StatementError::corrupt(error).after_partial_work(true))
    }

    /// Reads the rows of the operations that were not carried out.
    async fn refused_rows(&mut self, done: &HashMap<String, Effect>) -> Result<RefusedRows> {
        let refused = self.ops.iter().filter(|op| !done.contains_key(op.key()));
        let (locks, records): (Vec<_>, Vec<_>) = refused.partition(|op| op.lock().is_some());
        let mut refused_rows = RefusedRows::default();
        if !locks.is_empty() {
            let names: Vec<_> = locks.iter().map(|op| op.key().to_owned()).collect();
            let found = read_rows(self.connection, self.context, names).await;
            refused_rows.locks = found.map_err(|failed| self.note_failed_look(failed))?;
        }
        if !records.is_empty() {
            let keys: Vec<_> = records.iter().map(|op| op.key().to_owned()).collect();
            self.context.common.counters.count("read_rows");
            let rows = sqlx::query(self.context.statements.versions.text())
                .bind(keys)
                .fetch_all(&mut *self.connection)
                .await
                .map_err(|error| {
                    self.note_failed_look(StatementError::postgres(error, Access::Read))
                })?;
            for row in &rows {
                let key = RecordKey::new(rows::column::<String>(row, 0)?)
                    .map_err(|error| rows::corrupt(error.message()))?;
                refused_rows
                    .records
                    .insert(key, Version::new(rows::token(row, 1)?.get()));
            }
        }
        Ok(refused_rows)
    }
}

impl Batch<'_> {
    fn note_failed_look(&mut self, failed: StatementError) -> Error {
        *self.broke |= failed.meaning.reconnect;
        self.context.explain(failed)
    }
}

/// The error for an operation that no send has carried out, although its row allowed the operation
/// each time.
fn left_unchanged() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server changed nothing several times, although the row allowed the change: other \
         clients change the row all the time, or a trigger of the tables drops what is written \
         (`distlock doctor` names it)",
    )
}
