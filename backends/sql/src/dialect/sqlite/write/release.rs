//! Frees locks: by their holders, and by force.

use std::collections::HashMap;

use distlock_backend_kit::batch::Reply;
use distlock_core::{Error, ErrorKind, Forced, Lease, LockName, ReleaseOutcome, Result};

use super::batch::{Batch, BatchResult, RefusedRows, names, unknown};
use crate::{
    dialect::{
        LockRow,
        sqlite::{
            busy_retry::BusyRetry,
            parameters::{self, IdBlob, json},
            rows,
        },
    },
    operation::{Answer, Operation, OperationKind},
    statement_error::StatementError,
};

impl Batch<'_> {
    /// The answers to these leases, of which `freed` were freed.
    pub(super) async fn released(
        &mut self,
        leases: &[&Lease],
        freed: usize,
    ) -> Result<Vec<Result<Answer>>, StatementError> {
        if freed == leases.len() {
            let released = || ReleaseOutcome::Released {
                others_waiting: Some(false),
            };
            let answers = leases.iter().map(|_| Ok(Answer::Released(released())));
            return Ok(answers.collect());
        }
        // Others wait for the rest, or the rest is not ours.
        let wanted = self
            .release_wanted(leases)
            .await
            .map_err(|failed| failed.after_partial_work(freed > 0))?;
        // The leases without waiters were all freed before, or none, or some; only in the last case
        // their rows must tell.
        let rest = leases.len() - wanted.len();
        let refused_rows = if freed == 0 || freed == rest {
            Ok(RefusedRows::new())
        } else {
            let unwanted = |name: &&LockName| !wanted.contains_key(name.as_str());
            let names = leases.iter().map(|lease| &lease.name);
            self.refused_rows(names.filter(unwanted).collect()).await
        };
        let answers = leases.iter().map(|lease| {
            let others_waiting = match wanted.get(lease.name.as_str()) {
                Some(others) => Some(*others),
                None if freed == 0 => None,
                None if freed == rest => Some(false),
                None => match refused_rows.as_ref().map_err(unknown)?.get(&lease.name) {
                    Some(row) if self.freed(lease, row.as_ref().map_err(unknown)?)? => Some(false),
                    _ => None,
                },
            };
            Ok(match others_waiting {
                Some(_) => ReleaseOutcome::Released { others_waiting },
                None => ReleaseOutcome::NotHeld,
            })
        });
        Ok(answers.map(|answer| answer.map(Answer::Released)).collect())
    }

    /// Whether the lease was freed just now, as far as its row still tells: others may have held
    /// the lock since.
    fn freed(&self, lease: &Lease, row: &LockRow) -> Result<bool> {
        match row.owner {
            Some(owner) if owner == lease.owner => Ok(false),
            None if row.until == Some(self.now.boot) => Ok(true),
            None if row.until < Some(self.now.boot) => Ok(false),
            _ => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "somebody else has taken it, after it was freed or before",
            )),
        }
    }

    /// Frees the locks that no other process waits for, and returns their number.
    pub(super) async fn free(&mut self, leases: &[&Lease]) -> Result<usize, StatementError> {
        let hint_id = self.context.wait_group.hint_id();
        if let [lease] = leases {
            let name = lease.name.as_str().to_owned();
            let owner = lease.owner.as_uuid().into_bytes().to_vec();
            let token = parameters::token(lease.token).map(u64::cast_signed);
            return self
                .changes(
                    OperationKind::Release,
                    &self.context.statements.free_one,
                    |query| query.bind_first(name, owner).bind(hint_id).bind(token),
                )
                .await;
        }
        let names: Vec<_> = leases.iter().map(|lease| lease.name.as_str()).collect();
        let owners = IdBlob::of(leases.iter().map(|lease| &lease.owner));
        let tokens = parameters::tokens(leases.iter().map(|lease| lease.token));
        self.changes(
            OperationKind::Release,
            &self.context.statements.free,
            |query| {
                query
                    .bind_first(json(&names), owners)
                    .bind(hint_id)
                    .bind(tokens)
            },
        )
        .await
    }

    /// Frees the remaining leases of ours, and returns for each name whether others wait for it.
    async fn release_wanted(
        &mut self,
        leases: &[&Lease],
    ) -> Result<HashMap<String, bool>, StatementError> {
        let (rows, owners) = lease_rows(leases);
        let hint_id = self.context.wait_group.hint_id();
        let mut busy_retry = BusyRetry::new(self.context);
        let rows = loop {
            let freed = self.rows(OperationKind::Release, |query| {
                query.bind_first(rows.clone(), owners.clone()).bind(hint_id)
            });
            match freed.await {
                Err(failed) if self.may_retry(&failed, &mut busy_retry) => {}
                freed => break freed.map_err(StatementError::without_retry)?,
            }
        };
        rows.iter()
            .map(|row| Ok((rows::column(row, 0)?, rows::column(row, 1)?)))
            .collect::<Result<_>>()
            .map_err(StatementError::corrupt)
    }

    pub(super) async fn force(mut self) -> BatchResult {
        let expected: Vec<_> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Operation::Force(name, token) => Some((name, *token)),
                _ => None,
            })
            .collect();
        let rows: Vec<_> = expected
            .iter()
            .map(|(name, token)| (name.as_str(), token.get()))
            .collect();
        let freed = self
            .rows(OperationKind::Force, |query| {
                query.bind_first(json(&rows), Vec::new())
            })
            .await?;
        let mut freed_names = HashMap::with_capacity(freed.len());
        for row in &freed {
            let name: String = rows::column(row, 0).map_err(StatementError::corrupt)?;
            freed_names.insert(name, ());
        }
        let refused_rows = self.refused_rows(names(self.ops, &freed_names)).await;
        let answers = expected.into_iter().map(|(name, _)| {
            if freed_names.contains_key(name.as_str()) {
                return Ok(Forced::Released);
            }
            let refused_rows = refused_rows.as_ref().map_err(Clone::clone)?;
            match refused_rows.get(name) {
                Some(Err(error)) => Err(error.clone()),
                Some(Ok(row)) if row.held.is_some() => Ok(Forced::OtherToken(row.last_token)),
                Some(Ok(_)) | None => Ok(Forced::NotHeld),
            }
        });
        Ok(answers
            .map(|answer| Reply::Done(answer.map(Answer::Forced)))
            .collect())
    }
}

fn lease_rows(leases: &[&Lease]) -> (String, Vec<u8>) {
    let rows: Vec<_> = leases
        .iter()
        .map(|lease| (lease.name.as_str(), parameters::token(lease.token)))
        .collect();
    (
        json(&rows),
        IdBlob::of(leases.iter().map(|lease| &lease.owner)),
    )
}
