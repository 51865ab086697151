//! Acquires and releases.
//!
//! A statement reports only the number of rows that it changed. Usually it changed all rows, and
//! the number is a sufficient answer. Otherwise the rows are read. Then an acquire may be sent
//! again, with another token, and a release may be sent again for locks that other processes wait
//! for.

use std::{collections::HashMap, time::Duration};

use distlock_backend_kit::operation::{Answer, Operation, OperationKind};
use distlock_core::{
    Attempt, Error, ErrorKind, FencingToken, Lease, Moment, ReleaseOutcome, Result,
};
use futures_util::TryStreamExt as _;
use sqlx::{Either, Executor as _};

use super::{
    batch::{Batch, row_of},
    request::{LockChanges, bind_lock_changes},
};
use crate::{
    dialect::{
        Effect, carried_out, refused,
        sqlite::{pool::BusyRetry, rows},
    },
    rows::LockRow,
    statement_error::{Access, StatementError},
};

impl Batch<'_> {
    /// Sends a batch of acquires, releases, or both. A batch contains each name only once, so that
    /// the order of the operations does not matter.
    pub(super) async fn acquire_and_release(
        &mut self,
    ) -> Result<Vec<Result<Answer>>, StatementError> {
        let ops = self.ops;
        let acquires = ops.iter().filter(|op| op.kind() == OperationKind::Acquire);
        let acquires: Vec<_> = acquires.collect();
        let requests: Vec<_> = acquires.iter().filter_map(|op| op.request()).collect();
        let leases: Vec<_> = ops.iter().filter_map(Operation::lease).collect();
        let changes = LockChanges {
            requests: &requests,
            token: self.now.wall.unsigned_abs(),
            leases: &leases,
            even_wanted: false,
        };
        let (acquired, released) = self.change_locks(changes).await?;
        // The transaction is committed now. A later failure must be reported only for the operation
        // that it concerns. The rows of released locks are read first, because another process may
        // take these locks soon.
        let mut releases = self.released(&leases, released).await.into_iter();
        let mut acquires = self.acquired(&acquires, acquired).await.into_iter();
        let answers = self.ops.iter().filter_map(|op| match op {
            Operation::Acquire(_) => acquires.next(),
            _ => releases.next(),
        });
        let mut answers = answers.collect::<Vec<_>>();
        // This process may have been suspended after it read the clock. If `reap_after` has passed,
        // other owners may have used a lock with a higher token since then, and the reaper may have
        // removed that row. The token of this grant would be lower than an earlier token.
        let read_at = Moment::from_boot(Duration::from_micros(self.now.boot.unsigned_abs()));
        if self.context.common.clock.now().since(read_at) >= self.context.config.reap_after {
            self.give_back(&mut answers).await;
        }
        Ok(answers)
    }

    /// The answers to these acquires. The statement has granted `acquired` of them.
    async fn acquired(&mut self, ops: &[&Operation], acquired: usize) -> Vec<Result<Answer>> {
        let wall = self.now.wall.unsigned_abs();
        if acquired == ops.len() {
            let answers = ops
                .iter()
                .map(|op| self.granted(op, FencingToken::new(wall)));
            return answers.collect();
        }
        let rows = self.read_rows(ops.iter().filter_map(|op| op.lock())).await;
        let mut answers = Vec::with_capacity(ops.len());
        for op in ops {
            let answer = match op.lock().map(|name| row_of(name, &rows)) {
                Some(Ok(Some(row))) => self.acquired_by_row(op, row).await,
                // Some acquires were granted, but the rows that show which ones cannot be read. So
                // the outcome is unknown, and each caller can ask again as the same owner.
                Some(Err(error)) if acquired > 0 && rows.is_err() => Err(unknown(&error)),
                Some(Err(error)) => Err(error),
                _ => Ok(refused(op, None, false)),
            };
            answers.push(answer);
        }
        answers
    }

    /// The answer to an acquire, from its row. The acquire is sent again in two cases: its owner
    /// holds the lock already with another token, or the lock is free and its last token is not
    /// below the wall clock.
    async fn acquired_by_row(&mut self, op: &Operation, row: &LockRow) -> Result<Answer> {
        let wall = self.now.wall.unsigned_abs();
        let is_ours = op.request().map(|request| request.owner) == row.owner;
        let token = match &row.held {
            Some(_) if is_ours && row.last_token.get() == wall => {
                return self.granted(op, Ok(row.last_token));
            }
            Some(_) if is_ours => row.last_token,
            Some(_) => return Ok(refused(op, Some(row), false)),
            None => {
                let token = wall.max(row.last_token.get() + 1);
                FencingToken::new(token)
                    .map_err(|_| rows::corrupt(format!("token {token} is out of range")))?
            }
        };
        let requests: Vec<_> = op.request().into_iter().collect();
        let changes = LockChanges {
            requests: &requests,
            token: token.get(),
            leases: &[],
            even_wanted: false,
        };
        match self.change_locks_again(changes).await {
            Ok((1, _)) => self.granted(op, Ok(token)),
            // Another owner has taken the lock since the row was read.
            Ok(_) => Ok(refused(op, None, false)),
            Err(failed) => Err(failed.into_error()),
        }
    }

    fn granted(&self, op: &Operation, token: Result<FencingToken>) -> Result<Answer> {
        let effect = Effect {
            number: Some(token),
            others_waiting: None,
        };
        carried_out(op, effect, &self.open.epoch)
    }

    /// The answers to releases of these leases. The first statement has released `plainly` of them:
    /// it releases only locks that no other process waits for.
    async fn released(&mut self, leases: &[&Lease], plainly: usize) -> Vec<Result<Answer>> {
        let outcome = |others_waiting| {
            Ok(Answer::Released(ReleaseOutcome::Released {
                others_waiting,
            }))
        };
        let not_held = || Ok(Answer::Released(ReleaseOutcome::NotHeld));
        if plainly == leases.len() {
            return leases.iter().map(|_| outcome(Some(false))).collect();
        }
        // The rows show the leases that the first statement did not release: other processes wait
        // for their locks. For a lone lease no row is read, because the next statement shows
        // whether the lease was still in its row.
        let (lone, rows) = match leases {
            [_] => (true, Ok(HashMap::new())),
            _ => (
                false,
                self.read_rows(leases.iter().map(|lease| &lease.name)).await,
            ),
        };
        let row = |lease: &Lease| {
            row_of(&lease.name, &rows).map_err(|error| match plainly {
                0 => error,
                _ => unknown(&error),
            })
        };
        let is_wanted = |lease: &Lease| {
            lone || row(lease).is_ok_and(|row| row.is_some_and(|row| row.has(lease)))
        };
        let wanted: Vec<_> = leases
            .iter()
            .copied()
            .filter(|lease| is_wanted(lease))
            .collect();
        let changes = LockChanges {
            requests: &[],
            token: 0,
            leases: &wanted,
            even_wanted: true,
        };
        let released = match wanted.as_slice() {
            [] => Ok(0),
            _ => self
                .change_locks_again(changes)
                .await
                .map(|(_, released)| released),
        };
        let released = released.map_err(StatementError::into_error);
        let rest = leases.len() - wanted.len();
        let answer = |lease: &&Lease| {
            if is_wanted(lease) {
                return match &released {
                    Ok(released) if *released == wanted.len() => outcome(Some(true)),
                    Ok(_) if lone => not_held(),
                    Ok(_) => Err(taken_meanwhile()),
                    Err(error) => Err(error.clone()),
                };
            }
            // This lease was not in its row when the row was read. If the first statement released
            // none or all of such leases, the answer is clear. Otherwise the row must show it.
            match (row(lease)?, plainly) {
                (_, 0) => not_held(),
                (_, plainly) if plainly == rest => outcome(Some(false)),
                (Some(row), _) if self.freed(lease, row)? => outcome(Some(false)),
                _ => not_held(),
            }
        };
        leases.iter().map(answer).collect()
    }

    /// Whether this batch released the lease, from the time when its row became free. The error
    /// means that another owner has used the lock since then, so that the row does not show it.
    fn freed(&self, lease: &Lease, row: &LockRow) -> Result<bool> {
        match (row.owner, row.freed_at) {
            (Some(owner), _) if owner == lease.owner => Ok(false),
            (None, freed_at) if freed_at <= Some(self.now.boot) => {
                Ok(freed_at == Some(self.now.boot))
            }
            _ => Err(taken_meanwhile()),
        }
    }

    /// Sends a later statement of the batch, and repeats it while other processes write. (The first
    /// statement is not repeated here: the whole batch is sent again.)
    async fn change_locks_again(
        &mut self,
        changes: LockChanges<'_>,
    ) -> Result<(usize, usize), StatementError> {
        let mut busy_retry = BusyRetry::new(self.context);
        loop {
            match self.change_locks(changes).await {
                Err(failed) if busy_retry.allows(self.open, &failed, self.context) => {}
                changed => return changed,
            }
        }
    }

    /// Sends one statement or transaction. Returns the number of acquired locks and the number of
    /// released locks.
    async fn change_locks(
        &mut self,
        changes: LockChanges<'_>,
    ) -> Result<(usize, usize), StatementError> {
        let (acquires, releases) = (!changes.requests.is_empty(), !changes.leases.is_empty());
        if acquires {
            self.count(OperationKind::Acquire);
        }
        if releases {
            self.count(OperationKind::Release);
        }
        let query = bind_lock_changes(changes, self.context, self.now);
        let (mut done, steps) = (Vec::new(), if acquires && releases { 4 } else { 1 });
        let outcome = {
            let mut results = self.open.connection.fetch_many(query);
            loop {
                match results.try_next().await {
                    Ok(Some(Either::Left(step))) => done.push(step.rows_affected()),
                    Ok(Some(Either::Right(_))) => {}
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(StatementError::sqlite(error, Access::Write)),
                }
            }
        };
        let begun = !done.is_empty();
        // A transaction that was begun and not committed leaves the connection unusable. Closing
        // the connection makes SQLite roll back.
        self.open.is_spent |= begun && done.len() < steps;
        outcome.map_err(|failed| match begun {
            true => failed.without_retry(),
            false => {
                self.open.is_spent |= failed.meaning.reconnect;
                failed
            }
        })?;
        let rows = |step: usize| {
            let rows = done.get(step).copied().unwrap_or(0);
            usize::try_from(rows).unwrap_or(usize::MAX)
        };
        Ok(match (acquires, releases) {
            (true, true) => (rows(1), rows(2)),
            (true, false) => (rows(0), 0),
            _ => (0, rows(0)),
        })
    }

    /// Releases the locks that were granted with the outdated clock reading as their token. Changes
    /// their answers to an error.
    async fn give_back(&mut self, answers: &mut [Result<Answer>]) {
        let outdated = self.now.wall.unsigned_abs();
        let (mut granted, mut releases) = (Vec::new(), Vec::new());
        for (op, answer) in self.ops.iter().zip(answers) {
            if let Ok(given @ Answer::Acquired(Attempt::Acquired(grant))) = &*answer
                && grant.token.get() == outdated
            {
                releases.extend(op.undo(given));
                granted.push(answer);
            }
        }
        let leases: Vec<_> = releases.iter().filter_map(Operation::lease).collect();
        if leases.is_empty() {
            return;
        }
        self.now = self.context.now();
        // Without this release, another acquire of the same owner would find the row held by itself
        // and would report the outdated token.
        let changes = LockChanges {
            requests: &[],
            token: 0,
            leases: &leases,
            even_wanted: true,
        };
        let released = self.change_locks_again(changes).await;
        let released = released.map_err(StatementError::into_error);
        for answer in granted {
            let what =
                "this process stood still for too long after its look at the clock: try again";
            *answer = Err(match &released {
                Ok(_) => Error::new(ErrorKind::Unavailable, what),
                Err(error) => Error::new(ErrorKind::OutcomeUnknown, what).caused_by(error.clone()),
            });
        }
    }
}

fn taken_meanwhile() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "another owner has the lock now, and it is not known whether this release freed it first",
    )
}

/// The error for a statement that was carried out for some of the operations, when the rows that
/// would show for which ones cannot be read.
fn unknown(error: &Error) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the rows were written, but could not be read afterwards",
    )
    .caused_by(error.clone())
}
