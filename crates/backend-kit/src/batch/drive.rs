//! The drivers of batches: a caller's own future for a lone operation, a task for a queue.
//!
//! This module owns the permits to have a batch in flight. Invariant: a permit keeps the queue
//! moving or is given back, also when its task is destroyed. An operation in flight is always
//! driven to its end: by its caller, or by a task once its caller stops polling or others wait for
//! it.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::oneshot};

use distlock_core::{Error, ErrorKind, Result};

use super::{
    executor::{Executor, Failure, Reply},
    handout::{Outcome, hand_out, reply_of},
    queue::{Answered, Batch, ClaimedKeys},
    shared::BatcherShared,
};

/// The permit to have one batch in flight. Its owner keeps the queue moving, or gives it back.
pub(super) struct FlightPermit<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    /// Keys of the batch in flight.
    claimed: ClaimedKeys,
    /// Keys of the batch whose answers are being handed out, while another one is in flight.
    unanswered: ClaimedKeys,
    /// How many tasks with this permit were destroyed before their end.
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

    /// Starts a task that works on the queue.
    pub(super) fn spawn(self) {
        let shared = Arc::clone(&self.shared);
        // After a task was destroyed, its runtime may be gone. The present one is used instead.
        let home = shared.home.clone().filter(|_| self.tasks_lost == 0);
        let handle = home.or_else(|| Handle::try_current().ok());
        match handle {
            Some(handle) => drop(handle.spawn(self.work())),
            None => drop(self),
        }
    }

    /// Ends an operation that its caller drove, and frees its keys. With an empty queue, the permit
    /// is given back. Otherwise a task with this permit works on the queue, so the caller gets its
    /// answer at once.
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
        // The batch that has its answers, which are not handed out yet.
        let mut back: Option<(Batch<E>, Outcome<E>)> = None;
        loop {
            let next = match &back {
                Some((batch, outcome)) => self.take_ahead(batch, outcome),
                None => {
                    // Callers that were just answered submit their next operation. After one turn
                    // of the scheduler, it joins this batch instead of the one after it.
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
                    // The first poll sends it. The answers are handed out while the store works.
                    first = poll_fn(|context| Poll::Ready(flight.as_mut().poll(context))).await;
                    hand_out(&shared, batch, outcome).await;
                    self.free_answered_keys();
                    if shared.in_steps {
                        // Callers that were just answered run first. Otherwise each step of the
                        // store would wake a thread for its waiter.
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

    /// The next batch, to be sent before the answers of the last one are handed out. `None` unless
    /// the executor wants that, enough operations wait, and no answer must be undone or sent singly
    /// first.
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

    /// Frees the keys of the batch whose answers have been handed out, and starts a task for
    /// operations that waited for them, if a permit is free.
    fn free_answered_keys(&mut self) {
        let unanswered = mem::take(&mut self.unanswered);
        let mut state = self.shared.state();
        state.queue.unclaim(&unanswered);
        if !state.queue.is_empty() {
            self.shared.start_queue(state, &[]);
        }
    }

    /// The next batch. Without one, it gives the permit back under the same lock.
    fn take_next(&mut self) -> Option<Batch<E>> {
        let mut state = self.shared.state();
        // A permit above the limit was for a long queue, and is given back once the queue is short.
        // The only permit of a task is kept: callers that drive their own operations must not be
        // left alone with the queue.
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
        // The task was destroyed: its runtime was shut down, or the executor panicked. The callers
        // of the batch in flight learn it from the closed channel. Another task works on the queue,
        // or its callers get an error below.
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

/// An operation that is sent at once, and that its caller drives. A task takes it over when the
/// caller goes away, and also when other operations wait for it, because a caller may stop polling
/// for any time.
pub(super) struct CallerDriven<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    operation: Arc<CallerOperation<E>>,
    /// The answer's channel, once a task has taken the operation over.
    reply: Option<oneshot::Receiver<Answered<E>>>,
    over: bool,
}

/// The place of an operation that its caller drives, or drove before.
pub(super) struct CallerOperation<E: Executor> {
    /// The key that no other batch may have meanwhile.
    key: ClaimedKeys,
    // A std mutex: it is held to read and to swap only.
    driven: Mutex<Driver<E>>,
}

enum Driver<E: Executor> {
    /// Its caller drives it, and is woken through this waker when a task takes it over.
    Caller(Flight<E>, Option<Waker>),
    /// Its caller polls it at this moment. The flag says whether a task takes it over afterwards.
    CallerPolling { task_wanted: bool },
    /// A task drives it, and the caller does not know that yet.
    Task(oneshot::Receiver<Answered<E>>),
}

impl<E: Executor> CallerOperation<E> {
    /// Whether an operation of this key has to wait for this one.
    pub(super) fn has_key(&self, key: u64) -> bool {
        self.key.contains(key)
    }

    /// Has a task drive the operation from now on, because others wait for it.
    pub(super) fn take_over(&self, shared: &Arc<BatcherShared<E>>) {
        let mut driven = self.driven();
        match mem::replace(&mut *driven, Driver::CallerPolling { task_wanted: true }) {
            Driver::Caller(flight, waker) => {
                let (reply, answered) = oneshot::channel();
                *driven = Driver::Task(answered);
                drop(driven);
                spawn_rest(shared, flight, reply);
                // Woken, the caller waits for the task's answer instead.
                waker.into_iter().for_each(Waker::wake);
            }
            Driver::CallerPolling { .. } => {}
            by_task @ Driver::Task(_) => *driven = by_task,
        }
    }

    /// Takes the operation out, for its caller to poll.
    fn take(&self) -> Driver<E> {
        mem::replace(
            &mut *self.driven(),
            Driver::CallerPolling { task_wanted: false },
        )
    }

    fn driven(&self) -> MutexGuard<'_, Driver<E>> {
        // No code panics while it holds the mutex.
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a task that drives an operation to its end, and then works on the queue.
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
            // Taken out while it is polled: a panic then drops it, and it is not polled again.
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
            // Its answer has no receiver, so the task undoes it.
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
    // Borrowed: all callers would contend for the reference count of an `Arc`.
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

/// Waits for the answer from a task. It never resolves a second time.
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

/// Has the answer of a caller that goes away undone, now or when it comes.
fn undo_unreceived<E: Executor>(
    shared: &Arc<BatcherShared<E>>,
    mut reply: oneshot::Receiver<Answered<E>>,
) {
    reply.close();
    // The answer may have come between the last poll and the close of the channel.
    if let Ok((op, Ok(answer))) = reply.try_recv() {
        shared.undo(&op, &answer);
    }
}
