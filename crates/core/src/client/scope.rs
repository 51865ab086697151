//! A scope: a set of guards that end together with one task, and that count as one holder.
//!
//! This module owns the leases that a scope holds, by name. Invariant: two tasks of one scope never
//! compete for one lock at the store. The caller passes the scope explicitly: the module must never
//! derive a scope from a thread or a host.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    client::guard::Guard,
    contract::Attempt,
    engine::{
        acquire::{self, WantedLock},
        bounded::bounded,
        lease_state::LeaseState,
        parts::LockerParts,
    },
    sync::Mutex,
    types::{
        error::{ErrorKind, Result},
        name::LockName,
    },
};

/// A set of guards that counts as one holder. Within one scope, a held lock can be taken again, and
/// the release of its last guard frees the lock.
///
/// Clones are the same scope. Use one scope for each request, job or actor.
///
/// ```
/// use distlock::Scope;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let locker = distlock::connect("memory:").await?;
/// let request = Scope::new();
/// let outer = locker.lock("order:5").reentrant(&request).acquire().await?;
/// // The same request takes it again, and does not wait for itself.
/// let inner = locker.lock("order:5").reentrant(&request).acquire().await?;
/// assert_eq!(inner.token(), outer.token());
/// assert!(outer.release().await.is_clean());
/// assert!(inner.is_valid()); // it is free when the last guard is released
/// assert!(inner.release().await.is_clean());
/// # locker.close().await; Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Scope {
    entries: Arc<Mutex<HashMap<(usize, LockName), ScopeEntry>>>,
}

/// The lease of a scope under one name. The mutex is locked during an acquire, so that two tasks of
/// one scope do not compete with each other.
type ScopeEntry = Arc<tokio::sync::Mutex<Weak<LeaseState>>>;

impl Scope {
    /// A new scope.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) async fn enter(
        &self,
        parts: &Arc<LockerParts>,
        wanted: WantedLock,
        min_hold: Duration,
    ) -> Result<Guard> {
        let slot = self.entry_of(parts, &wanted.request.name);
        let mut held = match slot.try_lock() {
            Ok(held) => held,
            Err(_) => tokio::select! {
                held = slot.lock() => held,
                // Another task of this scope still waits for the lock, so no guard of this scope
                // exists to join.
                () = wanted.wait.ended(&**parts.timing.clock()) => {
                    // One more attempt at the store returns the error that names the holder.
                    let lease_state = acquire::acquire(parts, wanted).await?;
                    return Ok(Guard::new(parts, lease_state, min_hold));
                }
            },
        };
        if let Some(lease_state) = join_lease(&held) {
            // The entry is unlocked before the extension, so that other tasks of this scope do not
            // wait for the extension.
            drop(held);
            return nested_guard(parts, lease_state, &wanted, min_hold).await;
        }
        let lease_state = acquire::acquire(parts, wanted).await?;
        *held = Arc::downgrade(&lease_state);
        Ok(Guard::new(parts, lease_state, min_hold))
    }

    pub(crate) async fn try_enter(
        &self,
        parts: &Arc<LockerParts>,
        wanted: WantedLock,
        min_hold: Duration,
    ) -> Result<Attempt<Guard>> {
        let slot = self.entry_of(parts, &wanted.request.name);
        let Ok(mut held) = slot.try_lock() else {
            return Ok(Attempt::Busy(
                parts.queues.believed_holder(&wanted.request.name),
            ));
        };
        if let Some(lease_state) = join_lease(&held) {
            drop(held);
            return nested_guard(parts, lease_state, &wanted, min_hold)
                .await
                .map(Attempt::Acquired);
        }
        let attempt = acquire::try_acquire(parts, wanted).await?;
        Ok(attempt.map(|lease_state| {
            *held = Arc::downgrade(&lease_state);
            Guard::new(parts, lease_state, min_hold)
        }))
    }

    fn entry_of(&self, parts: &Arc<LockerParts>, name: &LockName) -> ScopeEntry {
        let mut entries = self.entries.lock();
        if entries.len() >= 64 {
            entries.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().is_ok_and(|held| held.strong_count() > 0)
            });
        }
        // The address identifies the locker: the same name at another store is another lock.
        let key = (Arc::as_ptr(parts).addr(), name.clone());
        Arc::clone(entries.entry(key).or_default())
    }
}

fn join_lease(held: &Weak<LeaseState>) -> Option<Arc<LeaseState>> {
    held.upgrade().filter(|lease_state| lease_state.add_guard())
}

/// Makes another guard of a held lease. If its TTL is longer than that of the lease, the lease is
/// extended; a shorter TTL changes nothing.
async fn nested_guard(
    parts: &Arc<LockerParts>,
    lease_state: Arc<LeaseState>,
    wanted: &WantedLock,
    min_hold: Duration,
) -> Result<Guard> {
    let longer = wanted.request.ttl > lease_state.ttl();
    let (clock, limit) = (
        parts.timing.clock(),
        wanted.wait.left_at_store(parts.timing.now()),
    );
    let guard = Guard::nested(parts, lease_state, min_hold);
    if longer {
        let extension = guard.extend(wanted.request.ttl.duration());
        match bounded(&**clock, limit, extension).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => return Err(error),
            // The lock is still held with its shorter TTL, and renewals continue.
            Err(error) => tracing::debug!(%error, "a nested guard could not extend the lease"),
        }
    }
    Ok(guard)
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")
    }
}
