//! The two ways to drive operations: the caller's own future drives a lone operation, and a task
//! drives the batches of the queue.
//!
//! This module owns the permits to have a batch in flight. Invariant: the owner of a permit sends
//! the next batch of the queue or gives the permit back, also when its task is destroyed. An
//! operation in flight is always driven to its end: by its caller, or by a task after the caller
//! went away or when other operations wait for it.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::oneshot};

use distlock_core::{Error, ErrorKind, Result, sync::Mutex};

use super::{
    executor::{Executor, Failure, Reply},
    queue::{Answered, Batch, ClaimedKeys},
    shared::{BatcherShared, Outcome, reply_of},
};

/// The permit to have one batch in flight. The owner of a permit sends batches until the queue is
/// empty, and then gives the permit back.
pub(super) struct FlightPermit<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    /// Keys of the batch in flight.
    claimed: ClaimedKeys,
    /// Keys of the batch whose answers are being handed out, while another batch is in flight.
    unanswered: ClaimedKeys,
    /// The number of tasks with this permit that were destroyed before their end.
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

    /// Starts a task that sends the queue.
    pub(super) fn spawn(self) {
        let shared = Arc::clone(&self.shared);
        // After a task was destroyed, its runtime may be gone. So the new task runs on the calling
        // runtime.
        let home = shared.home.clone().filter(|_| self.tasks_lost == 0);
        let handle = home.or_else(|| Handle::try_current().ok());
        match handle {
            Some(handle) => drop(handle.spawn(self.send_queue())),
            None => drop(self),
        }
    }

    /// Ends an operation that its caller drove, and frees its keys. With an empty queue, the permit
    /// is given back. Otherwise a new task takes the permit and sends the queue, so that the caller
    /// gets its answer without waiting for the queue.
    fn give_back_or_spawn(mut self, operation: &Arc<CallerOperation<E>>) {
        let claimed = mem::take(&mut self.claimed);
        let mut state = self.shared.state.lock();
        state
            .caller_driven
            .retain(|other| !Arc::ptr_eq(other, operation));
        state.queue.unclaim(&claimed);
        // The look at the queue and the return of the permit are one step under the mutex. An
        // operation that is queued in between would count this permit as running, start no task,
        // and wait for the next submit.
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

    /// Sends batches until the queue is empty, and hands out their answers.
    async fn send_queue(mut self) {
        let shared = Arc::clone(&self.shared);
        // The last batch with its answers, which are not handed out yet.
        let mut answered: Option<(Batch<E>, Outcome<E>)> = None;
        loop {
            let next = match &answered {
                Some((batch, outcome)) => self.take_ahead(batch, outcome),
                None => {
                    // Callers that were just answered submit their next operations. The yield lets
                    // them run first, so that these operations join the next batch and not the
                    // batch after that.
                    tokio::task::yield_now().await;
                    self.take_next()
                }
            };
            let Some(mut batch) = next else {
                let Some((batch, outcome)) = answered.take() else {
                    return;
                };
                // The keys are freed after the hand-out, which queues the undo of an answer without
                // a receiver. In the reverse order, an operation with the same key could be sent
                // before that undo, and the undo would end its grant.
                shared.hand_out(batch, outcome);
                self.unclaim();
                continue;
            };
            // The permit keeps the keys of both batches: if its task is destroyed at an await
            // below, the drop frees them all.
            self.unanswered = mem::replace(&mut self.claimed, mem::take(&mut batch.claimed));
            let outcome = {
                let mut flight = pin!(shared.executor.run(batch.kind, &batch.ops));
                let mut first = Poll::Pending;
                if let Some((batch, outcome)) = answered.take() {
                    // The first poll sends the new batch. The answers of the last batch are handed
                    // out while the store works.
                    first = poll_fn(|context| Poll::Ready(flight.as_mut().poll(context))).await;
                    shared.hand_out(batch, outcome);
                    self.free_answered_keys();
                }
                match first {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => flight.await,
                }
            };
            // An answer shows that this runtime lives. So if a later batch panics, the permit
            // starts a task again, instead of giving up the queue.
            self.tasks_lost = 0;
            answered = Some((batch, outcome));
        }
    }

    /// Takes the next batch before the answers of the last batch are handed out. `None` if the
    /// executor does not want that, if too few operations wait, or if an undo or a single operation
    /// must be sent first.
    fn take_ahead(&mut self, answered: &Batch<E>, outcome: &Outcome<E>) -> Option<Batch<E>> {
        let Ok(replies) = outcome else { return None };
        let mut state = self.shared.state.lock();
        if !state.queue.sends_ahead(answered.ops.len())
            || answered.is_single
            || answered.lost_a_caller()
            || replies.iter().any(|reply| matches!(reply, Reply::Alone))
        {
            return None;
        }
        state
            .queue
            .take_ahead(&self.shared.executor, &mut self.claimed)
    }

    /// Frees the keys of the batch whose answers have been handed out. Starts a task for operations
    /// that waited for these keys, if a permit is free.
    fn free_answered_keys(&mut self) {
        let unanswered = mem::take(&mut self.unanswered);
        let mut state = self.shared.state.lock();
        state.queue.unclaim(&unanswered);
        if !state.queue.is_empty() {
            self.shared.start_queue(state, &[]);
        }
    }

    /// Takes the next batch. Without a next batch, gives the permit back before the mutex is
    /// unlocked, so that no operation is queued in between without a task.
    fn take_next(&mut self) -> Option<Batch<E>> {
        let mut state = self.shared.state.lock();
        // A permit above the limit was taken for a long queue, and is given back when the queue is
        // short. But the last permit of a task is kept: the callers that drive their own operations
        // do not send the queue.
        let (running, own_and_callers) = (state.running, state.caller_driven.len() + 1);
        let queue_is_long = state.queue.len() >= self.shared.undivided;
        let batch =
            if running > self.shared.in_flight && running > own_and_callers && !queue_is_long {
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
        let mut state = self.shared.state.lock();
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
        // of the batch in flight get an error, because their channels are closed. Another task
        // sends the queue, or the callers in the queue get an error below.
        self.unclaim();
        self.given_back = true;
        if self.tasks_lost == 0 {
            Self::with(&self.shared, ClaimedKeys::default(), 1).spawn();
            return;
        }
        let stranded = {
            let mut state = self.shared.state.lock();
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

/// An operation that is sent at once, and that its caller drives. A task takes the operation over
/// when the caller goes away, and also when other operations wait for it, because a caller may stop
/// polling for any time.
pub(super) struct CallerDriven<E: Executor> {
    shared: Arc<BatcherShared<E>>,
    operation: Arc<CallerOperation<E>>,
    /// The channel of the answer, after a task has taken the operation over.
    reply: Option<oneshot::Receiver<Answered<E>>>,
    ended: bool,
}

/// The shared state of an operation that its caller drives, or drove before a task took it over.
pub(super) struct CallerOperation<E: Executor> {
    /// The key of the operation, which no other batch may have while the operation is in flight.
    key: ClaimedKeys,
    // A blocking mutex, which is held only to read and to swap the value.
    driven: Mutex<DrivenBy<E>>,
}

enum DrivenBy<E: Executor> {
    /// The caller drives the operation. The waker wakes the caller when a task takes the operation
    /// over.
    Caller(Flight<E>, Option<Waker>),
    /// The caller polls the operation at this moment. The flag says whether a task must take the
    /// operation over after the poll.
    CallerPolling { task_wanted: bool },
    /// A task drives the operation, and the caller has not received this channel yet.
    Task(oneshot::Receiver<Answered<E>>),
}

impl<E: Executor> CallerOperation<E> {
    /// Whether an operation with this key has to wait for this operation.
    pub(super) fn has_key(&self, key: u64) -> bool {
        self.key.contains(key)
    }

    /// Starts a task that drives the operation from now on, because other operations wait for it.
    pub(super) fn take_over(&self, shared: &Arc<BatcherShared<E>>) {
        let mut driven = self.driven.lock();
        match mem::replace(&mut *driven, DrivenBy::CallerPolling { task_wanted: true }) {
            DrivenBy::Caller(flight, waker) => {
                let (reply, answered) = oneshot::channel();
                *driven = DrivenBy::Task(answered);
                drop(driven);
                spawn_rest(shared, flight, reply);
                // The woken caller finds the channel, and waits for the answer of the task.
                waker.into_iter().for_each(Waker::wake);
            }
            // The caller is inside a poll on another thread, and a running future cannot be moved.
            // The caller finds the flag after that poll, and starts the task itself.
            DrivenBy::CallerPolling { .. } => {}
            by_task @ DrivenBy::Task(_) => *driven = by_task,
        }
    }

    /// Takes the operation out, so that its caller can poll it.
    fn take(&self) -> DrivenBy<E> {
        mem::replace(
            &mut *self.driven.lock(),
            DrivenBy::CallerPolling { task_wanted: false },
        )
    }
}

/// Starts a task that drives an operation to its end, and then sends the queue.
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
        // After the undo is queued, for the reason that `send_queue` gives.
        permit.unclaim();
        permit.send_queue().await;
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
                driven: Mutex::new(DrivenBy::Caller(Box::pin(flight), None)),
            }),
            reply: None,
            ended: false,
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
            // The operation is taken out during the poll. So a panic drops the operation, and it is
            // not polled again.
            match self.operation.take() {
                DrivenBy::Caller(mut flight, waker) => match flight.as_mut().poll(context) {
                    Poll::Ready((permit, _, answer)) => {
                        self.ended = true;
                        permit.give_back_or_spawn(&self.operation);
                        return Poll::Ready(answer);
                    }
                    Poll::Pending => {
                        let mut driven = self.operation.driven.lock();
                        // `take_over` may have set the flag during the poll. Then nobody else
                        // drives the operation, and operations wait for it that this caller may
                        // never serve: it may not be polled again.
                        if matches!(*driven, DrivenBy::CallerPolling { task_wanted: false }) {
                            let waker = waker.filter(|it| it.will_wake(context.waker()));
                            let waker = waker.unwrap_or_else(|| context.waker().clone());
                            *driven = DrivenBy::Caller(flight, Some(waker));
                            return Poll::Pending;
                        }
                        drop(driven);
                        let (reply, answered) = oneshot::channel();
                        spawn_rest(&self.shared, flight, reply);
                        self.reply = Some(answered);
                    }
                },
                DrivenBy::Task(answered) => self.reply = Some(answered),
                DrivenBy::CallerPolling { .. } => return Poll::Pending,
            }
        }
        let answer = poll_reply::<E>(&mut self.reply, context);
        self.ended = answer.is_ready();
        answer
    }
}

impl<E: Executor> Drop for CallerDriven<E> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state
            .caller_driven
            .retain(|it| !Arc::ptr_eq(it, &self.operation));
        drop(state);
        // A thread that took the operation out of the list before may call `take_over` only now. It
        // finds `CallerPolling`, and changes nothing.
        let reply = match self.operation.take() {
            // The channel has no receiver, so the task undoes the answer.
            DrivenBy::Caller(flight, _) => return spawn_rest(shared, flight, oneshot::channel().0),
            DrivenBy::Task(answered) => Some(answered),
            DrivenBy::CallerPolling { .. } => self.reply.take(),
        };
        if let Some(reply) = reply {
            undo_unreceived(shared, reply);
        }
    }
}

/// An operation that waits for its batch.
pub(super) struct QueuedOperation<'a, E: Executor> {
    // A reference, because all callers would contend for the reference count of an `Arc`.
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

/// Polls for the answer of a task. After the answer, the result is always `Pending`.
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

/// Closes the channel of a caller that goes away. An answer that is already in the channel is
/// undone here, and a later answer by the task that cannot send it.
fn undo_unreceived<E: Executor>(
    shared: &Arc<BatcherShared<E>>,
    mut reply: oneshot::Receiver<Answered<E>>,
) {
    reply.close();
    // The answer may have been sent between the last poll and the close of the channel.
    if let Ok((op, Ok(answer))) = reply.try_recv() {
        shared.undo(&op, &answer);
    }
}
