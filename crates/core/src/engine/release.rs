//! The end of a held lease by a release or by the drop of its last guard: a hand-over to the next
//! task of this process, or a release at the store.
//!
//! This module owns the order of these steps. Invariant: a waiter that was taken out of the local
//! queue always gets the turn, also when the hand-over fails. A release without a confirmation is
//! repeated in the background until the lease ends. A lock with a minimum hold is released by
//! `min_hold.rs`.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Moment},
    contract::{
        AcquireRequest, DistLock, Grant, HandOver, Lease, LossReason, ReleaseOutcome, Renewal,
        Renewed,
    },
    engine::{
        bounded::bounded,
        clean_up::{release_repeatedly, release_until_expiry},
        lease_state::LeaseState,
        local_queue::{HandedOver, LocalTurn, NextWaiter},
        log,
        meters::Meters,
        min_hold,
        outage::{QUICK_RETRIES, pause_after},
        parts::LockerParts,
        settings::Timing,
    },
    types::{
        error::{Error, Result},
        ttl::Ttl,
    },
};

/// The longest wait for the store's answer to a release, before the release continues in the
/// background.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The result of a release.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a lock that was already lost did not protect the last moments of the work"]
pub enum Released {
    /// The caller held the lock until the release, and the lock is now free or handed over.
    Clean,
    /// The lock had been lost before, for this reason.
    AlreadyLost(LossReason),
    /// The store did not confirm the release. The release is repeated in the background until the
    /// lease ends.
    Unconfirmed(Error),
}

impl Released {
    /// Whether the caller held the lock until the release, and the store confirmed the release.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        matches!(self, Self::Clean)
    }
}

/// The values that a release of one lease needs.
pub(crate) struct LeaseToRelease {
    pub(crate) lease: Lease,
    pub(crate) meters: Arc<Meters>,
    pub(crate) turn: Option<LocalTurn>,
    /// The moment at which the request was sent that got the lock.
    pub(crate) acquired: Moment,
    /// The local deadline of the lease. A lock that is found gone before this moment was removed or
    /// taken over. After this moment the lease has only expired.
    pub(crate) deadline: Moment,
    /// The moment at which the store has ended the lease at the latest.
    pub(crate) expires: Moment,
    /// Whether an earlier release of this lease may have happened.
    pub(crate) maybe_released: bool,
    /// The end of a minimum hold. The lock is then kept until this moment instead of being released
    /// now.
    pub(crate) keep_until: Option<Moment>,
    /// Whether the lock goes to the store although a task of this process waits.
    pub(crate) gives_others_a_turn: bool,
}

impl LeaseToRelease {
    pub(crate) fn of(
        lease_state: &LeaseState,
        turn: Option<LocalTurn>,
        keep_until: Option<Moment>,
    ) -> Self {
        let (lease, deadline, expires) = lease_state.release_terms();
        Self {
            lease,
            meters: Arc::clone(lease_state.meters()),
            turn,
            acquired: lease_state.acquired(),
            deadline,
            expires,
            maybe_released: false,
            keep_until,
            gives_others_a_turn: lease_state.gives_others_a_turn,
        }
    }

    /// The values for a lock that was handed over to a waiter that has gone. `grant` is `None` when
    /// the hand-over has an unknown outcome.
    pub(crate) fn not_picked_up(
        timing: &Timing,
        meters: &Arc<Meters>,
        turn: LocalTurn,
        grant: Option<&Grant>,
        request: &AcquireRequest,
    ) -> Self {
        let expires = timing.now() + request.ttl.duration();
        let owner = grant.map_or(request.owner, |grant| grant.owner_after(request));
        let lease = Lease::new(request.name.clone(), owner, None);
        Self {
            lease,
            meters: Arc::clone(meters),
            turn: Some(turn),
            acquired: timing.now(),
            deadline: expires,
            expires,
            maybe_released: true,
            keep_until: None,
            gives_others_a_turn: false,
        }
    }
}

/// Hands the lock over to the next waiter of this process, or releases the lock. The requests use
/// the handle `via`.
///
/// # Cancel safety
/// When the future is dropped, a hand-over continues in the background. A release may or may not
/// have reached the store, and the local turn passes to the next task.
pub(crate) async fn release_or_hand_over(
    parts: &Arc<LockerParts>,
    via: &Arc<dyn DistLock>,
    mut what: LeaseToRelease,
) -> Released {
    if let Some(until) = what.keep_until {
        return min_hold::keep_until(parts, via, what.lease, until, what.expires).await;
    }
    let limit = if via.capabilities().hand_over && !what.gives_others_a_turn {
        parts.settings.hand_over_limit()
    } else {
        0
    };
    // This value is kept until the release has an answer. The drop of the value lets the waiter ask
    // the store. An earlier request of the waiter would find the lock still held.
    let mut failed_hand_over = None;
    if let Some(turn) = what.turn.take() {
        match turn.next_waiter(limit) {
            None => what.turn = Some(turn),
            Some(next) => match hand_over(parts, via, &what, turn, next).await {
                Ok(released) => return released,
                Err(hand_over) => failed_hand_over = Some(hand_over),
            },
        }
    }
    release_at_store(parts, via, what, limit, failed_hand_over.is_some()).await
}

/// Hands the lock over to a waiter. `Err` when the lock must be released instead. The error value
/// then holds the turn and the waiter.
async fn hand_over(
    parts: &Arc<LockerParts>,
    via: &Arc<dyn DistLock>,
    what: &LeaseToRelease,
    turn: LocalTurn,
    next: NextWaiter,
) -> Result<Released, HandOverInFlight> {
    let mut hand_over = HandOverInFlight::send(parts, via, what, turn, next);
    match answer_of(parts, &mut hand_over.request).await {
        Ok(HandOver::Done(grant)) => {
            hand_over.give_lock(grant);
            Ok(Released::Clean)
        }
        Ok(HandOver::NotHeld(reason)) => Ok(not_held_outcome(
            parts,
            &what.meters,
            what.maybe_released,
            what.deadline,
            reason,
        )),
        Ok(HandOver::Unsupported) => Err(hand_over),
        Err(error) => {
            let name = what.lease.name.clone();
            log::debug(move || {
                tracing::debug!(%error, lock = ?name, "hand-over failed, releasing instead");
            });
            Err(hand_over)
        }
    }
}

/// Releases the lock at the store. Then passes the local turn to the next task of this process that
/// waits for this lock, so that this task can ask the store.
async fn release_at_store(
    parts: &Arc<LockerParts>,
    via: &Arc<dyn DistLock>,
    what: LeaseToRelease,
    hand_over_limit: u32,
    hand_over_failed: bool,
) -> Released {
    let LeaseToRelease {
        lease,
        meters,
        turn,
        acquired,
        deadline,
        expires,
        mut maybe_released,
        keep_until: _,
        gives_others_a_turn: _,
    } = what;
    match release(&parts.timing, &**via, &lease, &mut maybe_released).await {
        Ok(ReleaseOutcome::Released { others_waiting }) => {
            meters.released.increment(1);
            match others_waiting {
                Some(true) => {
                    let now = parts.timing.now();
                    let held = now.since(acquired);
                    parts.contended.note(&lease.name, held, now);
                }
                Some(false) => parts.contended.forget(&lease.name),
                None => {}
            }
            if let Some(turn) = turn {
                // If a task of this process still waits, the limit has ended the run of hand-overs.
                // That task then lets other processes go first, unless the store reports that none
                // waits.
                turn.pass_on(hand_over_limit > 0 && others_waiting != Some(false));
            }
            Released::Clean
        }
        Ok(ReleaseOutcome::NotHeld) => {
            let reason = find_loss_reason(&**parts.timing.clock(), &**via, &lease).await;
            // After a hand-over without an answer, the next task may already hold the lock.
            let maybe_released = maybe_released || hand_over_failed;
            not_held_outcome(parts, &meters, maybe_released, deadline, reason)
        }
        Err(error) => {
            meters.release_unconfirmed.increment(1);
            let (name, why) = (lease.name.clone(), error.clone());
            log::write(move || {
                tracing::warn!(
                    error = %why,
                    lock = ?name,
                    "release not confirmed, trying again in the background",
                );
            });
            add_unreleased(parts, &lease, expires, &error);
            parts.keeper.spawn_awaited(release_until_expiry(
                Arc::clone(parts),
                lease.clone(),
                expires,
            ));
            Released::Unconfirmed(error.about(&lease.name).during("release"))
        }
    }
}

/// Notes that the store may hold the lock until `expires`, because a release has failed.
pub(super) fn add_unreleased(parts: &LockerParts, lease: &Lease, expires: Moment, error: &Error) {
    parts.unreleased.add(parts.timing.now(), lease, expires);
    parts.unreleased.note_error(lease, error);
}

/// Sends the release, and repeats it up to [`QUICK_RETRIES`] times after temporary failures. Sets
/// `maybe_released` when a failed request may have freed the lock.
async fn release(
    timing: &Timing,
    via: &dyn DistLock,
    lease: &Lease,
    maybe_released: &mut bool,
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
            *maybe_released |= !error.did_not_happen();
            clock.sleep(timing.jitter(pause_after(failures))).await;
        }
    })
    .await
}

/// Waits for the answer to a hand-over. If it has not come within the limit, a job on the keeper
/// thread waits for it. Without that job, the request would be dropped, and the backend would undo
/// the grant of a caller that went away. By then the next task may have asked the store as the new
/// owner and may rely on that grant.
async fn answer_of(parts: &LockerParts, request: &mut Option<HandOverRequest>) -> Result<HandOver> {
    let Some(running) = request.as_mut() else {
        unreachable!("a hand-over is sent once, and its answer is awaited once");
    };
    let mut answered = false;
    let answer = bounded(&**parts.timing.clock(), LIMIT, async {
        let answer = running.as_mut().await;
        answered = true;
        answer
    })
    .await;
    let request = request.take();
    if !answered && let Some(request) = request {
        parts.keeper.spawn_detached(async move {
            let _ = request.await;
        });
    }
    answer
}

/// Releases a lost lock that the store may still hold: a renewal or an extension without an answer
/// may have reached the store, or may reach it after the loss, because a backend drives a request
/// that waits for a connection to its end. No guard would renew or release that lease.
pub(crate) fn release_lost_lease(parts: &Arc<LockerParts>, lease_state: &LeaseState) {
    let (lease, deadline, expires) = lease_state.release_terms();
    let unanswered = matches!(
        lease_state.loss_now(),
        Some(LossReason::Unreachable | LossReason::Expired)
    );
    let now = parts.timing.now();
    if !unanswered || now >= expires {
        return;
    }
    let (keeper, parts) = (&parts.keeper, Arc::clone(parts));
    if expires > deadline + lease_state.ttl().duration() {
        keeper.spawn_awaited(release_until_expiry(parts, lease, expires));
    } else {
        // A lease of the usual length ends soon by itself. So this release ends with a close, and
        // the lock is not listed as unreleased.
        let release = async move {
            let mut closing = parts.lifecycle.closing();
            tokio::select! {
                biased;
                _ = closing.wait_for(|closed| *closed) => {}
                () = release_repeatedly(parts, &lease, expires, 0) => {}
            }
        };
        keeper.spawn_detached(release);
    }
}

/// Asks the store why the owner did not hold the lock at its release. A renewal never recreates a
/// lost lock, and its answer contains the reason.
async fn find_loss_reason(clock: &dyn Clock, via: &dyn DistLock, lease: &Lease) -> LossReason {
    let Ok(ttl) = Ttl::new(via.capabilities().min_ttl) else {
        return LossReason::Removed;
    };
    match bounded(clock, LIMIT, via.renew(lease, &Renewal::plain(ttl))).await {
        Ok(Renewed::NotHeld(reason)) => reason,
        Ok(Renewed::Extended { .. }) | Err(_) => LossReason::Removed,
    }
}

/// The result of a release when the store answers that the owner does not hold the lock.
fn not_held_outcome(
    parts: &LockerParts,
    meters: &Meters,
    maybe_released: bool,
    deadline: Moment,
    reason: LossReason,
) -> Released {
    if parts.timing.now() >= deadline {
        meters.count_loss(LossReason::Expired);
        Released::AlreadyLost(LossReason::Expired)
    } else if maybe_released {
        Released::Clean
    } else {
        meters.count_loss(reason);
        Released::AlreadyLost(reason)
    }
}

/// The request of a hand-over.
type HandOverRequest = Pin<Box<dyn Future<Output = Result<HandOver>> + Send>>;

/// A hand-over in flight. When this value is dropped before the answer has come, the keeper waits
/// for the answer. When it is dropped later, the waiter gets the turn, so that it is not forgotten.
struct HandOverInFlight {
    parts: Arc<LockerParts>,
    /// The waiter wants the same name, so these are its metrics too.
    meters: Arc<Meters>,
    waiter: Option<(LocalTurn, NextWaiter)>,
    sent: Moment,
    /// `None` from the answer on, or from the end of the wait for it.
    request: Option<HandOverRequest>,
}

impl HandOverInFlight {
    fn send(
        parts: &Arc<LockerParts>,
        via: &Arc<dyn DistLock>,
        what: &LeaseToRelease,
        turn: LocalTurn,
        next: NextWaiter,
    ) -> Self {
        let (via, lease, request) = (Arc::clone(via), what.lease.clone(), next.request().clone());
        Self {
            parts: Arc::clone(parts),
            meters: Arc::clone(&what.meters),
            waiter: Some((turn, next)),
            sent: parts.timing.now(),
            request: Some(Box::pin(
                async move { via.hand_over(&lease, &request).await },
            )),
        }
    }

    fn give_lock(mut self, grant: Grant) {
        self.meters.handed_over.increment(1);
        // A hand-over does not count towards the limit if the store reports that no other process
        // waits.
        if let Some((turn, _)) = &self.waiter
            && grant.others_waiting != Some(false)
        {
            turn.count_hand_over();
        }
        self.send_to_waiter(Some(grant));
    }

    fn send_to_waiter(&mut self, grant: Option<Grant>) {
        if let Some((turn, next)) = self.waiter.take() {
            let request = next.request().clone();
            let grant = grant.map(|grant| (grant, self.sent));
            next.give_lock(HandedOver {
                unclaimed: Some((turn, grant, request)),
                parts: Arc::clone(&self.parts),
                meters: Arc::clone(&self.meters),
            });
        }
    }
}

impl Drop for HandOverInFlight {
    fn drop(&mut self) {
        let mut request = self.request.take();
        if request.is_none() {
            // The hand-over may have happened although it has no positive answer. So this waiter
            // asks the store before any other waiter.
            self.send_to_waiter(None);
            return;
        }
        // The caller went away. The waiter must not ask now: the backend would undo the grant of a
        // caller that is gone, and that undo could come after the waiter's request.
        let rest = Self {
            parts: Arc::clone(&self.parts),
            meters: Arc::clone(&self.meters),
            waiter: self.waiter.take(),
            sent: self.sent,
            request: None,
        };
        self.parts.keeper.spawn_awaited(async move {
            if let Ok(HandOver::Done(grant)) = answer_of(&rest.parts, &mut request).await {
                rest.give_lock(grant);
            }
        });
    }
}

/// Releases in the background, through the keeper's own connection.
pub(crate) fn release_in_background(parts: &Arc<LockerParts>, what: LeaseToRelease) {
    what.meters.released_in_background.increment(1);
    let now = parts.timing.now();
    parts.unreleased.add(now, &what.lease, what.expires);
    tracing::debug!(lock = ?what.lease.name, "releasing in the background");
    let job_parts = Arc::clone(parts);
    parts.keeper.spawn_awaited(async move {
        let parts = job_parts;
        let shared = parts.keeper.shared();
        let clock = parts.timing.clock();
        let time_left = what.expires.since(clock.now());
        let handle = tokio::select! {
            biased;
            handle = shared.connection.handle() => handle,
            () = clock.sleep(time_left) => return,
            // An unreachable store must not delay a close until the end of the lease.
            () = parts.lifecycle.closed_for(&**clock, LIMIT) => return,
        };
        let lease = what.lease.clone();
        match release_or_hand_over(&parts, &handle, what).await {
            // `release_at_store` has logged the failure and repeats the release.
            Released::Unconfirmed(_) => {}
            Released::Clean | Released::AlreadyLost(_) => parts.unreleased.remove(&lease),
        }
    });
}
