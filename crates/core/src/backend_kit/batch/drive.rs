//! Who drives a batch: the caller's own future as long as nobody else wants anything, a task
//! otherwise.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::oneshot};

use crate::types::error::{Error, ErrorKind, Result};

use super::{
    executor::{Executor, Failure, Reply},
    handout::{Outcome, hand_out, reply_of},
    queue::{Answered, Batch, ClaimedKeys},
    shared::BatcherShared,
};

/// The right to have one batch in flight. Whoever owns it keeps the queue moving, or gives it back.
pub(super) struct FlightPermit<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    /// By the batch in flight.
    claimed: ClaimedKeys,
    /// By the batch that came back, where another one is in flight already.
    unanswered: ClaimedKeys,
    /// How often the task that owned it was destroyed before its end.
    tasks_lost: u8,
    given_back: bool,
}

impl<E: Executor> FlightPermit<E> {
    pub(super) fn new(shared: &Arc<BatcherShared<E>>) -> Self {
        Self::with(shared, ClaimedKeys::default(), 0)
    }

    fn with(shared: &Arc<BatcherShared<E>>, claimed: ClaimedKeys, tasks_lost: u8) -> Self {
        Self {
            shared: Arc::clone(shared),
            claimed,
            unanswered: ClaimedKeys::default(),
            tasks_lost,
            given_back: false,
        }
    }

    /// Lets a task work the queue off.
    pub(super) fn spawn(self) {
        let shared = Arc::clone(&self.shared);
        // Where the task that had it was destroyed, its runtime may be gone: the present one is the
        // next best.
        let home = shared.home.clone().filter(|_| self.tasks_lost == 0);
        let handle = home.or_else(|| Handle::try_current().ok());
        match handle {
            Some(handle) => drop(handle.spawn(self.work())),
            None => drop(self),
        }
    }

    /// Ends the turn of an operation that was driven by its caller: the caller gets its answer at
    /// once, and a task goes on with what was queued meanwhile.
    fn give_back_or_spawn(mut self, operation: &Arc<CallerOperation<E>>) {
        let claimed = mem::take(&mut self.claimed);
        let mut state = self.shared.state();
        state
            .caller_driven
            .retain(|other| !Arc::ptr_eq(other, operation));
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
        let shared = Arc::clone(&self.shared);
        // What came back, and is not answered yet.
        let mut back: Option<(Batch<E>, Outcome<E>)> = None;
        loop {
            let next = match &back {
                Some((batch, outcome)) => self.take_ahead(batch, outcome),
                None => {
                    // Those who were just answered come back with their next operation: one turn of
                    // the scheduler lets them join this batch instead of the one after it.
                    tokio::task::yield_now().await;
                    self.take_next()
                }
            };
            let Some(mut batch) = next else {
                let Some((batch, outcome)) = back.take() else {
                    return;
                };
                hand_out(&shared, batch, outcome).await;
                self.unclaim();
                continue;
            };
            self.unanswered = mem::replace(&mut self.claimed, mem::take(&mut batch.claimed));
            let outcome = {
                let mut flight = pin!(shared.executor.run(batch.kind, &batch.ops));
                let mut first = Poll::Pending;
                if let Some((batch, outcome)) = back.take() {
                    // One look sends it; the answers are handed out while the store is at it.
                    first = poll_fn(|context| Poll::Ready(flight.as_mut().poll(context))).await;
                    hand_out(&shared, batch, outcome).await;
                    self.free_answered_keys();
                    if shared.in_steps {
                        // Those who were answered run first: whoever waits for each step has a
                        // thread woken for each.
                        tokio::task::yield_now().await;
                    }
                }
                match first {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => flight.await,
                }
            };
            self.tasks_lost = 0;
            back = Some((batch, outcome));
        }
    }

    /// The batch that goes out before the answers of the one that came back are handed out, where
    /// the executor wants that and nothing speaks against it: enough wait already, and nothing that
    /// came back must be undone or sent singly first.
    fn take_ahead(&mut self, back: &Batch<E>, outcome: &Outcome<E>) -> Option<Batch<E>> {
        let Ok(replies) = outcome else { return None };
        let mut state = self.shared.state();
        if !state.queue.sends_ahead(back.ops.len())
            || back.alone
            || back.lost_a_caller()
            || replies.iter().any(|reply| matches!(reply, Reply::Alone))
        {
            return None;
        }
        state
            .queue
            .take_ahead(&self.shared.executor, &mut self.claimed)
    }

    /// The answers of the batch that came back have been handed out: its keys are free for whoever
    /// asks, and what waited for them meanwhile gets a slot, if one is free.
    fn free_answered_keys(&mut self) {
        let unanswered = mem::take(&mut self.unanswered);
        let mut state = self.shared.state();
        state.queue.unclaim(&unanswered);
        if !state.queue.is_empty() {
            self.shared.start_queue(state, &[]);
        }
    }

    /// The next batch; gives the slot back in the same step when there is none.
    fn take_next(&mut self) -> Option<Batch<E>> {
        let mut state = self.shared.state();
        // One for a crowd that has gone. What is left must not depend on callers that drive their
        // own.
        let (running, alone) = (state.running, state.caller_driven.len() + 1);
        let crowd = state.queue.len() >= self.shared.undivided;
        let batch = if running > self.shared.in_flight && running > alone && !crowd {
            None
        } else {
            state.queue.take(&self.shared.executor)
        };
        if batch.is_none() {
            self.given_back = true;
            state.running -= 1;
            drop(state);
            self.shared.quiet.notify_waiters();
        }
        batch
    }

    fn unclaim(&mut self) {
        let (claimed, unanswered) = (
            mem::take(&mut self.claimed),
            mem::take(&mut self.unanswered),
        );
        let mut state = self.shared.state();
        state.queue.unclaim(&claimed);
        state.queue.unclaim(&unanswered);
    }
}

impl<E: Executor> Drop for FlightPermit<E> {
    fn drop(&mut self) {
        if self.given_back {
            return;
        }
        // The task was destroyed: its runtime was shut down, or the executor panicked. Whoever
        // waited for the batch in flight learns it from the closed channel; the queue goes on
        // elsewhere, or is told that it will not.
        self.unclaim();
        self.given_back = true;
        if self.tasks_lost == 0 {
            Self::with(&self.shared, ClaimedKeys::default(), 1).spawn();
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
                    FlightPermit<E>,
                    <E as Executor>::Op,
                    Result<<E as Executor>::Answer>,
                ),
            > + Send,
    >,
>;

/// An operation that goes out at once, driven by its caller. When the caller goes away, a task
/// drives it to its end; also when others depend on it, because a caller may stop polling for as
/// long as it likes.
pub(super) struct CallerDriven<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    operation: Arc<CallerOperation<E>>,
    /// What a task has taken over is heard from it.
    reply: Option<oneshot::Receiver<Answered<E>>>,
    over: bool,
}

/// Where an operation is that its caller drives, or did.
pub(super) struct CallerOperation<E: Executor> {
    /// The key that it keeps others from touching.
    key: ClaimedKeys,
    // A std mutex: held to look and to swap only.
    driven: Mutex<Driver<E>>,
}

enum Driver<E: Executor> {
    /// By its caller, who is told through this that a task has it.
    Caller(Flight<E>, Option<Waker>),
    /// By its caller, at this moment; whether a task is to have it afterwards.
    CallerPolling { task_wanted: bool },
    /// By a task, and the caller does not know yet.
    Task(oneshot::Receiver<Answered<E>>),
}

impl<E: Executor> CallerOperation<E> {
    /// Whether an operation of this key has to wait for it.
    pub(super) fn has_key(&self, key: u64) -> bool {
        self.key.contains(key)
    }

    /// Others depend on it: a task drives it from now on.
    pub(super) fn take_over(&self, shared: &Arc<BatcherShared<E>>) {
        let mut driven = self.driven();
        match mem::replace(&mut *driven, Driver::CallerPolling { task_wanted: true }) {
            Driver::Caller(flight, waker) => {
                let (reply, answered) = oneshot::channel();
                *driven = Driver::Task(answered);
                drop(driven);
                spawn_rest(shared, flight, reply);
                // It has to listen to the task instead.
                waker.into_iter().for_each(Waker::wake);
            }
            Driver::CallerPolling { .. } => {}
            by_task @ Driver::Task(_) => *driven = by_task,
        }
    }

    /// What there is to be driven by its caller, which has it for itself now.
    fn take(&self) -> Driver<E> {
        mem::replace(
            &mut *self.driven(),
            Driver::CallerPolling { task_wanted: false },
        )
    }

    fn driven(&self) -> MutexGuard<'_, Driver<E>> {
        // Nothing panics while it is held.
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a task drive an operation to its end, and then the queue.
fn spawn_rest<E: Executor>(
    shared: &Arc<BatcherShared<E>>,
    flight: Flight<E>,
    reply: oneshot::Sender<Answered<E>>,
) {
    let rest = async move {
        let (mut permit, op, answer) = flight.await;
        if let Err((op, Ok(answer))) = reply.send((op, answer)) {
            permit.shared.undo(&op, &answer);
        }
        permit.unclaim();
        permit.work().await;
    };
    let home = shared.home.clone();
    if let Some(handle) = home.or_else(|| Handle::try_current().ok()) {
        drop(handle.spawn(rest));
    }
}

impl<E: Executor> CallerDriven<E> {
    pub(super) fn new(shared: &Arc<BatcherShared<E>>, op: E::Op, claimed: ClaimedKeys) -> Self {
        let key = claimed.clone();
        let permit = FlightPermit::with(shared, claimed, 0);
        let flight = async move {
            let executor = &permit.shared.executor;
            let outcome = executor
                .run(executor.kind(&op), std::slice::from_ref(&op))
                .await;
            let answer = match outcome {
                Ok(replies) => reply_of(replies.into_iter().next()),
                Err(Failure::Split(error) | Failure::Whole(error)) => Err(error),
            };
            (permit, op, answer)
        };
        Self {
            shared: Arc::clone(shared),
            operation: Arc::new(CallerOperation {
                key,
                driven: Mutex::new(Driver::Caller(Box::pin(flight), None)),
            }),
            reply: None,
            over: false,
        }
    }

    pub(super) const fn operation(&self) -> &Arc<CallerOperation<E>> {
        &self.operation
    }
}

impl<E: Executor> Future for CallerDriven<E> {
    type Output = Result<E::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.reply.is_none() {
            // Taken out while it is polled, so that a panic drops it instead of leaving it to be
            // polled again.
            match self.operation.take() {
                Driver::Caller(mut flight, waker) => match flight.as_mut().poll(context) {
                    Poll::Ready((permit, _, answer)) => {
                        self.over = true;
                        permit.give_back_or_spawn(&self.operation);
                        return Poll::Ready(answer);
                    }
                    Poll::Pending => {
                        let mut driven = self.operation.driven();
                        if matches!(*driven, Driver::CallerPolling { task_wanted: false }) {
                            let waker = waker.filter(|it| it.will_wake(context.waker()));
                            let waker = waker.unwrap_or_else(|| context.waker().clone());
                            *driven = Driver::Caller(flight, Some(waker));
                            return Poll::Pending;
                        }
                        drop(driven);
                        let (reply, answered) = oneshot::channel();
                        spawn_rest(&self.shared, flight, reply);
                        self.reply = Some(answered);
                    }
                },
                Driver::Task(answered) => self.reply = Some(answered),
                Driver::CallerPolling { .. } => return Poll::Pending,
            }
        }
        let answer = poll_reply::<E>(&mut self.reply, context);
        self.over = answer.is_ready();
        answer
    }
}

impl<E: Executor> Drop for CallerDriven<E> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let shared = &self.shared;
        let mut state = shared.state();
        state
            .caller_driven
            .retain(|it| !Arc::ptr_eq(it, &self.operation));
        drop(state);
        let reply = match self.operation.take() {
            // Nobody listens: what it brings is undone.
            Driver::Caller(flight, _) => return spawn_rest(shared, flight, oneshot::channel().0),
            Driver::Task(answered) => Some(answered),
            Driver::CallerPolling { .. } => self.reply.take(),
        };
        if let Some(reply) = reply {
            undo_unreceived(shared, reply);
        }
    }
}

/// An operation that waits for its batch.
pub(super) struct QueuedOperation<'a, E: Executor> {
    // Borrowed: a count that all callers share is what they would get in each other's way with.
    shared: &'a Arc<BatcherShared<E>>,
    reply: Option<oneshot::Receiver<Answered<E>>>,
}

impl<'a, E: Executor> QueuedOperation<'a, E> {
    pub(super) fn new(
        shared: &'a Arc<BatcherShared<E>>,
        reply: oneshot::Receiver<Answered<E>>,
    ) -> Self {
        Self {
            shared,
            reply: Some(reply),
        }
    }
}

impl<E: Executor> Future for QueuedOperation<'_, E> {
    type Output = Result<E::Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll_reply::<E>(&mut self.reply, context)
    }
}

impl<E: Executor> Drop for QueuedOperation<'_, E> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            undo_unreceived(self.shared, reply);
        }
    }
}

/// Waits for what a task says; nothing more comes after that.
fn poll_reply<E: Executor>(
    reply: &mut Option<oneshot::Receiver<Answered<E>>>,
    context: &mut Context<'_>,
) -> Poll<Result<E::Answer>> {
    let Some(waiting) = reply else {
        return Poll::Pending;
    };
    Pin::new(waiting).poll(context).map(|answered| {
        *reply = None;
        match answered {
            Ok((_, answer)) => answer,
            Err(_) => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the task that sent the batch was destroyed before the answer came",
            )),
        }
    })
}

/// The caller goes away: whoever has the answer, now or later, undoes it.
fn undo_unreceived<E: Executor>(
    shared: &Arc<BatcherShared<E>>,
    mut reply: oneshot::Receiver<Answered<E>>,
) {
    reply.close();
    // The answer may have come between the last poll and now.
    if let Ok((op, Ok(answer))) = reply.try_recv() {
        shared.undo(&op, &answer);
    }
}
