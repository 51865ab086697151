//! Sends a batch until its outcome is known or its time limit has passed.
//!
//! A batch is sent again only if the server rolled it back, or if the connection was lost and every
//! operation may be repeated. If the answer after a lost connection does not determine the outcome
//! of both sends, the outcome is unknown.
//!
//! An operation counts as refused only if its row does not allow the operation. If the row allows
//! the operation, the row was locked or has changed since the statement, and the operation is sent
//! again.

use std::{collections::HashMap, time::Duration};

use distlock_backend_kit::{
    batch::{Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{
    Attempt, Error, ErrorKind, FencingToken, Lease, LockName, RecordKey, Result, Version,
};
use sqlx::PgConnection;

use super::request::{BatchQuery, bind};
use crate::{
    dialect::{
        Effect, carried_out,
        postgres::{
            connect::with_statement_timeout,
            context::StoreContext,
            pool::ConnectionPool,
            rows::{self, read_rows},
        },
        refused,
    },
    resend::{answer_after_resend, may_be_resent},
    rows::LockRow,
    statement_error::{Access, StatementError},
    wait::RENEW_HINT_BELOW,
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

/// Sends a batch on a connection of `pool`.
pub(crate) async fn send(
    context: &StoreContext,
    pool: &ConnectionPool,
    kind: OperationKind,
    ops: &[Operation],
) -> Result<Vec<Reply<Answer>>, Failure> {
    let deadline = context.common.clock.now() + context.config.statement_timeout;
    // The error of the first send, if the batch was sent twice.
    let mut earlier_error: Option<Error> = None;
    loop {
        let connection = pool.lend(context).await;
        let connection = connection.map_err(|error| earlier_error.clone().unwrap_or(error));
        let mut connection = connection.map_err(Failure::Whole)?;
        let mut broke = false;
        let batch = Batch {
            ops,
            context,
            connection: connection.connection(),
            broke: &mut broke,
        };
        let answers = with_statement_timeout(context, Access::Write, batch.send(kind)).await;
        let answers = if broke && answers.is_ok() {
            drop(connection);
            answers
        } else {
            connection.give_back(answers)
        };
        match answers {
            Ok(answers) => {
                return Ok(match &earlier_error {
                    Some(earlier_error) => answers
                        .into_iter()
                        .map(|it| answer_after_resend(it, earlier_error))
                        .collect(),
                    None => answers,
                });
            }
            Err(failed) if failed.meaning.retry && context.common.clock.now() < deadline => {
                context.common.counters.count_retry();
                let pause = Duration::from_micros(fastrand::u64(500..5000));
                context.common.clock.sleep(pause).await;
            }
            // For example after a restart of the server.
            Err(failed)
                if earlier_error.is_none()
                    && failed.lost_connection()
                    && context.common.clock.now() < deadline
                    && ops.iter().all(may_be_resent) =>
            {
                context.common.counters.count_retry();
                earlier_error = Some(failed.into_error());
            }
            // After a lost connection, the error of the first send is reported, because the first
            // send may have been carried out.
            Err(failed) => {
                return Err(earlier_error.map_or_else(|| context.failure(failed), Failure::Whole));
            }
        }
    }
}

/// The rows of operations that were not carried out.
#[derive(Default)]
pub(super) struct RefusedRows {
    pub(super) locks: HashMap<LockName, Result<LockRow>>,
    pub(super) records: HashMap<RecordKey, Version>,
}

/// Detects a lock that changes hands very fast: each attempt finds the lock held, and each read
/// finds the lock free, but its token changes between the reads. Such a lock is busy, and no read
/// shows its holder.
#[derive(Default)]
pub(super) struct FastTurnover {
    token: Option<FencingToken>,
    seen: bool,
}

impl FastTurnover {
    pub(super) fn see(&mut self, op: &Operation, refused_rows: &RefusedRows) {
        if let Some(Ok(row)) = op.lock().and_then(|name| refused_rows.locks.get(name)) {
            let before = self.token.replace(row.last_token);
            self.seen = before.is_some_and(|before| before != row.last_token) && row.held.is_none();
        }
    }

    /// Whether the operation is an acquire that failed because of the fast turnover.
    pub(super) const fn is_reason(&self, op: &Operation) -> bool {
        matches!(op, Operation::Acquire(_)) && self.seen
    }
}

/// The answer to an operation that was not carried out, from its row; `None` when the row allows
/// the operation.
pub(super) fn refusal(
    op: &Operation,
    refused_rows: &Result<RefusedRows>,
    context: &StoreContext,
) -> Option<Result<Answer>> {
    let refused_rows = match refused_rows {
        Ok(refused_rows) => refused_rows,
        Err(error) => return Some(Err(error.clone())),
    };
    let row = match op.lock().and_then(|name| refused_rows.locks.get(name)) {
        Some(Ok(row)) => Some(row),
        Some(Err(error)) => return Some(Err(error.clone())),
        None => None,
    };
    if is_allowed(op, row, refused_rows) {
        return None;
    }
    if let (Operation::Acquire(_), Some(row)) = (op, row)
        && row.held.is_some()
        && row.hint_remaining > RENEW_HINT_BELOW
    {
        return Some(Ok(Answer::BusyNotified(row.held.clone())));
    }
    Some(Ok(refused(op, row, context.epochs.changed())))
}

/// Whether the row, in the state in which it was read, allows the operation.
fn is_allowed(op: &Operation, row: Option<&LockRow>, refused_rows: &RefusedRows) -> bool {
    let version = |key| refused_rows.records.get(key).copied();
    match op {
        Operation::Acquire(request) => {
            row.is_none_or(|row| row.held.is_none() || row.owner == Some(request.owner))
        }
        Operation::Renew(lease, _) | Operation::HandOver(lease, _) => {
            row.is_some_and(|row| holds(row, lease))
        }
        Operation::Release(lease) => row.is_some_and(|row| row.has(lease)),
        Operation::ForceRelease(_, expected) => {
            row.is_some_and(|row| row.held.is_some() && row.last_token == *expected)
        }
        Operation::Create(key, _) => version(key).is_none(),
        Operation::Replace(key, _, expected) | Operation::Delete(key, expected) => {
            version(key) == Some(*expected)
        }
    }
}

/// Whether the lease still holds the lock.
fn holds(row: &LockRow, lease: &Lease) -> bool {
    row.held.is_some() && row.has(lease)
}
