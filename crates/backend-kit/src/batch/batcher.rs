//! The entry point of group commit: a batcher takes operations from callers and returns their
//! answers.

use std::{fmt::Debug, mem, sync::Arc};

use tokio::{runtime::Handle, sync::Notify};

#[cfg(doc)]
use distlock_core::ErrorKind;
use distlock_core::{Result, sync::Mutex};

use super::{
    drive::{CallerDriven, QueuedOperation},
    executor::{Executor, Limits},
    queue::{Pending, Queue},
    shared::{BatcherShared, BatcherState, closed},
};

/// Gathers operations into batches.
#[derive(Debug)]
pub struct Batcher<E: Executor>(pub(super) Arc<BatcherShared<E>>);

impl<E: Executor> Clone for Batcher<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E: Executor> Batcher<E> {
    /// A batcher whose tasks run on the calling runtime.
    #[must_use]
    pub fn new(executor: E, limits: Limits) -> Self {
        Self(Arc::new(BatcherShared {
            executor,
            in_flight: limits.in_flight.max(1),
            undivided: limits.undivided,
            home: Handle::try_current().ok(),
            state: Mutex::new(BatcherState {
                queue: Queue::new(limits),
                running: 0,
                caller_driven: Vec::new(),
                closed: false,
            }),
            quiet: Notify::new(),
        }))
    }

    /// The executor that sends the batches.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.0.executor
    }

    /// Sends an operation: at once when nothing is in flight, otherwise in the next batch.
    ///
    /// # Errors
    /// The errors of the store; [`ErrorKind::Closed`] after [`Batcher::close`];
    /// [`ErrorKind::OutcomeUnknown`] when the runtime that drove the batch of the operation was
    /// shut down, and [`ErrorKind::Unavailable`] when the runtime was shut down before the batch
    /// was sent.
    ///
    /// # Cancel safety
    /// Safe: see the [module](super).
    pub async fn submit(&self, op: E::Op) -> Result<E::Answer> {
        let admitted = self.admit(op);
        match admitted {
            Admitted::Now(operation) => operation.await,
            Admitted::Queued(operation) => operation.await,
            Admitted::Refused => Err(closed()),
        }
    }

    /// Refuses new operations, answers operations that were not sent yet with
    /// [`ErrorKind::Closed`], and waits for operations in flight. The call is idempotent.
    ///
    /// # Cancel safety
    /// Safe: the batcher stays closed, and a second call waits for the operations in flight.
    pub async fn close(&self) {
        let (refused, caller_driven) = {
            let mut state = self.0.state.lock();
            state.closed = true;
            (state.queue.drain(), mem::take(&mut state.caller_driven))
        };
        caller_driven
            .iter()
            .for_each(|operation| operation.take_over(&self.0));
        for pending in refused {
            // The result is ignored: an operation whose caller has gone was not sent, so there is
            // nothing to undo.
            let _ = pending.answer(Err(closed()));
        }
        loop {
            let quiet = self.0.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            if self.0.state.lock().running == 0 {
                return;
            }
            quiet.await;
        }
    }

    /// Lets the caller drive the operation now if a permit is free, the queue is empty and the key
    /// is not in flight. Otherwise queues the operation.
    fn admit(&self, op: E::Op) -> Admitted<'_, E> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if state.closed {
            return Admitted::Refused;
        }
        if state.running < shared.in_flight
            && state.queue.is_empty()
            && let Some(claimed) = state.queue.claim_one(&shared.executor, &op)
        {
            state.running += 1;
            let operation = CallerDriven::new(shared, op, claimed);
            state.caller_driven.push(Arc::clone(operation.operation()));
            return Admitted::Now(operation);
        }
        let caller_driven = shared.operations_to_take_over(&mut state, &op);
        let (pending, reply) = Pending::with_reply(op);
        state.queue.push(&shared.executor, pending);
        shared.start_queue(state, &caller_driven);
        Admitted::Queued(QueuedOperation::new(shared, reply))
    }
}

enum Admitted<'a, E: Executor> {
    Now(CallerDriven<E>),
    Queued(QueuedOperation<'a, E>),
    Refused,
}
