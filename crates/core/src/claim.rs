//! One task's claim to a lock at the store: asks, waits, and asks again.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    bounded::{End, bounded},
    clock::Moment,
    contract::{AcquireRequest, Attempt, Contender, Grant, Lease},
    error::{Error, ErrorKind, Result},
    hold::{Hold, Renew},
    keeper::{Abandoned, InFlight, Landed, clean_up},
    lineup::LinedUp,
    locker::Inner,
    queue::Seat,
    ttl::margin,
};

/// How often a store that cannot be reached is asked again before the caller is told.
const RETRIES: u32 = 3;

/// How long a process that has had its run of hand-overs lets the others go first, at most.
const STEP_ASIDE: Duration = Duration::from_millis(50);

/// How one lock is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) request: AcquireRequest,
    /// `None` = for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) end: End,
    pub(crate) renew: Renew,
}

/// A lock that was won, and not yet a hold.
pub(crate) struct Won {
    pub(crate) request: AcquireRequest,
    pub(crate) seat: Option<Seat>,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// Whether an earlier request of the same owner was never answered: should it arrive late, it sets the lease to its own
    /// length, which may be shorter by then.
    pub(crate) tainted: bool,
}

impl Won {
    pub(crate) fn hold(self, inner: &Arc<Inner>, renew: Renew) -> (Arc<Hold>, Moment) {
        let seat = if inner.queues_at_the_store() {
            // The next task of this process lines up at the store while this one still holds.
            drop(self.seat);
            None
        } else {
            self.seat
        };
        let hold = Hold::new(
            &self.request,
            &self.grant,
            self.sent,
            renew,
            seat,
            inner.clock(),
            inner.meters(),
        );
        if self.tainted {
            hold.may_be_cut_to(self.request.ttl);
        }
        inner.adopt(&hold, &self.grant.loss);
        (hold, self.granted)
    }
}

/// Now, unless the grant's deadline is over.
pub(crate) fn in_time(inner: &Inner, grant: &Grant, sent: Moment) -> Option<Moment> {
    let now = inner.clock().now();
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
    inner: Arc<Inner>,
    request: AcquireRequest,
    end: End,
    seat: Option<Seat>,
    /// Instead of the seat, once it waits at a store that queues.
    lined_up: Option<LinedUp>,
    contender: Option<Box<dyn Contender>>,
    /// The attempt on its way. Owned, so that it can be let finish elsewhere when this claim is dropped.
    in_flight: Option<InFlight>,
    /// How many attempts may have been granted without an answer, or may still be.
    unanswered: u32,
}

impl Claim {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        wanted: &Wanted,
        seat: Option<Seat>,
        tainted: bool,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            request: wanted.request.clone(),
            end: wanted.end,
            seat,
            lined_up: None,
            contender: None,
            in_flight: None,
            unanswered: u32::from(tainted),
        }
    }

    /// Asks, waits, asks again. `Busy` when it may not wait (any longer).
    pub(crate) async fn contend(
        mut self,
        waiting: Waiting,
        step_aside: bool,
    ) -> Result<Attempt<Won>> {
        let until = match waiting {
            Waiting::Never => Some(self.inner.clock().now()),
            Waiting::Until(until) => until,
        };
        let may_wait = |inner: &Inner| until.is_none_or(|until| until > inner.clock().now());
        // On a store that queues, asking once and then joining the queue would only lose a place.
        let queues = self.inner.queues_at_the_store();
        let mut join = (queues || step_aside) && may_wait(&self.inner);
        let mut aside = step_aside;
        let mut failures = 0;
        let mut late = false;
        loop {
            let asked = if join {
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
                    if self.inner.is_closed() {
                        let _ = self.give_back().await;
                        return Err(Inner::closed_error());
                    }
                    if let Some(granted) = in_time(&self.inner, &grant, sent) {
                        return Ok(Attempt::Acquired(self.won(grant, sent, granted)));
                    }
                    // A release that may still arrive would take the lock from the same owner's next grant.
                    self.give_back().await.map_err(|error| {
                        Error::new(
                            ErrorKind::Unavailable,
                            "the store granted too late, and did not confirm that the grant was given back",
                        )
                        .caused_by(error)
                    })?;
                    if late {
                        return Err(Error::new(
                            ErrorKind::Unavailable,
                            format!(
                                "the store twice took longer to grant than the lease of {} lasts",
                                self.request.ttl
                            ),
                        ));
                    }
                    late = true;
                    continue;
                }
                Ok((_, Some(Attempt::Busy(holder)))) => {
                    failures = 0;
                    if let Some(seat) = &self.seat {
                        seat.seen(holder.as_ref());
                    } else if self.lined_up.is_some() {
                        let name = &self.request.name;
                        self.inner.queues().seen(name, holder.as_ref());
                    }
                    let now = self.inner.clock().now();
                    let left = until.map_or(Duration::MAX, |until| until.since(now));
                    if left.is_zero() {
                        self.leave().await;
                        return Ok(Attempt::Busy(holder));
                    }
                    if self.contender.is_none() {
                        join = true;
                        continue;
                    }
                    let expiry = holder
                        .and_then(|holder| holder.expires_in)
                        .unwrap_or(Duration::MAX);
                    self.wait(left.min(expiry.saturating_add(Duration::from_millis(1))))
                        .await?;
                }
                Err(error) => {
                    // One that is still on its way is counted when it is let go of.
                    if !error.did_not_happen() && self.in_flight.is_none() {
                        self.unanswered += 1;
                    }
                    failures += 1;
                    let now = self.inner.clock().now();
                    let out_of_time = until.is_some_and(|until| now >= until);
                    let left = self.end.left(now);
                    let again = error.is_retryable()
                        && self.in_flight.is_none()
                        && failures <= RETRIES
                        && !left.is_zero();
                    // Without leave to wait, one more try is made: it finds out whether the first was granted.
                    if !again || (out_of_time && (failures > 1 || error.did_not_happen())) {
                        return Err(error);
                    }
                    tracing::debug!(%error, lock = ?self.request.name, "asking again");
                    let pause = Duration::from_millis(25 << failures.min(4));
                    let pause = self.inner.jitter(pause).min(left);
                    self.inner.clock().sleep(pause).await;
                }
            }
            self.inner.check_open()?;
        }
    }

    /// One attempt at the store; as itself, also when it has asked before.
    async fn ask(&mut self) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let operation: InFlight = if let Some(mut contender) = self.contender.take() {
            Box::pin(async move {
                let answer = contender.attempt().await.map(Some);
                Landed {
                    contender: Some(contender),
                    answer,
                }
            })
        } else {
            let (inner, request) = (Arc::clone(&self.inner), self.request.clone());
            Box::pin(async move {
                let answer = inner.backend().try_acquire(&request).await.map(Some);
                Landed {
                    contender: None,
                    answer,
                }
            })
        };
        self.land(operation, false).await
    }

    /// Joins the queue or arms the wake-up.
    async fn join(&mut self) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let (inner, request) = (Arc::clone(&self.inner), self.request.clone());
        let operation: InFlight = Box::pin(async move {
            match inner.backend().contend(&request).await {
                Ok(contender) => Landed {
                    contender: Some(contender),
                    answer: Ok(None),
                },
                Err(error) => Landed {
                    contender: None,
                    answer: Err(error),
                },
            }
        });
        let lines_up = self.inner.queues_at_the_store();
        self.land(operation, lines_up).await
    }

    /// Waits for an operation. Where it `lines_up`, the next task of this process may line up behind as soon as this one was
    /// sent, which the first look at it does on an open connection: the store takes both in together.
    async fn land(
        &mut self,
        operation: InFlight,
        lines_up: bool,
    ) -> Result<(Moment, Option<Attempt<Grant>>)> {
        let sent = self.inner.clock().now();
        // After its own TTL a grant is worthless; a store that takes longer than 5 s does not serve.
        let limit = self
            .request
            .ttl
            .duration()
            .clamp(Duration::from_secs(1), Duration::from_secs(5))
            .min(self.end.left(sent));
        let clock = Arc::clone(self.inner.clock());
        self.in_flight = Some(operation);
        let landed = bounded(&*clock, limit, async {
            let landed = poll_fn(|context| {
                let landed = self.look(context);
                if lines_up && let Some(seat) = self.seat.take() {
                    let name = &self.request.name;
                    self.lined_up = Some(self.inner.line_ups().join(name, seat));
                }
                landed
            });
            Ok(landed.await)
        })
        .await?;
        self.contender = landed.contender;
        landed.answer.map(|answer| (sent, answer))
    }

    /// One look at what is on its way. It is taken out meanwhile: if it panics it is gone, and nobody knows what became of it.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Landed> {
        let Some(mut in_flight) = self.in_flight.take() else {
            return Poll::Pending;
        };
        self.unanswered += 1;
        let landed = in_flight.as_mut().poll(context);
        self.unanswered -= 1;
        if landed.is_pending() {
            self.in_flight = Some(in_flight);
        }
        landed
    }

    async fn wait(&mut self, at_most: Duration) -> Result<()> {
        let Some(contender) = &mut self.contender else {
            return Ok(());
        };
        let mut closed = self.inner.closing();
        tokio::select! {
            biased;
            () = contender.wait(at_most) => Ok(()),
            _ = closed.wait_for(|closed| *closed) => Err(Inner::closed_error()),
        }
    }

    async fn leave(&mut self) {
        let Some(contender) = self.contender.take() else {
            return;
        };
        let operation: InFlight = Box::pin(async move {
            let answer = contender.leave().await.map(|()| None);
            Landed {
                contender: None,
                answer,
            }
        });
        if let Err(error) = self.land(operation, false).await {
            tracing::debug!(%error, lock = ?self.request.name, "leaving the queue failed");
            self.unanswered += 1;
        }
    }

    /// A grant that came too late to be used.
    async fn give_back(&mut self) -> Result<()> {
        // Attempts before it that were never answered may still arrive.
        self.unanswered += 1;
        let lease = Lease::new(self.request.name.clone(), self.request.owner, None);
        let clock = &**self.inner.clock();
        let limit = Duration::from_secs(1).min(self.end.left(clock.now()));
        bounded(clock, limit, self.inner.backend().release(&lease)).await?;
        self.unanswered -= 1;
        Ok(())
    }

    fn won(mut self, grant: Grant, sent: Moment, granted: Moment) -> Won {
        // Nothing is left to undo; the contender's place has become the lock.
        self.contender = None;
        Won {
            request: self.request.clone(),
            seat: self.seat.take(),
            grant,
            sent,
            granted,
            tainted: std::mem::take(&mut self.unanswered) > 0,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.in_flight.is_none() && self.contender.is_none() && self.unanswered == 0 {
            return;
        }
        let abandoned = Abandoned {
            request: self.request.clone(),
            in_flight: self.in_flight.take(),
            contender: self.contender.take(),
            lined_up: self.lined_up.take(),
            unanswered: self.unanswered,
        };
        self.inner.meters().abandoned.increment(1);
        self.inner
            .keeper()
            .run(clean_up(Arc::clone(&self.inner), abandoned));
    }
}
