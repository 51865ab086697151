//! The interface of group commit for backends: the executor, and the limits of batches.

use std::{fmt::Debug, future::Future};

use distlock_core::{Error, Result};

/// Sends batches to a store.
pub trait Executor: Send + Sync + 'static {
    /// Operations of one kind can share a batch.
    type Kind: Copy + Ord + Debug + Send + Sync + 'static;
    /// One operation.
    type Op: Send + Sync + 'static;
    /// The store's answer to one operation.
    type Answer: Send + 'static;

    /// The kind of an operation.
    fn kind(&self, op: &Self::Op) -> Self::Kind;

    /// Whether this kind is sent before the other kinds, which take turns.
    fn is_urgent(&self, kind: Self::Kind) -> bool;

    /// The row that the operation changes. A batch holds each key once, in byte order.
    fn key<'a>(&self, op: &'a Self::Op) -> &'a str;

    /// The approximate number of bytes that the operation adds to the request.
    fn bytes(&self, op: &Self::Op) -> usize {
        self.key(op).len()
    }

    /// Sends one batch and reads the answers, one per operation and in the same order.
    ///
    /// The batcher polls this future to its end, also when callers go away, unless its runtime is
    /// shut down.
    fn run(
        &self,
        kind: Self::Kind,
        ops: &[Self::Op],
    ) -> impl Future<Output = Result<Vec<Reply<Self::Answer>>, Failure>> + Send;

    /// The operation that undoes an answer without a receiver: the release of a lock that was
    /// granted to a caller that went away. The batcher sends the undo before all other operations.
    /// `None`: the answer needs no undo.
    fn undo(&self, op: &Self::Op, answer: &Self::Answer) -> Option<Self::Op>;

    /// Whether an operation is still sent when its caller went away before the sending: `true` for
    /// a release, `false` for an acquire.
    fn outlives_caller(&self, op: &Self::Op) -> bool;
}

/// The result of one operation of a batch.
#[derive(Debug)]
pub enum Reply<A> {
    /// The store's answer, or its error for this operation only.
    Done(Result<A>),
    /// The store skipped this operation, because another client had locked its row. The operation
    /// may succeed when it is sent singly.
    Alone,
}

/// The failure of a whole batch.
#[derive(Debug)]
pub enum Failure {
    /// One operation of the batch may be the cause, and it is safe to send the operations again:
    /// the batcher sends each singly.
    Split(Error),
    /// No operation would succeed if it was sent singly. All operations get this error.
    Whole(Error),
}

/// The limits of batches.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The largest number of operations in a batch.
    pub operations: usize,
    /// The largest number of bytes in a batch, by [`Executor::bytes`]. A larger operation has a
    /// batch of its own.
    pub bytes: usize,
    /// The largest number of batches in flight at the same time. A key is never in two of them.
    pub in_flight: usize,
    /// Queue length above which the queue is split into several batches. Then up to twice
    /// [`in_flight`](Self::in_flight) batches may be in flight. Several batches of middle size keep
    /// callers and the store busy at the same time. With one large batch, the callers wait for the
    /// store, and then the store waits for the callers.
    pub undivided: usize,
    /// Whether the next batch is sent before the answers of the last batch are handed out, if the
    /// queue has at least half as many operations as the last batch. The store is then busy without
    /// a gap, but batches are smaller. This is faster if the store needs more time for a batch than
    /// the network, and if acquires and releases share a batch.
    pub ahead: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            operations: 1024,
            bytes: 4 * 1024 * 1024,
            in_flight: 1,
            undivided: usize::MAX,
            ahead: false,
        }
    }
}
