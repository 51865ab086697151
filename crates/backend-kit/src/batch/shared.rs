//! The state that all handles of a batcher share.
//!
//! This module owns the queue, the number of batches in flight, and the operations that their
//! callers drive. Invariant: while the queue is not empty, a task works on it, or a batch in flight
//! will start one. The mutex is never held across an await.

use std::{
    collections::VecDeque,
    fmt::Debug,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, sync::Notify};

use distlock_core::{Error, ErrorKind, log};

use super::{
    drive::{CallerOperation, FlightPermit},
    executor::Executor,
    handout::BatchOwner,
    queue::{Pending, Queue},
};

/// The state that all handles of a batcher share.
pub(super) struct BatcherShared<E: Executor> {
    pub(super) executor: E,
    pub(super) in_flight: usize,
    pub(super) undivided: usize,
    pub(super) in_steps: bool,
    /// The runtime of the batcher's tasks.
    pub(super) home: Option<Handle>,
    // A std mutex: it is held for queue operations only, never across an await.
    pub(super) state: Mutex<BatcherState<E>>,
    pub(super) quiet: Notify,
}

pub(super) struct BatcherState<E: Executor> {
    pub(super) queue: Queue<E>,
    /// Permits in use: batches in flight, and tasks that are about to send one.
    pub(super) running: usize,
    /// Operations in flight that their callers drive.
    pub(super) caller_driven: Vec<Arc<CallerOperation<E>>>,
    pub(super) closed: bool,
}

impl<E: Executor> BatcherShared<E> {
    pub(super) fn state(&self) -> MutexGuard<'_, BatcherState<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the operation that takes `answer` back, before all others.
    pub(super) fn undo(self: &Arc<Self>, op: &E::Op, answer: &E::Answer) {
        let Some(undo) = self.executor.undo(op, answer) else {
            return;
        };
        let name = self.executor.key(op).to_owned();
        log::debug(move || {
            tracing::debug!(name, "the caller went away: its answer is taken back");
        });
        let mut state = self.state();
        let caller_driven = self.operations_to_take_over(&mut state, &undo);
        state.queue.push_undo(Pending::without_reply(undo));
        self.start_queue(state, &caller_driven);
    }

    /// Operations whose callers must not drive them any longer, because `op` is about to be queued:
    /// the one with its key, and one more where no permit belongs to a task. The task of that one
    /// then works on the queue.
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

    /// Starts a task for the queue, if a permit is free.
    pub(super) fn start_queue(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, BatcherState<E>>,
        caller_driven: &[Arc<CallerOperation<E>>],
    ) {
        let crowd = state.running < 2 * self.in_flight && state.queue.len() >= self.undivided;
        let permit = (state.running < self.in_flight || crowd).then(|| {
            state.running += 1;
            FlightPermit::new(self)
        });
        // Unlocked first: on a runtime that is shut down, a spawn drops the task at once, and that
        // drop locks the mutex again.
        drop(state);
        permit.into_iter().for_each(FlightPermit::spawn);
        caller_driven
            .iter()
            .for_each(|operation| operation.take_over(self));
    }
}

impl<E: Executor> BatchOwner<E> for Arc<BatcherShared<E>> {
    fn send_singly(&self, operations: impl Iterator<Item = Pending<E>>) {
        let mut state = self.state();
        for pending in operations {
            state.queue.push_alone(&self.executor, pending);
        }
    }

    fn single_ended(&self, failed: bool) -> VecDeque<Pending<E>> {
        self.state().queue.alone_ended(failed)
    }

    fn undo(&self, op: &E::Op, answer: &E::Answer) {
        BatcherShared::undo(self, op, answer);
    }
}

impl<E: Executor> Debug for BatcherShared<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
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
