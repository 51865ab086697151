//! The state that all handles of a batcher share.
//!
//! This module owns the queue, the number of batches in flight, and the operations that their
//! callers drive. It gives each answer of a batch to its caller, undoes it, or queues its operation
//! again. Invariant: while the queue is not empty, a task sends its operations, or the end
//! of a batch in flight starts such a task. The mutex is never held across an await.

use std::{fmt::Debug, mem, sync::Arc};

use tokio::{runtime::Handle, sync::Notify};

use distlock_core::{
    Error, ErrorKind, Result, log,
    sync::{Mutex, MutexGuard},
};

use super::{
    drive::{CallerOperation, FlightPermit},
    executor::{Executor, Failure, Reply},
    queue::{Batch, Pending, Queue},
};

/// The result of a batch.
pub(super) type Outcome<E> = Result<Vec<Reply<<E as Executor>::Answer>>, Failure>;

/// The state that all handles of a batcher share.
pub(super) struct BatcherShared<E: Executor> {
    pub(super) executor: E,
    pub(super) in_flight: usize,
    pub(super) undivided: usize,
    /// The runtime of the batcher's tasks.
    pub(super) home: Option<Handle>,
    // A blocking mutex, which is held for changes of the state only.
    pub(super) state: Mutex<BatcherState<E>>,
    pub(super) quiet: Notify,
}

pub(super) struct BatcherState<E: Executor> {
    pub(super) queue: Queue<E>,
    /// The number of permits in use: one for each batch in flight, and for each task that is about
    /// to send a batch.
    pub(super) running: usize,
    /// Operations in flight that their callers drive.
    pub(super) caller_driven: Vec<Arc<CallerOperation<E>>>,
    pub(super) closed: bool,
}

impl<E: Executor> BatcherShared<E> {
    /// Queues the operation that undoes `answer`, ahead of all other operations.
    pub(super) fn undo(self: &Arc<Self>, op: &E::Op, answer: &E::Answer) {
        let Some(undo) = self.executor.undo(op, answer) else {
            return;
        };
        let name = self.executor.key(op).to_owned();
        log::debug(move || {
            tracing::debug!(name, "the caller went away: its answer is taken back");
        });
        let mut state = self.state.lock();
        let caller_driven = self.operations_to_take_over(&mut state, &undo);
        state.queue.push_undo(Pending::without_reply(undo));
        self.start_queue(state, &caller_driven);
    }

    /// Hands out the answers of a batch.
    ///
    /// Each answer wakes its caller at once. Waking all callers of a batch together, at the point
    /// where tokio's scheduler wakes tasks that yield, gained 18 % on Redis with 256 callers, 7 %
    /// on SQLite, and nothing on Postgres (`distlock-lab peers STORE --workload independent`),
    /// which was too little for a second way.
    pub(super) fn hand_out(self: &Arc<Self>, batch: Batch<E>, outcome: Outcome<E>) {
        let (is_single, is_one) = (batch.is_single, batch.ops.len() == 1);
        if is_single {
            let given_up = self
                .state
                .lock()
                .queue
                .count_single_result(outcome.is_err());
            if let Err(Failure::Split(error) | Failure::Whole(error)) = &outcome {
                for pending in given_up {
                    let _ = pending.answer(Err(error.clone()));
                }
            }
        }
        match outcome {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                for pending in batch.into_pending() {
                    match replies.next() {
                        Some(Reply::Alone) if !is_one => {
                            self.send_singly(std::iter::once(pending));
                        }
                        reply => {
                            if let Some((op, Ok(answer))) = pending.answer(reply_of(reply)) {
                                self.undo(&op, &answer);
                            }
                        }
                    }
                }
            }
            Err(Failure::Split(error)) if !is_one => {
                log::debug(move || {
                    tracing::debug!(
                        %error,
                        "a batch failed as a whole: its operations are sent singly",
                    );
                });
                self.send_singly(batch.into_pending());
            }
            Err(Failure::Split(error) | Failure::Whole(error)) => {
                for pending in batch.into_pending() {
                    let _ = pending.answer(Err(error.clone()));
                }
            }
        }
    }

    /// Queues operations that must be sent singly, each in its own request.
    fn send_singly(&self, operations: impl Iterator<Item = Pending<E>>) {
        let mut state = self.state.lock();
        for pending in operations {
            state.queue.push_single(&self.executor, pending);
        }
    }

    /// Returns the operations that a task must drive from now on instead of their callers, because
    /// `op` is about to be queued and a caller may stop polling. These are the operation with the
    /// key of `op`, and one more if all permits belong to callers: its task then sends the queue,
    /// too.
    pub(super) fn operations_to_take_over(
        &self,
        state: &mut BatcherState<E>,
        op: &E::Op,
    ) -> Vec<Arc<CallerOperation<E>>> {
        if state.caller_driven.is_empty() {
            return Vec::new();
        }
        let key = state.queue.key(&self.executor, op);
        let no_tasks =
            state.running == self.in_flight && state.running == state.caller_driven.len();
        let mut oldest = no_tasks;
        let taken = |operation: &mut Arc<CallerOperation<E>>| {
            mem::take(&mut oldest) || operation.has_key(key)
        };
        state.caller_driven.extract_if(.., taken).collect()
    }

    /// Starts a task that sends the queued operations in batches, if a permit is free. A long queue
    /// may use twice as many permits. For each operation in `caller_driven`, starts a task that
    /// drives the operation from now on instead of its caller.
    pub(super) fn start_queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, BatcherState<E>>,
        caller_driven: &[Arc<CallerOperation<E>>],
    ) {
        let queue_is_long =
            state.running < 2 * self.in_flight && state.queue.len() >= self.undivided;
        let permit = (state.running < self.in_flight || queue_is_long).then(|| {
            state.running += 1;
            FlightPermit::new(self)
        });
        // The mutex is unlocked before the spawn: on a runtime that is shut down, a spawn drops the
        // task at once, and that drop locks the mutex.
        drop(state);
        permit.into_iter().for_each(FlightPermit::spawn);
        caller_driven
            .iter()
            .for_each(|operation| operation.take_over(self));
    }
}

impl<E: Executor> Debug for BatcherShared<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Batcher")
            .field("queued", &state.queue.len())
            .field("running", &state.running)
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store's handle was closed")
}

pub(super) fn reply_of<A>(reply: Option<Reply<A>>) -> Result<A> {
    match reply {
        Some(Reply::Done(answer)) => answer,
        Some(Reply::Alone) => Err(Error::new(
            ErrorKind::Unavailable,
            "the store skipped the operation",
        )),
        None => Err(Error::new(
            ErrorKind::Internal,
            "the store's answer to a batch has too few entries",
        )),
    }
}
