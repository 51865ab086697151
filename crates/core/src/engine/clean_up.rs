//! The clean-up after callers that went away during an operation.
//!
//! This module owns the undo of abandoned attempts and the repetition of releases. Invariant: a
//! lock that may have been granted to an abandoned attempt is released, or its lease ends within
//! one TTL. It never renews a lease, and it never keeps a locker alive for a whole long lease.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    contract::{AcquireRequest, Attempt, Contender, Grant, Lease, ReleaseOutcome},
    engine::{
        bounded::bounded,
        clock::{Clock, Moment},
        log,
        parts::LockerParts,
        store_queue::StorePlace,
    },
    types::{error::Result, name::LockName},
};

/// How long one step of a clean-up may take before the next is tried.
const STEP: Duration = Duration::from_secs(1);

/// How long an unconfirmed release keeps the locker alive after its last clone was dropped.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// An abandoned acquire: its caller went away.
pub(crate) struct Abandoned {
    pub(crate) request: AcquireRequest,
    /// The attempt in flight. It runs to its end, because a request cannot be called back.
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) contender: Option<Box<dyn Contender>>,
    /// This task's place among the contenders of its process. The next task joins when the store
    /// has removed this contender. Otherwise callers that give up faster than the store forgets
    /// them would fill the store queue.
    pub(crate) store_place: Option<StorePlace>,
    /// Earlier attempts without an answer: each may have been granted, or may still be.
    pub(crate) unanswered: u32,
}

/// An operation in flight.
pub(crate) type InFlight = Pin<Box<dyn Future<Output = InFlightAnswer> + Send>>;

/// The answer to an operation that was in flight.
pub(crate) struct InFlightAnswer {
    pub(crate) contender: Option<Box<dyn Contender>>,
    pub(crate) answer: Result<Option<Attempt<Grant>>>,
}

/// Undoes an abandoned acquire: on the connection that it used, and if that fails on the keeper's
/// own connection, for one TTL.
pub(crate) async fn clean_up(parts: Arc<LockerParts>, abandoned: Abandoned) {
    let Abandoned {
        request,
        in_flight,
        mut contender,
        store_place,
        mut unanswered,
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
                    Ok(Some(Attempt::Acquired(_))) => {
                        // On the same connection, so that it cannot arrive before the attempt.
                        let released = bounded(&*clock, STEP, parts.backend.release(&lease));
                        unanswered += u32::from(released.await.is_err());
                    }
                    Ok(_) => {}
                    Err(error) => unanswered += u32::from(!error.did_not_happen()),
                }
            }
            // The attempt may still arrive, at any time.
            Err(_) => unanswered += 1,
        }
    }
    if let Some(contender) = contender {
        unanswered += u32::from(leave(&*clock, contender, &request.name).await.is_err());
    }
    drop(store_place);
    if unanswered > 0 {
        release_repeatedly(parts, &lease, until, unanswered).await;
    }
}

/// Has a contender leave the store queue. That consumes it, so the backend itself repeats it where
/// needed. A bound keeps the keeper from hanging on it.
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

/// Releases a lock whose release was not confirmed, until its lease has ended anyway.
pub(crate) async fn release_until_expiry(parts: Arc<LockerParts>, lease: Lease, until: Moment) {
    release_repeatedly(parts, &lease, until, 0).await;
}

/// `may_still_arrive` counts requests for the lock that may reach the store after a release. While
/// there are any, `NotHeld` does not end the loop, and each `Released` accounts for at most one of
/// them.
///
/// After [`KEEP_ALIVE`] the loop no longer keeps the locker alive: a long lease must not hold a
/// thread and two connections.
async fn release_repeatedly(
    parts: Arc<LockerParts>,
    lease: &Lease,
    until: Moment,
    mut may_still_arrive: u32,
) {
    let clock = Arc::clone(parts.timing.clock());
    let shared = parts.keeper.shared();
    let handle = tokio::select! {
        biased;
        handle = shared.connection.handle() => handle,
        () = clock.sleep(until.since(clock.now())) => return,
        () = parts.lifecycle.closed_for(&**parts.timing.clock(), STEP * 5) => return,
    };
    let begun = clock.now();
    let mut pause = Duration::from_millis(20);
    let mut closed = parts.lifecycle.closing();
    let mut kept_alive = Some(parts);
    loop {
        match bounded(&*clock, STEP, handle.release(lease)).await {
            Ok(ReleaseOutcome::Released { .. }) if may_still_arrive <= 1 => return,
            Ok(ReleaseOutcome::Released { .. }) => may_still_arrive -= 1,
            Ok(ReleaseOutcome::NotHeld) if may_still_arrive == 0 => return,
            Ok(ReleaseOutcome::NotHeld) => {}
            Err(error) => {
                let name = lease.name.clone();
                log::debug(
                    move || tracing::debug!(%error, lock = ?name, "background release failed"),
                );
            }
        }
        let is_over = *closed.borrow() || closed.has_changed().is_err();
        if clock.now() >= until || is_over {
            return;
        }
        kept_alive.take_if(|_| clock.now().since(begun) >= KEEP_ALIVE);
        tokio::select! {
            biased;
            () = clock.sleep(pause.min(until.since(clock.now()))) => {}
            // Closed, or dropped: one more release at once, then the lease ends by itself.
            _ = closed.wait_for(|closed| *closed) => {}
        }
        // The longer a request has not arrived, the less likely it does. So the releases of a long
        // lease become rare, instead of two in each second.
        let longest = (clock.now().since(begun) / 4).max(Duration::from_millis(500));
        pause = (pause * 2).min(longest);
    }
}
