//! One task's claim to a lock at the store: asks, waits, and asks again.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    contract::{AcquireRequest, Attempt, Contender, Grant, Lease},
    engine::{
        acquire_errors::store_away,
        bounded::{CallEnd, bounded},
        clean_up::{Abandoned, InFlight, InFlightAnswer, clean_up, leave},
        clock::Moment,
        lease_state::{LeaseState, Renew},
        lifecycle::closed_error,
        local_queue::LocalTurn,
        outage::{Outage, QUICK_RETRIES},
        parts::LockerParts,
        store_queue::StorePlace,
    },
    types::{
        error::{Error, ErrorKind, Result},
        ident::OwnerId,
        ttl::margin,
    },
};

/// How long a process that has had its run of hand-overs lets the others go first, at most.
const STEP_ASIDE: Duration = Duration::from_millis(50);

/// How one lock is wanted.
#[derive(Clone, Debug)]
pub(crate) struct WantedLock {
    pub(crate) request: AcquireRequest,
    /// `None` = for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) end: CallEnd,
    pub(crate) renew: Renew,
    /// Tells the caller of a store that is away after a few tries, instead of waiting it through.
    pub(crate) gives_up: bool,
}

/// A lock that was won, and not yet a hold.
pub(crate) struct WonLock {
    pub(crate) request: AcquireRequest,
    pub(crate) turn: Option<LocalTurn>,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// Whether an earlier request of the same owner was never answered: should it arrive late, it sets the lease to its own
    /// length, which may be shorter by then.
    pub(crate) has_unanswered: bool,
}

impl WonLock {
    pub(crate) fn into_lease_state(
        self,
        parts: &Arc<LockerParts>,
        renew: Renew,
    ) -> (Arc<LeaseState>, Moment) {
        let turn = if parts.queues_at_the_store() {
            // The next task of this process lines up at the store while this one still holds.
            drop(self.turn);
            None
        } else {
            self.turn
        };
        let lease_state = LeaseState::new(
            &self.request,
            &self.grant,
            self.sent,
            renew,
            turn,
            parts.timing.clock(),
            &parts.meters,
        );
        if self.has_unanswered {
            lease_state.may_be_cut_to(self.request.ttl);
        }
        parts.adopt(&lease_state, &self.grant.loss);
        (lease_state, self.granted)
    }
}

/// `now`, unless the grant's deadline is over by then.
pub(crate) fn in_time(now: Moment, grant: &Grant, sent: Moment) -> Option<Moment> {
    let from = grant.counted_from(sent);
    (now < from + (grant.valid_for - margin(grant.valid_for))).then_some(now)
}

pub(crate) enum Waiting {
    Never,
    /// `None` = for ever.
    Until(Option<Moment>),
}

/// One task's try at the store. Whatever it has started is undone when it is dropped.
pub(crate) struct Claim {
    parts: Arc<LockerParts>,
    request: AcquireRequest,
    wait: Option<Duration>,
    end: CallEnd,
    gives_up: bool,
    turn: Option<LocalTurn>,
    /// Instead of the turn, once it waits at a store that queues.
    store_place: Option<StorePlace>,
    contender: Option<Box<dyn Contender>>,
    /// The operation on its way, and when it was sent. Owned, so that it can finish elsewhere when
    /// this claim is dropped.
    in_flight: Option<(InFlight, Moment)>,
    /// How many attempts may have been granted without an answer, or may still be.
    unanswered: u32,
    /// Whether it had to wait although it had joined those who wait.
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

    /// Asks, waits, asks again. `Busy` when it may not wait (any longer).
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
        // On a store that queues, asking once and then joining the queue would only lose a place.
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
            let asked = if self.in_flight.is_some() {
                // Its answer is still to come: asking beside it could be granted twice.
                let now = self.parts.timing.now();
                self.await_answer(now, false).await
            } else if join {
                self.join().await
            } else {
                self.ask().await
            };
            match asked {
                Ok((_, None)) => {
                    // In the queue, or armed: from here on no release is missed, so now ask.
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
                        return Ok(Attempt::Acquired(self.won(grant, sent, granted)));
                    }
                    let given_back = self.give_back().await;
                    let error = self.late_grant_error(given_back.as_ref().err());
                    let once_more = outage.failures() == 0 && given_back.is_ok();
                    self.pause_after_failure(error, &mut outage, until, once_more)
                        .await?;
                }
                Ok((_, Some(Attempt::Busy(holder)))) => {
                    outage.over(&self.request.name);
                    if let Some(turn) = &self.turn {
                        turn.note_holder(holder.as_ref());
                    } else if self.store_place.is_some() {
                        let name = &self.request.name;
                        self.parts.queues.note_holder(name, holder.as_ref());
                    }
                    let left = time_left(&self.parts);
                    if left.is_zero() {
                        self.leave().await;
                        return Ok(Attempt::Busy(holder));
                    }
                    if self.contender.is_none() {
                        join = true;
                        continue;
                    }
                    self.waited = true;
                    let expiry = holder
                        .and_then(|holder| holder.expires_in)
                        .unwrap_or(Duration::MAX);
                    self.wait(left.min(expiry.saturating_add(Duration::from_millis(1))))
                        .await?;
                }
                Err(error) => {
                    let unknown = !error.did_not_happen() && self.in_flight.is_none();
                    // One that is still on its way is counted when it is let go of.
                    self.unanswered += u32::from(unknown);
                    // The next try finds out whether this one was granted.
                    let once_more = outage.failures() == 0 && unknown;
                    self.pause_after_failure(error, &mut outage, until, once_more)
                        .await?;
                }
            }
            self.parts.lifecycle.check_open()?;
        }
    }

    /// Pauses after a try that failed, before the next one. Fails with what the caller is told when
    /// there is to be none: the failure cannot mend, the wait is over (`once_more` grants one more
    /// try then), or the caller does not wait for a store that is away.
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
            return Err(self.away_at_the_end(error));
        }
        self.parts.queues.note_outage(&self.request.name, &error);
        if hangs {
            return Ok(());
        }
        let pause = self.parts.timing.jitter(outage.pause()).min(beyond);
        // The last try is made when the wait ends, and not before.
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

    /// What a caller is told whose wait ended while the store was away. Nothing of it is left in
    /// doubt for the caller: what may still be granted is given back.
    fn away_at_the_end(&self, error: Error) -> Error {
        match (self.wait, error.kind()) {
            (Some(wait), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown)
                if !wait.is_zero() && !self.gives_up =>
            {
                store_away(wait, error)
            }
            _ => error,
        }
    }

    /// A grant came too late to be used, and was given back, or may still be there. A release that
    /// may arrive later would take the lock from the same owner's next grant, so what follows it
    /// asks as another owner.
    fn late_grant_error(&mut self, unconfirmed: Option<&Error>) -> Error {
        let ttl = self.request.ttl;
        let late = format!("the store took longer to grant than the lease of {ttl} lasts");
        let Some(error) = unconfirmed else {
            return Error::new(ErrorKind::Unavailable, late);
        };
        self.abandon();
        self.request.owner = OwnerId::new();
        let late = format!("{late}, and did not confirm that the grant was given back");
        Error::new(ErrorKind::Unavailable, late).caused_by(error.clone())
    }

    /// One attempt at the store; as itself, also when it has asked before.
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

    /// Joins the queue or arms the wake-up.
    async fn join(&mut self) -> Result<(Moment, Option<Attempt<Grant>>)> {
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

    /// Whether asking may succeed: nobody is known to be ahead in the store's line.
    fn is_first(&self) -> bool {
        let contender = self.contender.as_ref();
        contender.is_none_or(|contender| contender.is_first())
    }

    /// Puts an operation on its way. When that was.
    fn send(&mut self, operation: InFlight) -> Moment {
        let now = self.parts.timing.now();
        self.in_flight = Some((operation, now));
        now
    }

    /// Waits, from `now` on, for the operation on its way. Where it `joins_store_queue`, the next task of
    /// this process may line up behind as soon as this one was sent, which the first look at it
    /// does on an open connection: the store takes both in together.
    async fn await_answer(
        &mut self,
        now: Moment,
        joins_store_queue: bool,
    ) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let clock = Arc::clone(self.parts.timing.clock());
        let sent = self.in_flight.as_ref().map_or(now, |(_, sent)| *sent);
        // After its own TTL a grant is worthless; a store that takes longer than 5 s does not serve.
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

    /// One look at what is on its way. It is taken out meanwhile: if it panics it is gone, and nobody knows what became of it.
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

    async fn leave(&mut self) {
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

    /// A grant that came too late to be used.
    async fn give_back(&mut self) -> Result<()> {
        // Attempts before it that were never answered may still arrive.
        self.unanswered += 1;
        let lease = Lease::new(self.request.name.clone(), self.request.owner, None);
        let clock = &**self.parts.timing.clock();
        let limit = Duration::from_secs(1).min(self.end.left(clock.now()));
        bounded(clock, limit, self.parts.backend.release(&lease)).await?;
        self.unanswered -= 1;
        Ok(())
    }

    fn won(mut self, grant: Grant, sent: Moment, granted: Moment) -> WonLock {
        // Nothing is left to undo. In a store's queue the contender's place has become the lock; a
        // place in a line is given up, which nobody waits for but those who close.
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

    /// Has everything undone that this claim has started.
    fn abandon(&mut self) {
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
        self.abandon();
    }
}
