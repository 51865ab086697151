//! Letting go of a lock: handing it to the next task of this process, or releasing it in the store.

use std::{sync::Arc, time::Duration};

use crate::{
    contract::{
        AcquireRequest, DistLock, Grant, HandOver, Lease, LossReason, ReleaseOutcome, Renewal,
        Renewed,
    },
    engine::{
        bounded::bounded,
        clean_up::release_until_expiry,
        clock::{Clock, Moment},
        lease_state::LeaseState,
        local_queue::{HandedOver, LocalTurn, NextWaiter},
        log,
        outage::{QUICK_RETRIES, pause_after},
        parts::LockerParts,
        timing::Timing,
    },
    types::{
        error::{Error, Result},
        ttl::Ttl,
    },
};

/// How long a release waits for the store before it goes on in the background.
const LIMIT: Duration = Duration::from_secs(5);

/// What came of a release.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a lock that was already lost did not protect the last moments of the work"]
pub enum Released {
    /// It was ours until now, and is free or handed on.
    Clean,
    /// It had been lost before, for this reason.
    AlreadyLost(LossReason),
    /// The store did not confirm it. It is retried in the background until the lease ends.
    Unconfirmed(Error),
}

impl Released {
    /// Whether the lock was ours to the end.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        matches!(self, Self::Clean)
    }
}

/// Something to let go of.
pub(crate) struct LeaseToRelease {
    pub(crate) lease: Lease,
    pub(crate) turn: Option<LocalTurn>,
    /// The lock's local deadline: what is gone before it was taken from us; what is gone after it just ended.
    pub(crate) deadline: Moment,
    /// When the store has release_longer_lease it at the latest.
    pub(crate) expires: Moment,
    /// Whether an earlier release of it may have happened.
    pub(crate) again: bool,
    /// What is left of a minimum hold.
    pub(crate) keep_for: Option<Ttl>,
}

impl LeaseToRelease {
    pub(crate) fn of(
        lease_state: &LeaseState,
        turn: Option<LocalTurn>,
        keep_for: Option<Ttl>,
    ) -> Self {
        let (lease, deadline, expires) = lease_state.release_terms();
        Self {
            lease,
            turn,
            deadline,
            expires,
            again: false,
            keep_for,
        }
    }

    /// A lock that was handed over to a task that had gone.
    pub(crate) fn unclaimed(
        parts: &LockerParts,
        turn: LocalTurn,
        request: &AcquireRequest,
    ) -> Self {
        let expires = parts.timing.now() + request.ttl.duration();
        let lease = Lease::new(request.name.clone(), request.owner, None);
        Self {
            lease,
            turn: Some(turn),
            deadline: expires,
            expires,
            again: true,
            keep_for: None,
        }
    }
}

/// Lets go through `via`.
///
/// Cancel safety: when dropped, the turn moves on to the next task; the store may or may not have been asked.
pub(crate) async fn release_or_hand_over(
    parts: &Arc<LockerParts>,
    via: &Arc<dyn DistLock>,
    what: LeaseToRelease,
) -> Released {
    let LeaseToRelease {
        lease,
        mut turn,
        deadline,
        expires,
        mut again,
        keep_for,
    } = what;
    let clock = &**parts.timing.clock();
    if let Some(ttl) = keep_for {
        return cut_to_min_hold(clock, &**via, &lease, ttl).await;
    }
    let limit = if via.capabilities().hand_over {
        parts.settings.hand_over_limit()
    } else {
        0
    };
    let mut step = None;
    if let Some(taken) = turn.take() {
        match taken.next_waiter(limit) {
            None => turn = Some(taken),
            Some(next) => {
                let handing = HandOverInFlight {
                    parts,
                    handing: Some((taken, next)),
                };
                let sent = clock.now();
                match hand_over(parts, via, &lease, handing.request()).await {
                    Ok(HandOver::Done(grant)) => {
                        handing.give(grant, sent);
                        parts.meters.handed_over.increment(1);
                        return Released::Clean;
                    }
                    Ok(HandOver::NotHeld(reason)) => {
                        return not_held_outcome(parts, again, deadline, reason);
                    }
                    Ok(HandOver::Unsupported) => step = Some(handing),
                    Err(error) => {
                        let name = lease.name.clone();
                        log::debug(move || {
                            tracing::debug!(%error, lock = ?name, "hand-over failed, releasing instead");
                        });
                        step = Some(handing);
                    }
                }
            }
        }
    }
    match release(&parts.timing, &**via, &lease, &mut again).await {
        Ok(ReleaseOutcome::Released { others_waiting }) => {
            parts.meters.released.increment(1);
            if others_waiting == Some(true) {
                parts.contended.note(&lease.name);
            }
            if let Some(turn) = turn {
                // Where local tasks still wait, it was the limit that ended the run: step aside if others are there.
                turn.pass_on(limit > 0 && others_waiting != Some(false));
            }
            Released::Clean
        }
        // After an unanswered hand-over the next task may own it already.
        Ok(ReleaseOutcome::NotHeld) => {
            let reason = find_loss_reason(clock, &**via, &lease).await;
            not_held_outcome(parts, again || step.is_some(), deadline, reason)
        }
        Err(error) => {
            parts.meters.release_unconfirmed.increment(1);
            let (name, why) = (lease.name.clone(), error.clone());
            log::write(move || {
                tracing::warn!(error = %why, lock = ?name, "release not confirmed, trying again in the background");
            });
            parts.keeper.spawn_awaited(release_until_expiry(
                Arc::clone(parts),
                lease.clone(),
                expires,
            ));
            Released::Unconfirmed(error.about(&lease.name).during("release"))
        }
    }
}

/// Releases, and asks again for a moment where the store refuses or the answer is lost, as an
/// acquire does. Sets `again` where an earlier request may have freed the lock.
async fn release(
    timing: &Timing,
    via: &dyn DistLock,
    lease: &Lease,
    again: &mut bool,
) -> Result<ReleaseOutcome> {
    let clock = &**timing.clock();
    bounded(clock, LIMIT, async {
        let mut failures = 0;
        loop {
            let error = match via.release(lease).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            failures += 1;
            if !error.is_retryable() || failures > QUICK_RETRIES {
                return Err(error);
            }
            *again |= !error.did_not_happen();
            clock.sleep(timing.jitter(pause_after(failures))).await;
        }
    })
    .await
}

/// A hand-over that takes too long is heard out in the background: a backend takes back what was granted to a caller who
/// went away, and by then the next task may have found out by itself that the lock is its own.
async fn hand_over(
    parts: &LockerParts,
    via: &Arc<dyn DistLock>,
    lease: &Lease,
    next: &AcquireRequest,
) -> Result<HandOver> {
    let (via, lease, next) = (Arc::clone(via), lease.clone(), next.clone());
    let mut operation = Box::pin(async move { via.hand_over(&lease, &next).await });
    let mut answered = false;
    let answer = bounded(&**parts.timing.clock(), LIMIT, async {
        let answer = operation.as_mut().await;
        answered = true;
        answer
    })
    .await;
    if !answered {
        parts.keeper.spawn_detached(async move {
            let _ = operation.await;
        });
    }
    answer
}

/// A lock that was lost because nothing was heard of the store: a longer lease may have been granted all the same, which
/// nobody would renew or free. It is given back for as long as that may last. One that lasts no longer than usual ends by
/// itself soon enough.
pub(crate) fn release_longer_lease(parts: &Arc<LockerParts>, lease_state: &LeaseState) {
    let (lease, deadline, expires) = lease_state.release_terms();
    let unheard = matches!(
        lease_state.loss_now(),
        Some(LossReason::Unreachable | LossReason::Expired)
    );
    if unheard && expires > deadline + lease_state.ttl().duration() {
        let release = release_until_expiry(Arc::clone(parts), lease, expires);
        parts.keeper.spawn_awaited(release);
    }
}

/// Why a lock was not ours any more when it was to be released.
async fn find_loss_reason(clock: &dyn Clock, via: &dyn DistLock, lease: &Lease) -> LossReason {
    let capabilities = via.capabilities();
    // A renewal never revives a lock, and is answered with the reason.
    if capabilities.tells_force_release
        && let Ok(ttl) = Ttl::new(capabilities.min_ttl)
        && let Ok(Renewed::NotHeld(reason)) =
            bounded(clock, LIMIT, via.renew(lease, &Renewal::plain(ttl))).await
    {
        return reason;
    }
    match bounded(clock, LIMIT, via.inspect(&lease.name)).await {
        Ok(info) if info.held.is_some() => LossReason::TakenOver,
        Ok(_) | Err(_) => LossReason::Removed,
    }
}

fn not_held_outcome(
    parts: &LockerParts,
    again: bool,
    deadline: Moment,
    reason: LossReason,
) -> Released {
    if parts.timing.now() >= deadline {
        parts.meters.lost(LossReason::Expired);
        Released::AlreadyLost(LossReason::Expired)
    } else if again {
        Released::Clean
    } else {
        parts.meters.lost(reason);
        Released::AlreadyLost(reason)
    }
}

/// A minimum hold: instead of freeing the lock now, its lease is cut to what is left of the minimum.
async fn cut_to_min_hold(
    clock: &dyn Clock,
    via: &dyn DistLock,
    lease: &Lease,
    ttl: Ttl,
) -> Released {
    match bounded(clock, LIMIT, via.renew(lease, &Renewal::plain(ttl))).await {
        Ok(Renewed::Extended { .. }) => Released::Clean,
        Ok(Renewed::NotHeld(reason)) => Released::AlreadyLost(reason),
        // The present lease ends by itself; asking again could only make the hold longer.
        Err(error) => Released::Unconfirmed(error.about(&lease.name).during("release")),
    }
}

/// A hand-over on its way. However it ends, the next task is not release_longer_lease.
struct HandOverInFlight<'a> {
    parts: &'a Arc<LockerParts>,
    handing: Option<(LocalTurn, NextWaiter)>,
}

impl HandOverInFlight<'_> {
    fn request(&self) -> &AcquireRequest {
        match &self.handing {
            Some((_, next)) => next.request(),
            None => unreachable!("`handing` is only taken by `give` and `drop`, which consume it"),
        }
    }

    fn give(mut self, grant: Grant, sent: Moment) {
        // What is passed on while nobody else waits is no run at others' expense.
        if let Some((turn, _)) = &self.handing
            && grant.others_waiting != Some(false)
        {
            turn.count_hand_over();
        }
        self.pass(Some((grant, sent)));
    }

    fn pass(&mut self, grant: Option<(Grant, Moment)>) {
        if let Some((turn, next)) = self.handing.take() {
            let request = next.request().clone();
            next.give(HandedOver {
                unclaimed: Some((turn, grant, request)),
                on_abandoned: Arc::clone(&self.parts.on_abandoned),
            });
        }
    }
}

impl Drop for HandOverInFlight<'_> {
    fn drop(&mut self) {
        // It may have happened all the same, so this one must look before anybody else does.
        self.pass(None);
    }
}

/// Lets go in the background, through the keeper's own connection.
pub(crate) fn release_in_background(parts: &Arc<LockerParts>, what: LeaseToRelease) {
    parts.meters.released_in_background.increment(1);
    tracing::debug!(lock = ?what.lease.name, "releasing in the background");
    let job_inner = Arc::clone(parts);
    parts.keeper.spawn_awaited(async move {
        let parts = job_inner;
        let shared = parts.keeper.shared();
        let time_left = what.expires.since(parts.timing.now());
        let handle = tokio::select! {
            biased;
            handle = shared.connection.handle() => handle,
            () = parts.timing.clock().sleep(time_left) => return,
            // A store that cannot be reached does not hold up closing for a whole lease.
            () = parts.lifecycle.closed_for(&**parts.timing.clock(), LIMIT) => return,
        };
        if let Released::Unconfirmed(_) = release_or_hand_over(&parts, &handle, what).await {
            // Logged where it failed, and being retried until expiry.
        }
    });
}
