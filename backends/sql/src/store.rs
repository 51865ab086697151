//! One handle on a database: its batches, its background tasks, and whether it is closed.
//!
//! The locks and the records of a handle share one [`Store`]. The connections close when both are
//! closed. The reaper and the listener hold only a weak reference while they sleep, so that they do
//! not keep the store open. The poller holds a strong reference, and ends when no waiter sleeps.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_backend_kit::{
    batch::{Batcher, Executor, Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{Forced, HandOver, ReleaseOutcome, Result, sync::Mutex};
use tokio::task::AbortHandle;

use crate::{dialect::Dialect, rows::QueueEntry, singleton_task::SingletonTask};

/// The state that the locks and the records of a handle share.
pub(crate) struct Store<D: Dialect> {
    batcher: Batcher<Writer<D>>,
    /// The number of sleeping waiters of this handle. The number changes only under the mutex of
    /// the wait group.
    pub(crate) asleep: AtomicUsize,
    pub(crate) poller: SingletonTask,
    pub(crate) listener: SingletonTask,
    /// Queue entries that the next leave request gives up.
    entries_to_leave: Mutex<Vec<QueueEntry>>,
    /// The caller that sends the leave request holds this mutex.
    leave_turn: tokio::sync::Mutex<()>,
    /// The number of open parts. A handle has up to two parts: locks and records.
    parts: AtomicUsize,
    // A blocking mutex: no caller holds this mutex across an await.
    tasks: Mutex<Vec<AbortHandle>>,
}

/// The executor of the batches.
#[derive(Debug)]
pub(crate) struct Writer<D>(D);

impl<D: Dialect> Store<D> {
    /// A handle with `parts` open parts; [`Self::close_part`] closes one part.
    pub(crate) fn new(dialect: D, parts: usize) -> Arc<Self> {
        let limits = dialect.limits();
        Arc::new(Self {
            batcher: Batcher::new(Writer(dialect), limits),
            asleep: AtomicUsize::new(0),
            poller: SingletonTask::default(),
            listener: SingletonTask::default(),
            entries_to_leave: Mutex::default(),
            leave_turn: tokio::sync::Mutex::default(),
            parts: AtomicUsize::new(parts),
            tasks: Mutex::default(),
        })
    }

    pub(crate) fn dialect(&self) -> &D {
        &self.batcher.executor().0
    }

    /// Sends an operation with the next batch.
    pub(crate) async fn submit(&self, op: Operation) -> Result<Answer> {
        let operation = op.kind().method();
        let name = op.lock().cloned();
        self.batcher.submit(op).await.map_err(|error| {
            let error = error.on(D::NAME).during(operation);
            match &name {
                Some(name) => error.about(name),
                None => error,
            }
        })
    }

    /// Gives up a queue entry. Entries that several callers give up at the same time share one
    /// request. If the request fails, the entry stays in the store until its lease ends.
    pub(crate) async fn leave_queue(&self, entry: QueueEntry) {
        let entries_to_leave = || self.entries_to_leave.lock();
        entries_to_leave().push(entry);
        let _turn = self.leave_turn.lock().await;
        let entries = std::mem::take(&mut *entries_to_leave());
        if entries.is_empty() {
            return;
        }
        if let Err(error) = self.dialect().leave_queues(&entries).await {
            tracing::debug!(%error, "queue entries were not removed; they end with their lease");
        }
    }

    /// Closes one part. `open` says whether the part was open until now; `open` is false when an
    /// earlier close was cancelled. The close of the last part closes the connections.
    pub(crate) async fn close_part(&self, open: bool) {
        if open {
            self.parts.fetch_sub(1, Ordering::AcqRel);
        }
        if self.parts.load(Ordering::Acquire) > 0 {
            return;
        }
        self.stop_tasks();
        self.batcher.close().await;
        self.dialect().close().await;
    }

    pub(crate) fn track_task(&self, task: AbortHandle) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    fn stop_tasks(&self) {
        let mut tasks = self.tasks.lock();
        for task in tasks.drain(..) {
            task.abort();
        }
    }
}

impl<D: Dialect> Drop for Store<D> {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}

impl<D: Dialect> fmt::Debug for Store<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dialect().fmt(f)
    }
}

impl<D: Dialect> Executor for Writer<D> {
    type Kind = OperationKind;
    type Op = Operation;
    type Answer = Answer;

    fn kind(&self, op: &Operation) -> OperationKind {
        D::batched_as(op.kind())
    }

    fn is_urgent(&self, kind: OperationKind) -> bool {
        kind == OperationKind::Renew
    }

    fn key<'a>(&self, op: &'a Operation) -> &'a str {
        op.key()
    }

    fn bytes(&self, op: &Operation) -> usize {
        op.key().len() + op.value_bytes()
    }

    async fn run(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        let mut replies = self.0.write(kind, ops).await?;
        let group = &self.0.context().wait_group;
        for (op, reply) in ops.iter().zip(&mut replies) {
            let (Some(name), Reply::Done(Ok(answer))) = (op.lock(), reply) else {
                continue;
            };
            if has_freed(answer) {
                group.wake_waiters(name);
            }
            // The statement reports only waiters of other processes, from their hints. The waiters
            // of this process are added here.
            if let Answer::HandedOver(HandOver::Done(grant)) = answer
                && grant.others_waiting == Some(false)
            {
                grant.others_waiting = Some(group.has_waiters(name));
            }
        }
        Ok(replies)
    }

    fn undo(&self, op: &Operation, answer: &Answer) -> Option<Operation> {
        op.undo(answer)
    }

    fn outlives_caller(&self, op: &Operation) -> bool {
        op.outlives_caller()
    }
}

/// Whether the lock is free now because of this answer.
fn has_freed(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Released(ReleaseOutcome::Released { .. }) | Answer::Forced(Forced::Released)
    )
}
