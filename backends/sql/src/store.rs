//! One handle on a database: its batches, its helpers, and whether it is closed.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_core::{
    Error, ErrorKind, HandOver, Result,
    batch::{Batcher, Executor, Failure, Reply},
};
use tokio::task::AbortHandle;

use crate::{
    dialect::{Dialect, QueueEntry},
    operation::{Answer, Operation, OperationKind},
    singleton_task::SingletonTask,
};

/// What a handle's locks and records share. Connections close with the last of them.
pub(crate) struct Store<D: Dialect> {
    batcher: Batcher<Writer<D>>,
    /// Waiters of this handle that sleep. Changed under the group's mutex only.
    pub(crate) asleep: AtomicUsize,
    pub(crate) poller: SingletonTask,
    pub(crate) listener: SingletonTask,
    /// Places in lines that are to be given up with the next request.
    leaving: Mutex<Vec<QueueEntry>>,
    /// Held by whoever sends that request.
    leaves: tokio::sync::Mutex<()>,
    /// Parts that are still open: locks and records.
    parts: AtomicUsize,
    // A std mutex: held to look and to swap only.
    helpers: Mutex<Vec<AbortHandle>>,
}

/// The sending end of the batches.
#[derive(Debug)]
pub(crate) struct Writer<D>(D);

impl<D: Dialect> Store<D> {
    /// A handle with `parts` that are closed one by one.
    pub(crate) fn new(dialect: D, parts: usize) -> Arc<Self> {
        let limits = dialect.limits();
        Arc::new(Self {
            batcher: Batcher::new(Writer(dialect), limits),
            asleep: AtomicUsize::new(0),
            poller: SingletonTask::default(),
            listener: SingletonTask::default(),
            leaving: Mutex::default(),
            leaves: tokio::sync::Mutex::default(),
            parts: AtomicUsize::new(parts),
            helpers: Mutex::default(),
        })
    }

    pub(crate) fn dialect(&self) -> &D {
        &self.batcher.executor().0
    }

    /// Sends an operation with the next batch.
    pub(crate) async fn submit(&self, op: Operation) -> Result<Answer> {
        let operation = op.kind().name();
        let name = op.lock().cloned();
        self.batcher.submit(op).await.map_err(|error| {
            let error = error.on(D::NAME).during(operation);
            match &name {
                Some(name) => error.about(name),
                None => error,
            }
        })
    }

    /// Gives a place in a line up, together with those that others give up meanwhile. What the store
    /// does not hear of ends with the place's lease.
    pub(crate) async fn leave_line(&self, place: QueueEntry) {
        let leaving = || self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving().push(place);
        let _turn = self.leaves.lock().await;
        let places = std::mem::take(&mut *leaving());
        if places.is_empty() {
            return;
        }
        if let Err(error) = self.dialect().leave_lines(&places).await {
            tracing::debug!(%error, "places in lines were not given up");
        }
    }

    /// Closes one part, which was `open` until now or whose closing was given up; the last one
    /// closes the connections.
    pub(crate) async fn close_part(&self, open: bool) {
        if open {
            self.parts.fetch_sub(1, Ordering::AcqRel);
        }
        if self.parts.load(Ordering::Acquire) > 0 {
            return;
        }
        self.stop_helpers();
        self.batcher.close().await;
        self.dialect().close().await;
    }

    pub(crate) fn keep(&self, helper: AbortHandle) {
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        helpers.retain(|helper| !helper.is_finished());
        helpers.push(helper);
    }

    fn stop_helpers(&self) {
        let mut helpers = self.helpers.lock().unwrap_or_else(PoisonError::into_inner);
        for helper in helpers.drain(..) {
            helper.abort();
        }
    }
}

impl<D: Dialect> Drop for Store<D> {
    fn drop(&mut self) {
        self.stop_helpers();
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
        op.bytes()
    }

    async fn run(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        let mut replies = self.0.write(kind, ops).await?;
        let group = self.0.group();
        for (op, reply) in ops.iter().zip(&mut replies) {
            let (Some(name), Reply::Done(Ok(answer))) = (op.lock(), reply) else {
                continue;
            };
            if answer.freed() {
                group.freed(name);
            }
            // Marks tell of other processes only.
            if let Answer::HandedOver(HandOver::Done(grant)) = answer
                && grant.others_waiting == Some(false)
            {
                grant.others_waiting = Some(group.anybody_waits(name));
            }
        }
        Ok(replies)
    }

    fn undo(&self, op: &Operation, answer: &Answer) -> Option<Operation> {
        op.undo(answer)
    }

    fn outlives_caller(&self, op: &Operation) -> bool {
        matches!(op, Operation::Release(_) | Operation::HandOver(..))
    }
}

impl Answer {
    /// An answer to another kind of question than was asked.
    pub(crate) fn unexpected(&self) -> Error {
        Error::new(
            ErrorKind::Internal,
            format!("an answer of the wrong kind came back: {self:?}"),
        )
    }
}
