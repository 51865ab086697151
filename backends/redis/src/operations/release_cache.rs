//! Keeps the stored values of the locks that this process holds. A newer server can then delete a
//! lock by comparing its whole value, without a script.
//!
//! A missing or wrong entry does no harm, because a script then releases the lock.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use distlock_core::{AcquireRequest, Lease, OwnerId};

use crate::format::value;

/// The limit of entries. A limit is needed because entries of lost guards are never removed one by
/// one. A script releases a lock without an entry.
const MAX_ENTRIES: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct ReleaseCache {
    // A std mutex: it is held for one operation of the map.
    labels: Mutex<HashMap<OwnerId, Box<str>>>,
}

impl ReleaseCache {
    /// Stores the value of a granted lock.
    pub(crate) fn insert(&self, request: &AcquireRequest) {
        let mut labels = self.labels();
        if labels.len() >= MAX_ENTRIES {
            labels.clear();
        }
        labels.insert(request.owner, value::label(request).into());
    }

    /// Removes and returns the probable value of a lock that is about to be released: the lock was
    /// granted at the time in its token and has no ticket. If the stored value is another one, the
    /// comparison fails and deletes nothing.
    pub(crate) fn take(&self, lease: &Lease) -> Option<String> {
        let label = self.labels().remove(&lease.owner)?;
        let token = value::number(lease.token?.get());
        let start = value::start(lease);
        let start = str::from_utf8(start.as_bytes()).ok()?;
        Some(format!("{start} {token} - {label}"))
    }

    fn labels(&self) -> MutexGuard<'_, HashMap<OwnerId, Box<str>>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_core::{FencingToken, HolderLabel, LockName, Ttl};

    use super::*;

    fn request(owner: OwnerId) -> AcquireRequest {
        AcquireRequest::new(
            LockName::new("a").unwrap(),
            owner,
            Ttl::new(Duration::from_secs(1)).unwrap(),
            HolderLabel::new("ci@host:1 x").unwrap(),
        )
    }

    #[test]
    fn a_cached_value_is_the_stored_one_and_is_taken_once() {
        let release_cache = ReleaseCache::default();
        let request = request(OwnerId::new());
        let token = FencingToken::new(1_760_000_000_000_001).ok();
        let lease = Lease::new(request.name.clone(), request.owner, token);
        assert_eq!(release_cache.take(&lease), None);
        release_cache.insert(&request);
        let value = release_cache.take(&lease).unwrap();
        let read = value::holder(&request.name, value.as_bytes(), 10).unwrap();
        assert_eq!((&*read.holder, read.token), ("ci@host:1 x", token));
        assert_eq!(release_cache.take(&lease), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let release_cache = ReleaseCache::default();
        for _ in 0..2 * MAX_ENTRIES {
            release_cache.insert(&request(OwnerId::new()));
        }
        assert!(release_cache.labels().len() <= MAX_ENTRIES);
    }
}
