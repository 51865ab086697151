//! One batch in flight, and the sending of every kind of batch except acquires and releases.
//!
//! All rows of a result are read, because SQLite commits only after the last row.
//!
//! A batch is repeated while other processes write. It takes the connection out of its slot: if the
//! future of the batch is dropped before its end, the connection closes, and SQLite rolls back.

use std::collections::HashMap;

use distlock_backend_kit::{
    batch::{Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{LockName, Result};
use tokio::sync::Mutex;

use super::request::bind_batch;
use crate::{
    dialect::{
        Effect, carried_out, lock_of_refusal, refused,
        sqlite::{
            context::{ClockReadings, StoreContext},
            pool::{BusyRetry, ConnectionSlot, OpenConnection},
            rows::{self, read_rows},
        },
    },
    rows::LockRow,
    statement_error::{Access, StatementError},
};

/// One batch in flight.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Operation],
    pub(crate) context: &'a StoreContext,
    pub(crate) open: &'a mut OpenConnection,
    pub(crate) now: ClockReadings,
    /// Whether the batch was sent before. The earlier send changed nothing, because another process
    /// was writing.
    pub(crate) resent: bool,
}

/// The rows of refused operations, by name.
pub(super) type RefusedRows = Result<HashMap<LockName, Result<LockRow>>>;

impl Batch<'_> {
    pub(crate) async fn send(
        mut self,
        kind: OperationKind,
    ) -> Result<Vec<Reply<Answer>>, StatementError> {
        let answers = match kind {
            OperationKind::Acquire | OperationKind::Release => self.acquire_and_release().await?,
            kind => self.change_rows(kind).await?,
        };
        Ok(answers.into_iter().map(Reply::Done).collect())
    }

    /// Carries the operations out with one statement, which returns the changed rows.
    async fn change_rows(
        &mut self,
        kind: OperationKind,
    ) -> Result<Vec<Result<Answer>>, StatementError> {
        let (context, ops) = (self.context, self.ops);
        self.count(kind);
        let returned = bind_batch(kind, ops, context, self.now)
            .fetch_all(&mut self.open.connection)
            .await
            .map_err(|error| StatementError::sqlite(error, Access::Write))?;
        let mut changed: HashMap<String, _> = HashMap::with_capacity(returned.len());
        for row in &returned {
            let key = rows::column(row, 0).map_err(StatementError::corrupt)?;
            changed.insert(key, row);
        }
        let refused_ops = ops.iter().filter(|op| !changed.contains_key(op.key()));
        let refused_rows = self
            .read_rows(refused_ops.filter_map(lock_of_refusal))
            .await;
        let answer = |op: &Operation| {
            if let Some(row) = changed.get(op.key()) {
                let mut effect = Effect::default();
                if !matches!(op, Operation::ForceRelease(..) | Operation::Delete(..)) {
                    effect.number = Some(rows::token(row, 1));
                }
                return carried_out(op, effect, &self.open.epoch);
            }
            let row = match lock_of_refusal(op) {
                Some(name) => row_of(name, &refused_rows)?,
                None => None,
            };
            Ok(refused(op, row, self.open.history_changed))
        };
        Ok(ops.iter().map(answer).collect())
    }

    /// Counts a statement. While another process writes, the statement is repeated every
    /// millisecond; these repetitions are not counted.
    pub(super) fn count(&self, kind: OperationKind) {
        if !self.resent {
            self.context.common.counters.count(kind.name());
        }
    }

    pub(super) async fn read_rows<'n>(
        &mut self,
        names: impl Iterator<Item = &'n LockName>,
    ) -> RefusedRows {
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let found = read_rows(&mut self.open.connection, self.context, &names, self.now).await;
        let found = found.map_err(|failed| {
            self.open.is_spent |= failed.meaning.reconnect;
            failed.into_error()
        })?;
        Ok(found.into_iter().collect())
    }
}

/// The row of this lock; `None` when there is no row.
pub(super) fn row_of<'r>(name: &LockName, rows: &'r RefusedRows) -> Result<Option<&'r LockRow>> {
    let row = rows.as_ref().map_err(Clone::clone)?.get(name);
    row.map(Result::as_ref).transpose().map_err(Clone::clone)
}

/// Sends a batch on the connection of `writer`.
pub(crate) async fn send(
    context: &StoreContext,
    writer: &Mutex<ConnectionSlot>,
    kind: OperationKind,
    ops: &[Operation],
) -> Result<Vec<Reply<Answer>>, Failure> {
    let mut slot = writer.lock().await;
    let mut busy_retry: Option<BusyRetry> = None;
    loop {
        let mut open = slot.take(context).await.map_err(Failure::Whole)?;
        let batch = Batch {
            ops,
            context,
            open: &mut open,
            // The clock is read just before sending. The caller has read the clock earlier, so that
            // the caller's deadline is never later than the end of the lease in the store.
            now: context.now(),
            resent: busy_retry.is_some(),
        };
        let answers = batch.send(kind).await;
        let again = answers.as_ref().is_err_and(|failed| {
            let busy_retry = busy_retry.get_or_insert_with(|| BusyRetry::new(context));
            busy_retry.allows(&open, failed, context)
        });
        slot.put_back(open);
        if !again {
            return answers.map_err(|failed| slot.failed(failed).into_failure());
        }
    }
}
