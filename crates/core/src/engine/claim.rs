//! A claim: one task's running acquire at the store. It asks, waits, and asks again.
//!
//! This module owns every request that one acquire sends. Invariant: a request that may have been
//! granted is either answered, or counted as unanswered until it is undone. A claim that is dropped
//! at any await leaves nothing behind: the keeper undoes what is in flight. A claim never has two
//! attempts in flight, because both could be granted.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    contract::{AcquireRequest, Attempt, Contender, Grant, HolderInfo, Lease},
    engine::{
        acquire_errors::store_away,
        bounded::{CallEnd, bounded},
        clean_up::{Abandoned, InFlight, InFlightAnswer, clean_up, leave},
        clock::Moment,
        lifecycle::closed_error,
        local_queue::LocalTurn,
        outage::{Outage, QUICK_RETRIES},
        parts::LockerParts,
        store_queue::StorePlace,
        wanted::{WantedLock, WonLock, in_time},
    },
    types::{
        error::{Error, ErrorKind, Result},
        ident::OwnerId,
    },
};

/// After a run of hand-overs, a process lets the others go first for this time at most.
const STEP_ASIDE: Duration = Duration::from_millis(50);

/// How long a claim waits.
pub(crate) enum Waiting {
    Never,
    /// `None` = without end.
    Until(Option<Moment>),
}

/// One task's acquire at the store. Its drop has every request undone that it has started.
pub(crate) struct Claim {
    parts: Arc<LockerParts>,
    request: AcquireRequest,
    wait: Option<Duration>,
    end: CallEnd,
    gives_up: bool,
    turn: Option<LocalTurn>,
    /// Instead of the turn, once this task has joined the store queue.
    store_place: Option<StorePlace>,
    contender: Option<Box<dyn Contender>>,
    /// The operation in flight, and when it was sent. It owns what it needs, so that the keeper can
    /// finish it when this claim is dropped.
    in_flight: Option<(InFlight, Moment)>,
    /// Attempts without an answer: each may have been granted, or may still be.
    unanswered: u32,
    /// Whether this task waited although it had joined the store queue.
    waited: bool,
}

impl Claim {
    pub(crate) fn new(
        parts: &Arc<LockerParts>,
        wanted: &WantedLock,
        turn: Option<LocalTurn>,
        has_unanswered: bool,
    ) -> Self {
        Self {
            parts: Arc::clone(parts),
            request: wanted.request.clone(),
            wait: wanted.wait,
            end: wanted.end,
            gives_up: wanted.gives_up,
            turn,
            store_place: None,
            contender: None,
            in_flight: None,
            unanswered: u32::from(has_unanswered),
            waited: false,
        }
    }

    /// Asks, waits, and asks again. Answers `Busy` when the wait is over.
    pub(crate) async fn contend(
        mut self,
        waiting: Waiting,
        step_aside: bool,
    ) -> Result<Attempt<WonLock>> {
        let waits = matches!(waiting, Waiting::Until(_));
        let until = match waiting {
            Waiting::Never => Some(self.parts.timing.now()),
            Waiting::Until(until) => until,
        };
        let time_left = |parts: &LockerParts| {
            until.map_or(Duration::MAX, |until| until.since(parts.timing.now()))
        };
        // Where the store keeps a queue, one attempt before joining it would only lose a place.
        let queues = self.parts.queues_at_the_store();
        let mut join = waits
            && (queues || step_aside || self.parts.lets_others_go_first(&self.request.name))
            && !time_left(&self.parts).is_zero();
        let mut aside = step_aside;
        let mut outage = Outage::default();
        loop {
            if !join && !self.is_first() {
                let left = time_left(&self.parts);
                if !left.is_zero() {
                    self.waited = true;
                    self.wait(left).await?;
                    self.parts.lifecycle.check_open()?;
                    continue;
                }
            }
            match self.next_answer(join).await {
                Ok((_, None)) => {
                    // The store knows this contender now. Every release from here on wakes it, so
                    // the next attempt misses none.
                    join = false;
                    if std::mem::take(&mut aside) {
                        self.wait(STEP_ASIDE).await?;
                    }
                    continue;
                }
                Ok((sent, Some(Attempt::Acquired(grant)))) => {
                    if self.parts.lifecycle.is_closed() {
                        let _ = self.give_back().await;
                        return Err(closed_error());
                    }
                    if let Some(granted) = in_time(self.parts.timing.now(), &grant, sent) {
                        outage.over(&self.request.name);
                        return Ok(Attempt::Acquired(self.into_won_lock(grant, sent, granted)));
                    }
                    self.refuse_late_grant(&mut outage, until).await?;
                }
                Ok((_, Some(Attempt::Busy(holder)))) => {
                    outage.over(&self.request.name);
                    self.note_holder(holder.as_ref());
                    let left = time_left(&self.parts);
                    if left.is_zero() {
                        self.leave_store_queue().await;
                        return Ok(Attempt::Busy(holder));
                    }
                    if self.contender.is_none() {
                        join = true;
                        continue;
                    }
                    self.waited = true;
                    self.wait(left.min(time_to_expiry(holder.as_ref()))).await?;
                }
                Err(error) => self.count_failure(error, &mut outage, until).await?,
            }
            self.parts.lifecycle.check_open()?;
        }
    }

    /// The answer to the operation in flight, or to a new one: joining the store queue, or an
    /// attempt.
    async fn next_answer(&mut self, join: bool) -> Result<(Moment, Option<Attempt<Grant>>)> {
        if self.in_flight.is_some() {
            // A second attempt beside the one in flight could be granted as well.
            let now = self.parts.timing.now();
            self.await_answer(now, false).await
        } else if join {
            self.join_store_queue().await
        } else {
            self.ask().await
        }
    }

    /// Notes the holder for the other waiters of this process.
    fn note_holder(&self, holder: Option<&HolderInfo>) {
        if let Some(turn) = &self.turn {
            turn.note_holder(holder);
        } else if self.store_place.is_some() {
            self.parts.queues.note_holder(&self.request.name, holder);
        }
    }

    /// Gives back a grant that came after its deadline, and pauses.
    async fn refuse_late_grant(
        &mut self,
        outage: &mut Outage,
        until: Option<Moment>,
    ) -> Result<()> {
        let given_back = self.give_back().await;
        let error = self.late_grant_error(given_back.as_ref().err());
        let once_more = outage.failures() == 0 && given_back.is_ok();
        self.pause_after_failure(error, outage, until, once_more)
            .await
    }

    /// Counts an attempt whose answer is lost, and pauses.
    async fn count_failure(
        &mut self,
        error: Error,
        outage: &mut Outage,
        until: Option<Moment>,
    ) -> Result<()> {
        // An operation that is still in flight is counted when the claim gives it up.
        let unknown = !error.did_not_happen() && self.in_flight.is_none();
        self.unanswered += u32::from(unknown);
        // The next attempt finds out whether this one was granted.
        let once_more = outage.failures() == 0 && unknown;
        self.pause_after_failure(error, outage, until, once_more)
            .await
    }

    /// Pauses after an attempt that failed. Returns the caller's error when there is no next
    /// attempt: the failure is permanent, the wait is over (`once_more` allows one more attempt
    /// then), or the caller does not wait for a store that is away.
    async fn pause_after_failure(
        &mut self,
        error: Error,
        outage: &mut Outage,
        until: Option<Moment>,
        once_more: bool,
    ) -> Result<()> {
        if !error.is_retryable() {
            return Err(error);
        }
        let clock = Arc::clone(self.parts.timing.clock());
        let now = clock.now();
        let left = until.map_or(Duration::MAX, |until| until.since(now));
        let hangs = self.in_flight.is_some();
        outage.failed(&error, &self.request.name);
        if self.gives_up && (hangs || outage.failures() > QUICK_RETRIES) {
            return Err(error);
        }
        let beyond = self.end.left(now);
        if beyond.is_zero() || (left.is_zero() && !once_more) {
            return Err(self.store_away_error(error));
        }
        self.parts.queues.note_outage(&self.request.name, &error);
        if hangs {
            return Ok(());
        }
        let pause = self.parts.timing.jitter(outage.pause()).min(beyond);
        // The last attempt is made when the wait ends, and not before.
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

    /// The error of a wait that ended while the store was away. Its kind says that the caller does
    /// not hold the lock: a grant that still arrives is given back.
    fn store_away_error(&self, error: Error) -> Error {
        match (self.wait, error.kind()) {
            (Some(wait), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
                if !wait.is_zero() && !self.gives_up =>
            {
                store_away(wait, error)
            }
            _ => error,
        }
    }

    /// The error of a grant that came after its deadline. Where the store did not confirm its
    /// release, that release may still arrive and would end the same owner's next grant. So the
    /// next attempt uses another owner.
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

    /// One attempt at the store, as the same owner as before.
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

    /// Joins the store queue, or subscribes to the store's notifications.
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

    /// Whether an attempt may succeed: no contender is known to be ahead in the store queue.
    fn is_first(&self) -> bool {
        let contender = self.contender.as_ref();
        contender.is_none_or(|contender| contender.is_first())
    }

    /// Puts an operation in flight, and returns when that was.
    fn send(&mut self, operation: InFlight) -> Moment {
        let now = self.parts.timing.now();
        self.in_flight = Some((operation, now));
        now
    }

    /// Waits, from `now` on, for the operation in flight. With `joins_store_queue`, the next task
    /// of this process may join behind this one as soon as this request was sent. On an open
    /// connection the first poll sends it, so the store takes both in together.
    async fn await_answer(
        &mut self,
        now: Moment,
        joins_store_queue: bool,
    ) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let clock = Arc::clone(self.parts.timing.clock());
        let sent = self.in_flight.as_ref().map_or(now, |(_, sent)| *sent);
        // After its TTL a grant is of no use, and a store that needs more than 5 s counts as away.
        let limit = self
            .request
            .ttl
            .duration()
            .clamp(Duration::from_secs(1), Duration::from_secs(5))
            .min(self.end.left(now));
        let answered = bounded(&*clock, limit, async {
            let answered = poll_fn(|context| {
                let answered = self.poll_in_flight(context);
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

    /// Polls the operation in flight once. It is taken out while it is polled: if it panics it is
    /// gone, and stays counted as unanswered.
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

    /// Waits for a notification or the next poll, at most until the wait is over or the locker is
    /// closed.
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

    /// Gives up the place in the store queue.
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
            self.unanswered += 1;
        }
    }

    /// Releases a grant that is not used.
    async fn give_back(&mut self) -> Result<()> {
        // Counted before the release is sent: without its answer, the lock may still be ours.
        self.unanswered += 1;
        let lease = Lease::new(self.request.name.clone(), self.request.owner, None);
        let clock = &**self.parts.timing.clock();
        let limit = Duration::from_secs(1).min(self.end.left(clock.now()));
        bounded(clock, limit, self.parts.backend.release(&lease)).await?;
        self.unanswered -= 1;
        Ok(())
    }

    /// Ends the claim with a lock: nothing of it is left to undo.
    fn into_won_lock(mut self, grant: Grant, sent: Moment, granted: Moment) -> WonLock {
        // Where the store grants by its queue, the contender's place has become the lock. A queue
        // entry is given up in the background, and only a close waits for that.
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
            self.parts.contended.note(&self.request.name);
        }
        WonLock {
            request: self.request.clone(),
            turn: self.turn.take(),
            grant,
            sent,
            granted,
            has_unanswered: std::mem::take(&mut self.unanswered) > 0,
        }
    }

    /// Has the keeper undo every request that this claim has started.
    fn have_keeper_undo(&mut self) {
        if self.in_flight.is_none() && self.contender.is_none() && self.unanswered == 0 {
            return;
        }
        let abandoned = Abandoned {
            request: self.request.clone(),
            in_flight: self.in_flight.take().map(|(operation, _)| operation),
            contender: self.contender.take(),
            store_place: self.store_place.take(),
            unanswered: std::mem::take(&mut self.unanswered),
        };
        self.parts.meters.abandoned.increment(1);
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

/// How long the holder's lease still lasts, and a little more: an attempt right at the expiry could
/// come too early.
fn time_to_expiry(holder: Option<&HolderInfo>) -> Duration {
    let expiry = holder.and_then(|holder| holder.expires_in);
    expiry
        .unwrap_or(Duration::MAX)
        .saturating_add(Duration::from_millis(1))
}
