//! Who drives a batch: the caller's own future when nothing else is in flight, a task otherwise.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::error::{Error, ErrorKind, Result};

use super::{
    Executor, Failure, Reply, Shared,
    queue::{Answered, Batch, Claimed},
};

/// The right to have one batch in flight. Whoever owns it keeps the queue moving, or gives it back.
pub(super) struct Slot<E: Executor> {
    shared: Arc<Shared<E>>,
    claimed: Claimed,
    /// How often the task that owned it was destroyed before its end.
    fallen: u8,
    given_back: bool,
}

impl<E: Executor> Slot<E> {
    pub(super) fn new(shared: &Arc<Shared<E>>) -> Self {
        Self::with(shared, Claimed::default(), 0)
    }

    fn with(shared: &Arc<Shared<E>>, claimed: Claimed, fallen: u8) -> Self {
        Self {
            shared: Arc::clone(shared),
            claimed,
            fallen,
            given_back: false,
        }
    }

    /// Lets a task work the queue off.
    pub(super) fn spawn(self) {
        let shared = Arc::clone(&self.shared);
        // Where the task that had it was destroyed, its runtime may be gone: the present one is the next best.
        let home = shared.home.clone().filter(|_| self.fallen == 0);
        let handle = home.or_else(|| Handle::try_current().ok());
        match handle {
            Some(handle) => drop(handle.spawn(self.work())),
            None => drop(self),
        }
    }

    /// Ends the turn of an operation that was driven by its caller: the caller gets its answer at once, and a task goes on
    /// with what was queued meanwhile.
    fn pass_on(mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        let mut state = self.shared.state();
        state.queue.unclaim(&claimed);
        if state.queue.is_empty() {
            self.given_back = true;
            state.running -= 1;
            drop(state);
            self.shared.quiet.notify_waiters();
        } else {
            drop(state);
            self.spawn();
        }
    }

    async fn work(mut self) {
        loop {
            // Those who were just answered come back with their next operation: one turn of the scheduler lets them join
            // this batch instead of the one after it.
            tokio::task::yield_now().await;
            let Some(batch) = self.next() else { return };
            self.send(batch).await;
            self.fallen = 0;
        }
    }

    /// The next batch; gives the slot back in the same step when there is none.
    fn next(&mut self) -> Option<Batch<E>> {
        let mut state = self.shared.state();
        let batch = state.queue.take(&self.shared.executor);
        if batch.is_none() {
            self.given_back = true;
            state.running -= 1;
            drop(state);
            self.shared.quiet.notify_waiters();
        }
        batch
    }

    async fn send(&mut self, mut batch: Batch<E>) {
        self.claimed = std::mem::take(&mut batch.claimed);
        let outcome = self.shared.executor.run(batch.kind, &batch.ops).await;
        self.distribute(batch, outcome);
        self.unclaim();
    }

    fn distribute(&self, batch: Batch<E>, outcome: Result<Vec<Reply<E::Answer>>, Failure>) {
        let shared = &self.shared;
        let (alone, lone) = (batch.alone, batch.ops.len() == 1);
        if alone {
            let given_up = shared.state().queue.alone_ended(outcome.is_err());
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
                        Some(Reply::Alone) if !lone => {
                            shared.state().queue.push_alone(&shared.executor, pending);
                        }
                        reply => {
                            if let Some((op, Ok(answer))) = pending.answer(reply_of(reply)) {
                                shared.undo(&op, &answer);
                            }
                        }
                    }
                }
            }
            Err(Failure::Split(error)) if !lone => {
                tracing::debug!(%error, "a batch failed as a whole: its operations are sent singly");
                let mut state = shared.state();
                for pending in batch.into_pending() {
                    state.queue.push_alone(&shared.executor, pending);
                }
            }
            Err(Failure::Split(error) | Failure::Whole(error)) => {
                for pending in batch.into_pending() {
                    let _ = pending.answer(Err(error.clone()));
                }
            }
        }
    }

    fn unclaim(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        self.shared.state().queue.unclaim(&claimed);
    }
}

impl<E: Executor> Drop for Slot<E> {
    fn drop(&mut self) {
        if self.given_back {
            return;
        }
        // The task was destroyed: its runtime was shut down, or the executor panicked. Whoever waited for the batch in
        // flight learns it from the closed channel; the queue goes on elsewhere, or is told that it will not.
        self.unclaim();
        self.given_back = true;
        if self.fallen == 0 {
            Self::with(&self.shared, Claimed::default(), 1).spawn();
            return;
        }
        let stranded = {
            let mut state = self.shared.state();
            state.running -= 1;
            state.queue.drain_all()
        };
        self.shared.quiet.notify_waiters();
        for pending in stranded {
            let _ = pending.answer(Err(Error::new(
                ErrorKind::Unavailable,
                "the runtime that sends this handle's operations was shut down",
            )));
        }
    }
}

type Flight<E> = Pin<
    Box<
        dyn Future<
                Output = (
                    Slot<E>,
                    <E as Executor>::Op,
                    Result<<E as Executor>::Answer>,
                ),
            > + Send,
    >,
>;

/// An operation that goes out at once, driven by its caller. When the caller goes away, a task drives it to its end.
pub(super) struct Leader<E: Executor> {
    shared: Arc<Shared<E>>,
    flight: Option<Flight<E>>,
}

impl<E: Executor> Leader<E> {
    pub(super) fn new(shared: &Arc<Shared<E>>, op: E::Op, claimed: Claimed) -> Self {
        let slot = Slot::with(shared, claimed, 0);
        let flight = async move {
            let executor = &slot.shared.executor;
            let outcome = executor
                .run(executor.kind(&op), std::slice::from_ref(&op))
                .await;
            let answer = match outcome {
                Ok(replies) => reply_of(replies.into_iter().next()),
                Err(Failure::Split(error) | Failure::Whole(error)) => Err(error),
            };
            (slot, op, answer)
        };
        Self {
            shared: Arc::clone(shared),
            flight: Some(Box::pin(flight)),
        }
    }
}

impl<E: Executor> Future for Leader<E> {
    type Output = Result<E::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out while it is polled, so that a panic drops it instead of leaving it to be polled again.
        let Some(mut flight) = self.flight.take() else {
            return Poll::Pending;
        };
        match flight.as_mut().poll(context) {
            Poll::Pending => {
                self.flight = Some(flight);
                Poll::Pending
            }
            Poll::Ready((slot, _, answer)) => {
                slot.pass_on();
                Poll::Ready(answer)
            }
        }
    }
}

impl<E: Executor> Drop for Leader<E> {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else {
            return;
        };
        let rest = async move {
            let (mut slot, op, answer) = flight.await;
            if let Ok(answer) = answer {
                slot.shared.undo(&op, &answer);
            }
            slot.unclaim();
            slot.work().await;
        };
        let home = self.shared.home.clone();
        if let Some(handle) = home.or_else(|| Handle::try_current().ok()) {
            drop(handle.spawn(rest));
        }
    }
}

/// An operation that waits for its batch.
pub(super) struct Follower<'a, E: Executor> {
    // Borrowed: a count that all callers share is what they would get in each other's way with.
    shared: &'a Arc<Shared<E>>,
    reply: Option<oneshot::Receiver<Answered<E>>>,
}

impl<'a, E: Executor> Follower<'a, E> {
    pub(super) fn new(shared: &'a Arc<Shared<E>>, reply: oneshot::Receiver<Answered<E>>) -> Self {
        Self {
            shared,
            reply: Some(reply),
        }
    }
}

impl<E: Executor> Future for Follower<'_, E> {
    type Output = Result<E::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(reply) = &mut self.reply else {
            return Poll::Pending;
        };
        let answered = ready!(Pin::new(reply).poll(context));
        self.reply = None;
        Poll::Ready(match answered {
            Ok((_, answer)) => answer,
            Err(_) => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the task that sent the batch was destroyed before the answer came",
            )),
        })
    }
}

impl<E: Executor> Drop for Follower<'_, E> {
    fn drop(&mut self) {
        let Some(mut reply) = self.reply.take() else {
            return;
        };
        reply.close();
        // The answer may have come between the last poll and now.
        if let Ok((op, Ok(answer))) = reply.try_recv() {
            self.shared.undo(&op, &answer);
        }
    }
}

fn reply_of<A>(reply: Option<Reply<A>>) -> Result<A> {
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
