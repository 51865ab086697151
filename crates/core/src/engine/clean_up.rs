//! The clean-up after callers that dropped their future during an operation.
//!
//! This module owns the undo of abandoned attempts and the repetition of releases. Invariant: a
//! lock that may have been granted to an abandoned attempt is released, or its lease ends within
//! one TTL. The module never renews a lease, and never keeps a locker alive for the whole of a long
//! lease.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    clock::{Clock, Moment},
    contract::{AcquireRequest, Attempt, Contender, Grant, Lease, ReleaseOutcome},
    engine::{bounded::bounded, log, parts::LockerParts, store_queue::StorePlace},
    types::{error::Result, ident::OwnerId, name::LockName},
};

/// The longest wait for the answer to one step of a clean-up, before the next step.
const STEP: Duration = Duration::from_secs(1);

/// The longest time for which an unconfirmed release keeps the locker alive after its last clone
/// was dropped.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The first pause between two releases, and the longest one while a close waits.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const SHORT_PAUSE: Duration = Duration::from_millis(500);

/// An abandoned acquire: its caller dropped the future.
pub(crate) struct Abandoned {
    pub(crate) request: AcquireRequest,
    /// The attempt in flight. The clean-up drives this attempt to its end, because a request that
    /// was sent cannot be cancelled.
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) contender: Option<Box<dyn Contender>>,
    /// This task's place among the contenders of its process. The place is kept until the store has
    /// removed this contender, and only then does the next task join. Otherwise callers that give
    /// up faster than the store removes their entries would fill the store queue.
    pub(crate) store_place: Option<StorePlace>,
    /// The number of earlier attempts without an answer. Each of them may have been granted, or may
    /// still be granted.
    pub(crate) unanswered: u32,
    /// The owner of a grant whose release was not confirmed, if it is not the owner of the request
    /// ([`Grant::owner`]).
    pub(crate) other_owner: Option<OwnerId>,
}

/// An operation in flight.
pub(crate) type InFlight = Pin<Box<dyn Future<Output = InFlightAnswer> + Send>>;

/// The answer to an operation that was in flight.
pub(crate) struct InFlightAnswer {
    pub(crate) contender: Option<Box<dyn Contender>>,
    pub(crate) answer: Result<Option<Attempt<Grant>>>,
}

/// Undoes an abandoned acquire. The first release uses the connection of the attempt. If that
/// release fails, releases on the keeper's own connection follow for one TTL.
pub(crate) async fn clean_up(parts: Arc<LockerParts>, abandoned: Abandoned) {
    let Abandoned {
        request,
        in_flight,
        mut contender,
        store_place,
        mut unanswered,
        mut other_owner,
    } = abandoned;
    let clock = Arc::clone(parts.timing.clock());
    let until = clock.now() + request.ttl.duration();
    let lease = Lease::new(request.name.clone(), request.owner, None);
    if let Some(in_flight) = in_flight {
        let answered = bounded(&*clock, STEP, async { Ok(in_flight.await) }).await;
        match answered {
            Ok(answered) => {
                contender = answered.contender.or(contender);
                match answered.answer {
                    Ok(Some(Attempt::Acquired(grant))) => {
                        let mut granted = lease.clone();
                        granted.owner = grant.owner_after(&request);
                        // The release uses the connection of the attempt, so that it cannot reach
                        // the store before the attempt.
                        let released = bounded(&*clock, STEP, parts.backend.release(&granted));
                        if released.await.is_err() {
                            unanswered += u32::from(grant.owner.is_none());
                            other_owner = grant.owner;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => unanswered += u32::from(!error.did_not_happen()),
                }
            }
            // The attempt may still reach the store at any time.
            Err(_) => unanswered += 1,
        }
    }
    if let Some(contender) = contender {
        unanswered += u32::from(leave(&*clock, contender, &request.name).await.is_err());
    }
    drop(store_place);
    if let Some(owner) = other_owner {
        // A job of its own, so that the releases of the two owners do not wait for each other.
        let granted = Lease::new(request.name.clone(), owner, None);
        let releasing = release_until_expiry(Arc::clone(&parts), granted, until);
        parts.keeper.spawn_awaited(releasing);
    }
    if unanswered > 0 {
        parts.unreleased.add(clock.now(), &lease, until);
        release_repeatedly(parts, &lease, until, unanswered).await;
    }
}

/// Removes a contender from the store queue. The call consumes the contender, so the engine cannot
/// repeat it: the backend itself repeats the request where that is needed. The wait is bounded, so
/// that a hanging store cannot block the keeper's job.
pub(crate) async fn leave(
    clock: &dyn Clock,
    contender: Box<dyn Contender>,
    name: &LockName,
) -> Result<()> {
    let left = bounded(clock, STEP * 5, contender.leave()).await;
    if let Err(error) = left.clone() {
        let name = name.clone();
        log::debug(move || tracing::debug!(%error, lock = ?name, "leaving the queue failed"));
    }
    left
}

/// Repeats the release of a lock whose release was not confirmed, until the store confirms or the
/// lease has ended.
pub(crate) async fn release_until_expiry(parts: Arc<LockerParts>, lease: Lease, until: Moment) {
    parts.unreleased.add(parts.timing.now(), &lease, until);
    release_repeatedly(parts, &lease, until, 0).await;
}

/// Repeats a release on the keeper's own connection until the store confirms the release or `until`
/// has passed.
///
/// `may_still_arrive` is the number of requests for the lock that may reach the store after a
/// release. While the number is above zero, `NotHeld` does not end the loop, and each `Released`
/// lowers the number by one.
///
/// A close of the locker does not end the loop: the store may be back soon, and the close bounds
/// its wait. After [`KEEP_ALIVE`] the loop no longer keeps the locker alive: a thread and two
/// connections must not stay for the whole of a long lease.
pub(crate) async fn release_repeatedly(
    parts: Arc<LockerParts>,
    lease: &Lease,
    until: Moment,
    mut may_still_arrive: u32,
) {
    let clock = Arc::clone(parts.timing.clock());
    let shared = parts.keeper.shared();
    let unreleased = Arc::clone(&parts.unreleased);
    let handle = tokio::select! {
        biased;
        handle = shared.connection.handle() => handle,
        () = clock.sleep(until.since(clock.now())) => return,
        () = parts.lifecycle.closed_for(&**parts.timing.clock(), STEP * 5) => return,
    };
    let begun = clock.now();
    let mut pause = FIRST_PAUSE;
    let mut closing = parts.lifecycle.closing();
    let mut kept_alive = Some(parts);
    loop {
        match bounded(&*clock, STEP, handle.release(lease)).await {
            Ok(ReleaseOutcome::Released { .. }) if may_still_arrive > 1 => may_still_arrive -= 1,
            // The store answers, so a close need not wait for a request that is probably lost.
            Ok(ReleaseOutcome::NotHeld) if may_still_arrive > 0 && *closing.borrow() => {
                return unreleased.remove(lease);
            }
            Ok(ReleaseOutcome::NotHeld) if may_still_arrive > 0 => {}
            Ok(_) => return unreleased.remove(lease),
            Err(error) => {
                unreleased.note_error(lease, &error);
                pause = pause.max(error.retry_pause().unwrap_or_default());
                let name = lease.name.clone();
                log::debug(
                    move || tracing::debug!(%error, lock = ?name, "background release failed"),
                );
            }
        }
        // After the drop of the locker nobody waits, and the keeper thread is about to end.
        let is_dropped = closing.has_changed().is_err();
        if clock.now() >= until || is_dropped {
            return;
        }
        kept_alive.take_if(|_| clock.now().since(begun) >= KEEP_ALIVE);
        tokio::select! {
            biased;
            () = clock.sleep(pause.min(until.since(clock.now()))) => {}
            // The locker was closed or dropped, so the next release is sent at once.
            _ = closing.changed() => pause = FIRST_PAUSE,
        }
        // A request that has not reached the store for a long time will probably never do so. So
        // the pause grows with the elapsed time: a long lease is not released twice in each second
        // until its end. A close waits for a few seconds only, so the pause stays short then.
        let longest = match *closing.borrow() {
            true => SHORT_PAUSE,
            false => (clock.now().since(begun) / 4).max(SHORT_PAUSE),
        };
        pause = (pause * 2).min(longest);
    }
}
