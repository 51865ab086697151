//! The contract between the guard and a cache.
//!
//! Invariant: each operation is one atomic step of the cache. A cache must never store a value
//! below the key's floor.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{FencingToken, Result};

/// A cache that refuses values that come too late. Each of its three operations is one atomic step.
///
/// For each key the cache keeps, beside the value, a *floor*: the highest token with which a value
/// was stored, and the time of the last delete. The floor must outlive the value by the time that
/// the caller names, or be kept for ever.
#[async_trait]
pub trait Cache: fmt::Debug + Send + Sync {
    /// Reads the value under a key. The answer has a mark, which a load that begins now passes to
    /// [`put`](Self::put).
    ///
    /// # Errors
    /// Failures of the cache. A value that cannot be parsed counts as no value.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    async fn get(&self, key: &str) -> Result<Seen>;

    /// Stores a loaded value, unless the value comes too late. Returns whether the value was
    /// stored. A value comes too late in three cases:
    ///
    /// - The floor has a higher token.
    /// - The key was deleted after the read that returned `mark`.
    /// - More time than [`Loaded::floor`] has passed since that read, so the cache may have removed
    ///   the floor. A cache that keeps its floors for ever does not check this case.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`](distlock_core::ErrorKind::LimitExceeded) for a value that is
    /// too large for the cache; failures of the cache.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the value stored or not. A repeated call is safe.
    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool>;

    /// Removes the value and raises the floor, which the cache keeps for the time `floor`. A load
    /// that began before this call cannot store its value afterwards.
    ///
    /// # Errors
    /// Failures of the cache.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the key deleted or not. A repeated call is safe.
    async fn delete(&self, key: &str, floor: Duration) -> Result<()>;
}

#[async_trait]
impl<C: Cache + ?Sized> Cache for Arc<C> {
    async fn get(&self, key: &str) -> Result<Seen> {
        (**self).get(key).await
    }

    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool> {
        (**self).put(key, loaded, mark).await
    }

    async fn delete(&self, key: &str, floor: Duration) -> Result<()> {
        (**self).delete(key, floor).await
    }
}

/// A moment in the cache's own time. Only the cache that gave a mark can interpret the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// The state of a key in a cache.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The value, fresh or stale.
    pub found: Option<Found>,
    /// The moment of the read.
    pub mark: Mark,
}

/// A value that a cache holds.
#[derive(Clone, Debug)]
pub struct Found {
    /// `None`: the loader has said that there is no value.
    pub value: Option<Arc<[u8]>>,
    /// The token of the lock under which the value was loaded.
    pub token: FencingToken,
    /// The time for which the value stays fresh; zero: it is stale.
    pub fresh_for: Duration,
    /// The time that the load of the value took.
    pub load: Duration,
}

/// A loaded value that is to be stored.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `None`: there is no value.
    pub value: Option<Arc<[u8]>>,
    /// The token of the lock under which the value was loaded.
    pub token: FencingToken,
    /// The time for which the value is fresh.
    pub ttl: Duration,
    /// The time after `ttl` for which the value is kept as a stale value.
    pub stale: Duration,
    /// The time after `ttl` and `stale` for which the floor is kept.
    pub floor: Duration,
    /// The time that the load took.
    pub load: Duration,
}
