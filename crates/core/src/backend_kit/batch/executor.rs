//! What a backend supplies to have its operations batched, and how large batches may become.

use std::{fmt::Debug, future::Future};

use crate::types::error::{Error, Result};

/// What sends batches to a store.
pub trait Executor: Send + Sync + 'static {
    /// What can share a batch.
    type Kind: Copy + Ord + Debug + Send + Sync + 'static;
    /// One operation.
    type Op: Send + Sync + 'static;
    /// What the store says to one operation.
    type Answer: Send + 'static;

    /// The kind of an operation.
    fn kind(&self, op: &Self::Op) -> Self::Kind;

    /// Whether this kind goes out before the others, which take turns.
    fn is_urgent(&self, kind: Self::Kind) -> bool;

    /// The row it touches: a batch holds each once, in byte order.
    fn key<'a>(&self, op: &'a Self::Op) -> &'a str;

    /// Roughly how many bytes it adds to the request.
    fn bytes(&self, op: &Self::Op) -> usize {
        self.key(op).len()
    }

    /// Sends one batch and reads the answers, one per operation and in the same order.
    ///
    /// It runs to its end, whoever goes away meanwhile, unless its runtime is shut down.
    fn run(
        &self,
        kind: Self::Kind,
        ops: &[Self::Op],
    ) -> impl Future<Output = Result<Vec<Reply<Self::Answer>>, Failure>> + Send;

    /// What takes back an answer that nobody received: the release of a lock that was granted to a
    /// caller who went away. It is sent before anything else.
    fn undo(&self, op: &Self::Op, answer: &Self::Answer) -> Option<Self::Op>;

    /// Whether an operation whose caller went away before it was sent is still sent: a release is,
    /// an acquisition is not.
    fn outlives_caller(&self, op: &Self::Op) -> bool;
}

/// What became of one operation of a batch.
#[derive(Debug)]
pub enum Reply<A> {
    /// The store's answer, or its error for this operation only.
    Done(Result<A>),
    /// Nothing happened to it, and it may do better in a batch of its own (a row somebody else has
    /// locked was skipped).
    Alone,
}

/// Why a batch came to nothing as a whole.
#[derive(Debug)]
pub enum Failure {
    /// One of its operations may be the cause, and sending them again is safe: each is sent singly.
    Split(Error),
    /// None would do better alone: all get this error.
    Whole(Error),
}

/// How much goes out together.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Operations in a batch.
    pub operations: usize,
    /// Bytes in a batch, by [`Executor::bytes`]; an operation that is larger goes alone.
    pub bytes: usize,
    /// Batches that may be out at the same time. A key is never in two of them.
    pub in_flight: usize,
    /// Up to how many operations one batch takes all that wait. Where so many wait, up to twice as
    /// many batches may be out, and each takes its part: several middling batches keep callers and
    /// store busy at the same time, where with a large one each of them waits for the other.
    pub undivided: usize,
    /// Whether the next batch goes out before the answers of the one that came back are handed out,
    /// when about as many operations wait as came back. The store is kept busy so, and batches
    /// become smaller: worth it where a batch costs the store more than the way there, and where
    /// those who take and those who free share one.
    pub ahead: bool,
    /// Whether the store tells of several steps of one batch, each of which wakes whoever waits for
    /// it. A batch that went [`ahead`](Self::ahead) is then left alone until those who were just
    /// answered have run.
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
