//! The release of a lock before the end of its minimum hold.
//!
//! This module keeps the lock until that end. A store whose leases end with a TTL does that itself:
//! the lease is cut to the remaining time. A lock that ends with the session of this process would
//! end with the process, and a store may grant a shorter lease than the remaining time. Then a job
//! of the keeper renews the lease until the end of the hold, and releases it.
//!
//! Invariant: no request of this module makes the lease longer than the hold, and no lease is
//! renewed after the end of its hold.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Moment,
    contract::{
        DistLock, Lease, Renewal, Renewed,
        capabilities::{Capabilities, LeaseKind},
    },
    engine::{
        bounded::{at_most, bounded},
        clean_up::release_until_expiry,
        log,
        outage::pause_after,
        parts::LockerParts,
        release::{LIMIT, Released, add_unreleased},
    },
    types::{error::Result, ttl::Ttl},
};

/// Keeps a lock until the end of its minimum hold, in the background if the store does not do that
/// itself. `expires` is the moment at which the store has ended the present lease at the latest.
pub(super) async fn keep_until(
    parts: &Arc<LockerParts>,
    via: &Arc<dyn DistLock>,
    lease: Lease,
    until: Moment,
    expires: Moment,
) -> Released {
    let left = until.since(parts.timing.now());
    let by_process = !store_keeps(via.capabilities(), left);
    let released = match renew_for_rest(parts, &**via, &lease, until).await {
        Ok(Renewed::NotHeld(reason)) => return Released::AlreadyLost(reason),
        Ok(Renewed::Extended { .. }) => Released::Clean,
        Err(error) => {
            add_unreleased(parts, &lease, expires, &error);
            Released::Unconfirmed(error.about(&lease.name).during("release"))
        }
    };
    if released.is_clean() && !by_process {
        return released;
    }
    let hold = keep_in_background(Arc::clone(parts), lease, until, expires);
    if by_process {
        // A close waits for the whole hold, because the lock would end with the session.
        parts.keeper.spawn_hold(hold);
    } else {
        parts.keeper.spawn_awaited(hold);
    }
    released
}

/// Whether one renewal is enough for a lock to stay held for this time, also without this process.
fn store_keeps(capabilities: &Capabilities, time: Duration) -> bool {
    capabilities.lease == LeaseKind::Ttl && capabilities.max_lease.is_none_or(|most| time <= most)
}

/// Sets the lease to the remaining time of the hold. A store may grant less.
async fn renew_for_rest(
    parts: &LockerParts,
    via: &dyn DistLock,
    lease: &Lease,
    until: Moment,
) -> Result<Renewed> {
    // Rounded up to whole milliseconds, so that the hold is never shorter than requested.
    let left = until.since(parts.timing.now()) + Duration::from_nanos(999_999);
    let least = via.capabilities().min_ttl;
    let ttl = Ttl::new(left.max(least).min(Ttl::MAX.duration()))?;
    let renewal = Renewal::plain(ttl);
    bounded(&**parts.timing.clock(), LIMIT, via.renew(lease, &renewal)).await
}

/// Renews a lease through the keeper's own connection until the end of its hold, and then releases
/// it. Stops as soon as the store keeps the lock without a further renewal.
async fn keep_in_background(parts: Arc<LockerParts>, lease: Lease, until: Moment, expires: Moment) {
    let clock = Arc::clone(parts.timing.clock());
    let shared = parts.keeper.shared();
    let left = until.since(clock.now());
    let Some(handle) = at_most(&*clock, left, shared.connection.handle()).await else {
        // The connection is not open yet. The release waits for it too.
        return release_until_expiry(parts, lease, expires.max(until + LIMIT)).await;
    };
    let mut failures = 0;
    loop {
        let left = until.since(clock.now());
        if left.is_zero() {
            break;
        }
        let pause = match renew_for_rest(&parts, &*handle, &lease, until).await {
            Ok(Renewed::Extended { .. }) if store_keeps(handle.capabilities(), left) => {
                return parts.unreleased.remove(&lease);
            }
            Ok(Renewed::Extended { valid_for, .. }) => {
                failures = 0;
                // As for a held lock: two renewals may fail before the lease ends.
                valid_for / 3
            }
            Ok(Renewed::NotHeld(reason)) => {
                parts.unreleased.remove(&lease);
                log::write(move || {
                    tracing::warn!(
                        lock = ?lease.name,
                        %reason,
                        "the lock was released and its minimum hold ended too early",
                    );
                });
                return;
            }
            Err(error) if error.is_retryable() => {
                failures += 1;
                parts.timing.jitter(pause_after(failures))
            }
            Err(error) => {
                let name = lease.name.clone();
                log::write(move || {
                    tracing::warn!(
                        lock = ?name,
                        %error,
                        "the lock was released, and may end before its minimum hold",
                    );
                });
                until.since(clock.now())
            }
        };
        clock.sleep(pause.min(until.since(clock.now()))).await;
    }
    // A renewal that got no answer may have set the lease to end a little after the hold.
    let expires = expires.max(until + LIMIT);
    release_until_expiry(parts, lease, expires).await;
}
