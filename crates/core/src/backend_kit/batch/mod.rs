//! Group commit: many operations share one round trip and one disk flush.
//!
//! An operation goes out at once when nothing is in flight, driven by its caller's own future: no task, no timer, no
//! queue. Otherwise it joins the next batch, which goes out as soon as the one in flight comes back; then a task takes over
//! what it waits for, so that nobody depends on a caller that has stopped polling.
//!
//! A batch holds one [kind](Executor::Kind) of operation and each [key](Executor::key) once, sorted by key: two
//! unsorted multi-row statements can deadlock each other. Every operation gets an answer of its own. What failed as a
//! whole or was skipped is sent singly, so that one stuck row never takes its neighbours down. The urgent kind (renewals)
//! goes first.
//!
//! # Cancel safety
//! [`Batcher::submit`] may be dropped at any time. What was not sent yet is forgotten (or still sent, where the executor
//! [says so](Executor::outlives_caller)); what was sent is seen to its end by a task of the batcher, and what it brought
//! is [undone](Executor::undo) before anything goes out that was asked for later. Neighbours in the batch notice nothing.

mod drive;
mod handout;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    fmt::Debug,
    future::Future,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, sync::Notify};

use crate::{
    engine::log,
    types::error::{Error, ErrorKind, Result},
};

use drive::{Follower, Leader, Led, Slot};
use queue::{Pending, Queue};

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

    /// What takes back an answer that nobody received: the release of a lock that was granted to a caller who went away.
    /// It is sent before anything else.
    fn undo(&self, op: &Self::Op, answer: &Self::Answer) -> Option<Self::Op>;

    /// Whether an operation whose caller went away before it was sent is still sent: a release is, an acquisition is not.
    fn outlives_caller(&self, op: &Self::Op) -> bool;
}

/// What became of one operation of a batch.
#[derive(Debug)]
pub enum Reply<A> {
    /// The store's answer, or its error for this operation only.
    Done(Result<A>),
    /// Nothing happened to it, and it may do better in a batch of its own (a row somebody else has locked was skipped).
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
    /// Up to how many operations one batch takes all that wait. Where so many wait, up to twice as many batches may be out,
    /// and each takes its part: several middling batches keep callers and store busy at the same time, where with a large one
    /// each of them waits for the other.
    pub undivided: usize,
    /// Whether the next batch goes out before the answers of the one that came back are handed out, when about as many
    /// operations wait as came back. The store is kept busy so, and batches become smaller: worth it where a batch costs the
    /// store more than the way there, and where those who take and those who free share one.
    pub ahead: bool,
    /// Whether the store tells of several steps of one batch, each of which wakes whoever waits for it. A batch that went
    /// [`ahead`](Self::ahead) is then left alone until those who were just answered have run.
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

/// Gathers operations into batches.
#[derive(Debug)]
pub struct Batcher<E: Executor>(Arc<Shared<E>>);

impl<E: Executor> Clone for Batcher<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Executor> Batcher<E> {
    /// A batcher whose follow-up batches run on the present runtime.
    #[must_use]
    pub fn new(executor: E, limits: Limits) -> Self {
        Self(Arc::new(Shared {
            executor,
            in_flight: limits.in_flight.max(1),
            undivided: limits.undivided,
            in_steps: limits.in_steps,
            home: Handle::try_current().ok(),
            state: Mutex::new(State {
                queue: Queue::new(limits),
                running: 0,
                leaders: Vec::new(),
                closed: false,
            }),
            quiet: Notify::new(),
        }))
    }

    /// The store behind it.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.0.executor
    }

    /// Sends an operation: at once when nothing is in flight, otherwise with the next batch.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Closed`] after [`Batcher::close`]; [`ErrorKind::OutcomeUnknown`] when the runtime that
    /// drove its batch was shut down, [`ErrorKind::Unavailable`] when that happened before it was sent.
    ///
    /// # Cancel safety
    /// Safe: see the [module](self).
    pub async fn submit(&self, op: E::Op) -> Result<E::Answer> {
        let admitted = self.0.admit(op);
        match admitted {
            Admitted::Lead(leader) => leader.await,
            Admitted::Follow(follower) => follower.await,
            Admitted::Refused => Err(closed()),
        }
    }

    /// Refuses new operations, answers those that were not sent yet with [`ErrorKind::Closed`], and waits for those in
    /// flight. Idempotent.
    ///
    /// # Cancel safety
    /// Safe: what was refused stays refused.
    pub async fn close(&self) {
        let (refused, leaders) = {
            let mut state = self.0.state();
            state.closed = true;
            (state.queue.drain(), mem::take(&mut state.leaders))
        };
        leaders.iter().for_each(|led| led.take_over(&self.0));
        for pending in refused {
            // Nobody to tell: nothing was sent, so there is nothing to undo either.
            let _ = pending.answer(Err(closed()));
        }
        loop {
            let quiet = self.0.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            if self.0.state().running == 0 {
                return;
            }
            quiet.await;
        }
    }
}

/// What all handles of a batcher share.
struct Shared<E: Executor> {
    executor: E,
    in_flight: usize,
    undivided: usize,
    in_steps: bool,
    /// Where follow-up batches run.
    home: Option<Handle>,
    // A std mutex: it is held for queue operations only, never across an await.
    state: Mutex<State<E>>,
    quiet: Notify,
}

struct State<E: Executor> {
    queue: Queue<E>,
    /// Slots in use: batches in flight and tasks about to send one.
    running: usize,
    /// Those in flight that their callers drive.
    leaders: Vec<Arc<Led<E>>>,
    closed: bool,
}

enum Admitted<'a, E: Executor> {
    Lead(Leader<E>),
    Follow(Follower<'a, E>),
    Refused,
}

impl<E: Executor> Shared<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an operation a slot of its own, or a place in the queue.
    fn admit(self: &Arc<Self>, op: E::Op) -> Admitted<'_, E> {
        let mut state = self.state();
        if state.closed {
            return Admitted::Refused;
        }
        if state.running < self.in_flight
            && state.queue.is_empty()
            && let Some(claimed) = state.queue.claim_one(&self.executor, &op)
        {
            state.running += 1;
            let leader = Leader::new(self, op, claimed);
            state.leaders.push(Arc::clone(leader.led()));
            return Admitted::Lead(leader);
        }
        let leaders = self.in_the_way(&mut state, &op);
        let (pending, reply) = Pending::with_reply(op);
        state.queue.push(&self.executor, pending);
        self.see_to_the_queue(state, &leaders);
        Admitted::Follow(Follower::new(self, reply))
    }

    /// Sends what takes `answer` back, before anything else.
    fn undo(self: &Arc<Self>, op: &E::Op, answer: &E::Answer) {
        let Some(undo) = self.executor.undo(op, answer) else {
            return;
        };
        let name = self.executor.key(op).to_owned();
        log::debug(move || {
            tracing::debug!(name, "the caller went away: its answer is taken back");
        });
        let mut state = self.state();
        let leaders = self.in_the_way(&mut state, &undo);
        state.queue.push_undo(Pending::without_reply(undo));
        self.see_to_the_queue(state, &leaders);
    }

    /// Those whose callers an operation that is about to be queued must not depend on: whoever has its key, and one more
    /// where no slot is a task's. That one then works the queue off.
    fn in_the_way(&self, state: &mut State<E>, op: &E::Op) -> Vec<Arc<Led<E>>> {
        if state.leaders.is_empty() {
            return Vec::new();
        }
        let key = state.queue.key(&self.executor, op);
        let no_tasks = state.running == self.in_flight && state.running == state.leaders.len();
        let mut oldest = no_tasks;
        let taken = |led: &mut Arc<Led<E>>| mem::take(&mut oldest) || led.is_in_the_way_of(key);
        state.leaders.extract_if(.., taken).collect()
    }

    /// Something waits in the queue: it gets a slot, if one is free.
    fn see_to_the_queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<E>>,
        leaders: &[Arc<Led<E>>],
    ) {
        let crowd = state.running < 2 * self.in_flight && state.queue.len() >= self.undivided;
        let slot = (state.running < self.in_flight || crowd).then(|| {
            state.running += 1;
            Slot::new(self)
        });
        // On a runtime that is shut down, spawning drops the task at once, and that takes the lock again.
        drop(state);
        slot.into_iter().for_each(Slot::spawn);
        leaders.iter().for_each(|led| led.take_over(self));
    }
}

impl<E: Executor> Debug for Shared<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Batcher")
            .field("queued", &state.queue.len())
            .field("running", &state.running)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store's handle was closed")
}
