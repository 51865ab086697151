//! Re-entrancy by scope: what counts as one holder is said by the caller, never guessed from a thread or a host.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use crate::{
    client::guard::Guard,
    contract::Attempt,
    engine::{
        acquire, bounded::bounded, lease_state::LeaseState, parts::LockerParts, wanted::WantedLock,
    },
    types::{
        error::{ErrorKind, Result},
        name::LockName,
    },
};

/// Something that counts as one holder: within one scope, a lock that is held can be taken again, and is freed by the last
/// release.
///
/// Clones are the same scope. Use one per request, job or actor.
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

/// What the scope holds under one name. The mutex is held while it is being taken, so that two tasks of one scope do not
/// compete with each other.
type ScopeEntry = Arc<tokio::sync::Mutex<Weak<LeaseState>>>;

impl Scope {
    /// A scope of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) async fn enter(
        &self,
        parts: &Arc<LockerParts>,
        mut wanted: WantedLock,
        min_hold: Duration,
    ) -> Result<Guard> {
        let slot = self.slot(parts, &wanted.request.name);
        let started = parts.timing.now();
        let until = wanted.wait.map(|wait| started + wait);
        let mut held = match slot.try_lock() {
            Ok(held) => held,
            Err(_) => tokio::select! {
                held = slot.lock() => held,
                // Another task of this scope is still waiting for it: nobody to name but the store's holder.
                () = parts.timing.sleep_until(until) => {
                    // All of the wait is used up; one attempt gives the answer that says who holds it.
                    wanted.wait = Some(Duration::ZERO);
                    return acquire::acquire(parts, wanted).await.map(|lease_state| Guard::new(parts, lease_state, min_hold));
                }
            },
        };
        if let Some(lease_state) = joined(&held) {
            // Others of this scope need not wait until the store has extended it.
            drop(held);
            return nested(parts, lease_state, &wanted, min_hold).await;
        }
        wanted.wait = until.map(|until| until.since(parts.timing.now()));
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
        let slot = self.slot(parts, &wanted.request.name);
        let Ok(mut held) = slot.try_lock() else {
            return Ok(Attempt::Busy(
                parts.queues.believed_holder(&wanted.request.name),
            ));
        };
        if let Some(lease_state) = joined(&held) {
            drop(held);
            return nested(parts, lease_state, &wanted, min_hold)
                .await
                .map(Attempt::Acquired);
        }
        let attempt = acquire::try_acquire(parts, wanted).await?;
        Ok(attempt.map(|lease_state| {
            *held = Arc::downgrade(&lease_state);
            Guard::new(parts, lease_state, min_hold)
        }))
    }

    fn slot(&self, parts: &Arc<LockerParts>, name: &LockName) -> ScopeEntry {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= 64 {
            entries.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().is_ok_and(|held| held.strong_count() > 0)
            });
        }
        // The address names the locker: the same lock name at another store is another lock.
        let key = (Arc::as_ptr(parts).addr(), name.clone());
        Arc::clone(entries.entry(key).or_default())
    }
}

fn joined(held: &Weak<LeaseState>) -> Option<Arc<LeaseState>> {
    held.upgrade().filter(|lease_state| lease_state.add_guard())
}

/// A nested guard never shortens the lease; a longer one extends it.
async fn nested(
    parts: &Arc<LockerParts>,
    lease_state: Arc<LeaseState>,
    wanted: &WantedLock,
    min_hold: Duration,
) -> Result<Guard> {
    let longer = wanted.request.ttl > lease_state.ttl();
    let (clock, limit) = (parts.timing.clock(), wanted.end.left(parts.timing.now()));
    let guard = Guard::new(parts, lease_state, min_hold);
    if longer {
        let extension = guard.extend(wanted.request.ttl.duration());
        match bounded(&**clock, limit, extension).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Lost => return Err(error),
            // Still held, with the shorter lease; renewal goes on.
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
