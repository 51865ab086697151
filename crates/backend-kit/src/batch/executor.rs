//! The interface of group commit: the executor that a backend supplies, and the limits of a batch.

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

    /// Whether this kind is sent before the others, which take turns.
    fn is_urgent(&self, kind: Self::Kind) -> bool;

    /// The row that the operation changes. A batch holds each key once, in byte order.
    fn key<'a>(&self, op: &'a Self::Op) -> &'a str;

    /// The approximate number of bytes that the operation adds to the request.
    fn bytes(&self, op: &Self::Op) -> usize {
        self.key(op).len()
    }

    /// Sends one batch and reads the answers, one per operation and in the same order.
    ///
    /// It runs to its end, also when callers go away, unless its runtime is shut down.
    fn run(
        &self,
        kind: Self::Kind,
        ops: &[Self::Op],
    ) -> impl Future<Output = Result<Vec<Reply<Self::Answer>>, Failure>> + Send;

    /// The operation that takes back an answer which no caller received: the release of a lock that
    /// was granted to a caller that went away. It is sent before all others.
    fn undo(&self, op: &Self::Op, answer: &Self::Answer) -> Option<Self::Op>;

    /// Whether an operation is still sent when its caller went away before that. A release is, an
    /// acquire is not.
    fn outlives_caller(&self, op: &Self::Op) -> bool;
}

/// The result of one operation of a batch.
#[derive(Debug)]
pub enum Reply<A> {
    /// The store's answer, or its error for this operation only.
    Done(Result<A>),
    /// The store did nothing for this operation, and it may succeed in a batch of its own: the
    /// store skipped a row that another client had locked.
    Alone,
}

/// The failure of a whole batch.
#[derive(Debug)]
pub enum Failure {
    /// One of its operations may be the cause, and it is safe to send them again: each is sent
    /// singly.
    Split(Error),
    /// No operation would succeed alone: all get this error.
    Whole(Error),
}

/// The limits of batches.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Operations in a batch.
    pub operations: usize,
    /// Bytes in a batch, by [`Executor::bytes`]. A larger operation is sent alone.
    pub bytes: usize,
    /// Batches that may be in flight at the same time. A key is never in two of them.
    pub in_flight: usize,
    /// Queue length above which the queue is split into several batches. Then up to twice as many
    /// batches may be in flight, and each takes its part. Several batches of middle size keep
    /// callers and the store busy at the same time. With one large batch, each side waits for the
    /// other.
    pub undivided: usize,
    /// Whether the next batch is sent before the answers of the last one are handed out, when the
    /// queue has about as many operations as were answered. That keeps the store busy, and batches
    /// become smaller. It pays where the store needs more time for a batch than the network, and
    /// where acquires and releases share a batch.
    pub ahead: bool,
    /// Whether the store answers one batch in several steps, each of which wakes the waiting task.
    /// After a batch that was sent [`ahead`](Self::ahead), the callers that were just answered then
    /// run before the batch is polled again.
    pub in_steps: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            operations: 1024,
            bytes: 4 * 1024 * 1024,
            in_flight: 1,
            undivided: usize::MAX,
            ahead: false,
            in_steps: false,
        }
    }
}
