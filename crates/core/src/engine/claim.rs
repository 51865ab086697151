//! A claim: the part of one acquire that asks the store, waits, and asks again.
//!
//! This module owns every request that one acquire sends. Invariant: a request that may have been
//! granted is either answered, or counted as unanswered until it is undone. A claim may be dropped
//! at any await: the keeper then undoes the request in flight. A claim never has two attempts in
//! flight, because the store could grant both.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    clock::Moment,
    contract::{AcquireRequest, Attempt, Contender, Grant, Lease},
    engine::{
        acquire::{WantedLock, WonLock, before_deadline, store_unreachable},
        bounded::{Wait, bounded},
        clean_up::{Abandoned, InFlight, InFlightAnswer, clean_up, leave},
        lifecycle::closed_error,
        local_queue::LocalTurn,
        meters::{Meters, Waiting},
        outage::{Outage, QUICK_RETRIES, pause_after},
        parts::LockerParts,
        store_queue::StorePlace,
    },
    types::{
        error::{Error, ErrorKind, Result},
        ident::{HolderInfo, OwnerId},
    },
};

/// The longest time for which a process lets other processes go first after a run of hand-overs.
const STEP_ASIDE: Duration = Duration::from_millis(50);

/// One task's acquire at the store. The drop of a claim has the keeper undo every request that the
/// claim has started.
pub(crate) struct Claim {
    parts: Arc<LockerParts>,
    request: AcquireRequest,
    wait: Wait,
    gives_up: bool,
    meters: Arc<Meters>,
    turn: Option<LocalTurn>,
    /// The place among the contenders of this process. The place replaces `turn` when this task has
    /// joined a store queue.
    store_place: Option<StorePlace>,
    contender: Option<Box<dyn Contender>>,
    /// The operation in flight, and the moment at which it was sent. The operation borrows nothing
    /// from the claim, so that the keeper can finish the operation after the claim was dropped.
    in_flight: Option<(InFlight, Moment)>,
    /// The number of attempts without an answer. Each of them may have been granted, or may still
    /// be granted.
    unanswered: u32,
    /// Whether the last attempt has no answer, so that the next one finds out what became of it.
    asks_again: bool,
    /// The owner of a grant that is being released, if it is not the owner of the request
    /// ([`Grant::owner`]). Set until the store has confirmed the release.
    other_owner: Option<OwnerId>,
    /// Whether this task had to wait for another holder or contender.
    waited: bool,
    /// The count of this task among those that wait, in the local queue or at the store.
    waiting: Option<Waiting>,
}

impl Claim {
    pub(crate) fn new(
        parts: &Arc<LockerParts>,
        wanted: &WantedLock,
        turn: Option<LocalTurn>,
        waiting: Option<Waiting>,
        has_unanswered: bool,
    ) -> Self {
        Self {
            parts: Arc::clone(parts),
            request: wanted.request.clone(),
            wait: wanted.wait,
            gives_up: wanted.gives_up,
            meters: Arc::clone(&wanted.meters),
            turn,
            store_place: None,
            contender: None,
            in_flight: None,
            unanswered: u32::from(has_unanswered),
            asks_again: false,
            other_owner: None,
            waited: false,
            waiting,
        }
    }

    /// Asks the store, waits, and asks again. Returns `Busy` when the wait has ended. With a wait
    /// of zero, the claim makes one attempt.
    pub(crate) async fn contend(mut self, step_aside: bool) -> Result<Attempt<WonLock>> {
        let waits = !self.time_left().is_zero();
        // An attempt without a wait cannot join the queue, so it gives way by not asking. A request
        // whose outcome is unknown must still be asked about.
        if !waits && self.unanswered == 0 && self.parts.gives_way(&self.request.name) {
            return Ok(Attempt::Busy(None));
        }
        // With a store that keeps a queue, an attempt before joining would only cost time, and
        // other contenders would join ahead. Only a claim that can join asks whether it lets others
        // go first: the answer `true` resets the count of the name.
        // A fair claim joins at any rate: only its place in the queue tells whether it may ask.
        let mut join = self.request.in_order
            || waits
                && (self.parts.queues_at_the_store()
                    || step_aside
                    || self.parts.lets_others_go_first(&self.request.name));
        let mut aside = step_aside && !self.request.in_order;
        let mut outage = Outage::default();
        loop {
            // An attempt without an answer may have been granted. A claim that waited for its place
            // then would wait for its own lease.
            if !join && !self.asks_again && !self.is_first() {
                let left = self.time_left();
                if !left.is_zero() {
                    self.note_wait();
                    self.wait(left).await?;
                    self.parts.lifecycle.check_open()?;
                    continue;
                }
                if self.request.in_order {
                    self.leave_store_queue().await;
                    return Ok(Attempt::Busy(None));
                }
            }
            let answer = self.next_answer(join).await;
            if matches!(answer, Ok((_, Some(_)))) {
                self.asks_again = false;
            }
            match answer {
                Ok((_, None)) => {
                    // The store knows this contender now. From here on each release wakes the
                    // contender, so no release between the next attempt and the wait is missed.
                    join = false;
                    if std::mem::take(&mut aside) {
                        self.wait(STEP_ASIDE).await?;
                    }
                    continue;
                }
                Ok((sent, Some(Attempt::Acquired(grant)))) => {
                    // The locker may have been closed while the request was in flight. The keeper
                    // would not renew the lease any more.
                    if self.parts.lifecycle.is_closed() {
                        let _ = self.give_back(&grant).await;
                        return Err(closed_error());
                    }
                    if let Some(granted) = before_deadline(self.parts.timing.now(), &grant, sent) {
                        outage.store_answered(&self.request.name);
                        return Ok(Attempt::Acquired(self.into_won_lock(grant, sent, granted)));
                    }
                    self.refuse_late_grant(&grant, &mut outage).await?;
                }
                Ok((_, Some(Attempt::Busy(holder)))) => {
                    outage.store_answered(&self.request.name);
                    self.note_holder(holder.as_ref());
                    let left = self.time_left();
                    if left.is_zero() {
                        self.leave_store_queue().await;
                        return Ok(Attempt::Busy(holder));
                    }
                    // A wait without a contender would miss a release between the answer and the
                    // wait.
                    if self.contender.is_none() {
                        join = true;
                        continue;
                    }
                    if !self.waited {
                        let (lock, holder) = (&self.request.name, holder.as_ref());
                        let holder = holder.map(|it| it.holder.as_str());
                        tracing::debug!(?lock, holder, "waits for the holder");
                    }
                    self.note_wait();
                    self.wait(left.min(time_to_expiry(holder.as_ref()))).await?;
                }
                Err(error) => self.count_failure(error, !join, &mut outage).await?,
            }
            self.parts.lifecycle.check_open()?;
        }
    }

    /// The time for which the caller still waits for a busy lock.
    fn time_left(&self) -> Duration {
        self.wait.left(self.parts.timing.now())
    }

    /// Waits for the answer to the operation in flight. If no operation is in flight, sends a new
    /// one first: a request to join the store queue, or an attempt.
    async fn next_answer(&mut self, join: bool) -> Result<(Moment, Option<Attempt<Grant>>)> {
        if self.in_flight.is_some() {
            // No second attempt is sent: the store could grant both.
            let now = self.parts.timing.now();
            self.await_answer(now, false).await
        } else if join {
            self.join_store_queue().await
        } else {
            self.ask().await
        }
    }

    /// Notes that this task waits for another holder or contender.
    fn note_wait(&mut self) {
        self.waited = true;
        self.waiting
            .get_or_insert_with(|| self.meters.begin_to_wait());
    }

    /// Notes the holder in the local queue, for the other waiters of this process.
    fn note_holder(&self, holder: Option<&HolderInfo>) {
        if let Some(turn) = &self.turn {
            turn.note_holder(holder);
        } else if self.store_place.is_some() {
            self.parts.queues.note_holder(&self.request.name, holder);
        }
    }

    /// Releases a grant whose answer came after its deadline, and pauses.
    async fn refuse_late_grant(&mut self, grant: &Grant, outage: &mut Outage) -> Result<()> {
        let given_back = self.give_back(grant).await;
        let error = self.late_grant_error(given_back.as_ref().err());
        let once_more = outage.failures() == 0 && given_back.is_ok();
        self.pause_after_failure(error, outage, once_more).await
    }

    /// Counts a failed request as unanswered if its outcome is unknown, and pauses. `attempted`
    /// says whether the request was an attempt, and not one to join the store queue.
    async fn count_failure(
        &mut self,
        error: Error,
        attempted: bool,
        outage: &mut Outage,
    ) -> Result<()> {
        // An operation that is still in flight may still be answered. The clean-up counts that
        // operation if the claim ends first.
        let unknown = !error.did_not_happen() && self.in_flight.is_none();
        self.unanswered += u32::from(unknown);
        self.asks_again |= unknown && attempted;
        // The next attempt, with the same owner, finds out whether this attempt was granted.
        let once_more = outage.failures() == 0 && unknown;
        self.pause_after_failure(error, outage, once_more).await
    }

    /// Pauses after an attempt that failed. Returns the caller's error when there is no next
    /// attempt: the failure is permanent, the wait has ended (`once_more` allows one more attempt
    /// then), or the caller does not wait for an unreachable store.
    async fn pause_after_failure(
        &mut self,
        error: Error,
        outage: &mut Outage,
        once_more: bool,
    ) -> Result<()> {
        if !error.is_retryable() {
            return Err(error);
        }
        let clock = Arc::clone(self.parts.timing.clock());
        let now = clock.now();
        let left = self.wait.left(now);
        let hangs = self.in_flight.is_some();
        outage.failed(&error, &self.request.name);
        if self.gives_up && (hangs || outage.failures() > QUICK_RETRIES) {
            return Err(error);
        }
        let beyond = self.wait.left_at_store(now);
        if beyond.is_zero() || (left.is_zero() && !once_more) {
            return Err(self.error_of_ended_wait(error));
        }
        self.parts.queues.note_outage(&self.request.name, &error);
        if hangs {
            return Ok(());
        }
        let pause = if self.gives_up {
            // This caller wants the error soon, and does not wait for the pace of the others.
            self.parts.timing.jitter(pause_after(outage.failures()))
        } else {
            outage.pause(&error, &self.parts.timing)
        };
        let pause = pause.min(beyond);
        // The pause ends when the wait ends at the latest, so that the last attempt is made at that
        // moment.
        let pause = if left.is_zero() {
            pause
        } else {
            pause.min(left)
        };
        let mut closed = self.parts.lifecycle.closing();
        tokio::select! {
            biased;
            () = clock.sleep(pause) => Ok(()),
            _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        }
    }

    /// The error of a wait that ended while the store was unreachable. An unknown outcome becomes
    /// `Unavailable` here: the caller does not hold the lock, because the clean-up releases a grant
    /// that still arrives.
    fn error_of_ended_wait(&self, error: Error) -> Error {
        match (self.wait.asked, error.kind()) {
            (Some(asked), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
                if !asked.is_zero() && !self.gives_up =>
            {
                store_unreachable(asked, error)
            }
            _ => error,
        }
    }

    /// The error of a grant whose answer came after its deadline. A release of this grant without a
    /// confirmation may still reach the store, and would end the next grant of the same owner. So
    /// the next attempt then uses a new owner.
    fn late_grant_error(&mut self, unconfirmed: Option<&Error>) -> Error {
        let ttl = self.request.ttl;
        let late = format!("the store took longer to grant than the lease of {ttl} lasts");
        let Some(error) = unconfirmed else {
            return Error::new(ErrorKind::Unavailable, late);
        };
        self.have_keeper_undo();
        self.request.owner = OwnerId::new();
        let late = format!("{late}, and did not confirm that the grant was given back");
        Error::new(ErrorKind::Unavailable, late).caused_by(error.clone())
    }

    /// Makes one attempt at the store, with the owner of the request.
    async fn ask(&mut self) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let operation: InFlight = if let Some(mut contender) = self.contender.take() {
            Box::pin(async move {
                let answer = contender.attempt().await.map(Some);
                InFlightAnswer {
                    contender: Some(contender),
                    answer,
                }
            })
        } else {
            let (parts, request) = (Arc::clone(&self.parts), self.request.clone());
            Box::pin(async move {
                let answer = parts.backend.try_acquire(&request).await.map(Some);
                InFlightAnswer {
                    contender: None,
                    answer,
                }
            })
        };
        let now = self.send(operation);
        self.await_answer(now, false).await
    }

    /// Joins the store queue, or subscribes to the store's notifications (see
    /// `DistLock::contend`).
    async fn join_store_queue(&mut self) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let (parts, request) = (Arc::clone(&self.parts), self.request.clone());
        let operation: InFlight = Box::pin(async move {
            match parts.backend.contend(&request).await {
                Ok(contender) => InFlightAnswer {
                    contender: Some(contender),
                    answer: Ok(None),
                },
                Err(error) => InFlightAnswer {
                    contender: None,
                    answer: Err(error),
                },
            }
        });
        let joins_store_queue = self.parts.queues_at_the_store();
        let now = self.send(operation);
        self.await_answer(now, joins_store_queue).await
    }

    /// Whether an attempt may succeed: there is no contender yet, or no other contender is ahead of
    /// this one in the store queue.
    fn is_first(&self) -> bool {
        let contender = self.contender.as_ref();
        contender.is_none_or(|contender| contender.is_first())
    }

    /// Puts an operation in flight, and returns the present moment as the moment of sending. The
    /// first poll of the operation sends its request.
    fn send(&mut self, operation: InFlight) -> Moment {
        let now = self.parts.timing.now();
        self.in_flight = Some((operation, now));
        now
    }

    /// Waits, from `now` on, for the answer to the operation in flight. With `joins_store_queue`,
    /// the next task of this process may join the store queue after the first poll of this
    /// operation. On an open connection that poll has sent the request, so both requests are in
    /// flight together.
    async fn await_answer(
        &mut self,
        now: Moment,
        joins_store_queue: bool,
    ) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let clock = Arc::clone(self.parts.timing.clock());
        // After an earlier wait without an answer this is the same operation. Its lease counts from
        // the moment at which it was sent, not from this wait.
        let sent = self.in_flight.as_ref().map_or(now, |(_, sent)| *sent);
        // A grant that comes later than its TTL is useless, and a store without an answer for 5 s
        // counts as unreachable.
        let limit = self
            .request
            .ttl
            .duration()
            .clamp(Duration::from_secs(1), Duration::from_secs(5))
            .min(self.wait.left_at_store(now));
        let answered = bounded(&*clock, limit, async {
            let answered = poll_fn(|context| {
                let answered = self.poll_in_flight(context);
                // Not before the poll: the next task could send its request to join first, and the
                // store would serve the two in the reverse order.
                if joins_store_queue && let Some(turn) = self.turn.take() {
                    let name = &self.request.name;
                    self.store_place = Some(self.parts.store_queues.join(name, turn));
                }
                answered
            });
            Ok(answered.await)
        })
        .await?;
        self.contender = answered.contender;
        answered.answer.map(|answer| (sent, answer))
    }

    /// Polls the operation in flight once. The field is empty and the operation is counted as
    /// unanswered during the poll. So an operation that panics is not polled again, and stays
    /// counted.
    fn poll_in_flight(&mut self, context: &mut Context<'_>) -> Poll<InFlightAnswer> {
        let Some((mut operation, sent)) = self.in_flight.take() else {
            return Poll::Pending;
        };
        self.unanswered += 1;
        let answered = operation.as_mut().poll(context);
        self.unanswered -= 1;
        if answered.is_pending() {
            self.in_flight = Some((operation, sent));
        }
        answered
    }

    /// Waits for a notification or the time of the next poll, for `at_most` at most. Returns an
    /// error when the locker is closed.
    async fn wait(&mut self, at_most: Duration) -> Result<()> {
        let Some(contender) = &mut self.contender else {
            return Ok(());
        };
        let mut closed = self.parts.lifecycle.closing();
        tokio::select! {
            biased;
            () = contender.wait(at_most) => Ok(()),
            _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
        }
    }

    /// Removes this task's contender from the store queue.
    async fn leave_store_queue(&mut self) {
        let Some(contender) = self.contender.take() else {
            return;
        };
        let operation: InFlight = Box::pin(async move {
            let answer = contender.leave().await.map(|()| None);
            InFlightAnswer {
                contender: None,
                answer,
            }
        });
        let now = self.send(operation);
        if let Err(error) = self.await_answer(now, false).await {
            tracing::debug!(%error, lock = ?self.request.name, "leaving the queue failed");
            // A store that grants in the order of its queue may grant the lock to an entry that
            // stays there.
            self.unanswered += 1;
        }
    }

    /// Releases a grant that this claim cannot use.
    async fn give_back(&mut self, grant: &Grant) -> Result<()> {
        // Noted before the release is sent: without an answer, this owner may still hold the lock.
        self.unanswered += u32::from(grant.owner.is_none());
        self.other_owner = grant.owner;
        let owner = grant.owner_after(&self.request);
        let lease = Lease::new(self.request.name.clone(), owner, None);
        let clock = &**self.parts.timing.clock();
        let limit = Duration::from_secs(1).min(self.wait.left_at_store(clock.now()));
        bounded(clock, limit, self.parts.backend.release(&lease)).await?;
        self.unanswered -= u32::from(grant.owner.is_none());
        self.other_owner = None;
        Ok(())
    }

    /// Ends the claim with a lock. After that the drop of the claim has nothing to undo.
    fn into_won_lock(mut self, grant: Grant, sent: Moment, granted: Moment) -> WonLock {
        // With a store that grants in the order of its queue, the contender's place has become the
        // lock and must stay. Otherwise the contender leaves in the background, and only a close
        // waits for that.
        if let Some(contender) = self.contender.take()
            && !self.parts.queues_at_the_store()
        {
            let (clock, name) = (
                Arc::clone(self.parts.timing.clock()),
                self.request.name.clone(),
            );
            let leaving = async move { drop(leave(&*clock, contender, &name).await) };
            self.parts.keeper.spawn_awaited(leaving);
        }
        if self.waited {
            self.parts
                .contended
                .note(&self.request.name, Duration::ZERO, self.parts.timing.now());
        }
        WonLock {
            request: self.request.clone(),
            turn: self.turn.take(),
            grant,
            sent,
            granted,
            // An earlier attempt of this owner may still reach the store, and set the lease to its
            // own TTL, counted from its arrival.
            has_unanswered: std::mem::take(&mut self.unanswered) > 0,
        }
    }

    /// Passes everything that may need an undo to a clean-up job on the keeper thread.
    fn have_keeper_undo(&mut self) {
        if self.in_flight.is_none()
            && self.contender.is_none()
            && self.unanswered == 0
            && self.other_owner.is_none()
        {
            return;
        }
        let abandoned = Abandoned {
            request: self.request.clone(),
            in_flight: self.in_flight.take().map(|(operation, _)| operation),
            contender: self.contender.take(),
            store_place: self.store_place.take(),
            unanswered: std::mem::take(&mut self.unanswered),
            other_owner: self.other_owner.take(),
        };
        self.meters.abandoned.increment(1);
        self.parts
            .keeper
            .spawn_awaited(clean_up(Arc::clone(&self.parts), abandoned));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.have_keeper_undo();
    }
}

/// The remaining time of the holder's lease plus 1 ms. Without that millisecond, an attempt could
/// reach the store just before the expiry.
fn time_to_expiry(holder: Option<&HolderInfo>) -> Duration {
    let expiry = holder.and_then(|holder| holder.expires_in);
    expiry
        .unwrap_or(Duration::MAX)
        .saturating_add(Duration::from_millis(1))
}
