//! What a guarded cache has to do.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{FencingToken, Result};

/// A cache that refuses values which came too late. Three operations; each is one step of the
/// cache.
///
/// For each key it keeps, beside the value, a *floor*: the highest token that a value was stored
/// with, and when the key was last deleted. The floor must outlive the value by the time that the
/// caller names, or be kept for ever.
#[async_trait]
pub trait Cache: fmt::Debug + Send + Sync {
    /// What there is under a key, and a mark for a load that begins now.
    ///
    /// # Errors
    /// Failures of the cache; a value that cannot be read is no value.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    async fn get(&self, key: &str) -> Result<Seen>;

    /// Stores what a load gave, unless it came too late: a value with a higher token is there, the
    /// key was deleted after the mark was given, or the mark is older than the floor is kept.
    /// Answers whether it was stored.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`](distlock_core::ErrorKind::LimitExceeded) for a value that the
    /// cache does not take; failures of the cache.
    ///
    /// # Cancel safety
    /// When it is dropped the value is stored or not; repeating it is safe.
    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool>;

    /// Removes the value, and raises the floor, which is kept for so long: no load that has begun
    /// stores anything any more.
    ///
    /// # Errors
    /// Failures of the cache.
    ///
    /// # Cancel safety
    /// When it is dropped the key is deleted or not; repeating it is safe.
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

/// A moment of a cache, which only the cache can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// What a cache has under a key.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The value, fresh or stale.
    pub found: Option<Found>,
    /// When it was looked for.
    pub mark: Mark,
}

/// A value of a cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// `None` = it is known that there is none.
    pub value: Option<Arc<[u8]>>,
    /// Of the lock under which it was loaded.
    pub token: FencingToken,
    /// For how long it is fresh; zero = it is stale.
    pub fresh_for: Duration,
    /// How long its load took.
    pub load: Duration,
}

/// What a load gave.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `None` = there is none.
    pub value: Option<Arc<[u8]>>,
    /// Of the lock under which it was loaded.
    pub token: FencingToken,
    /// How long it is fresh.
    pub ttl: Duration,
    /// How long it is kept after that, as a stale one.
    pub stale: Duration,
    /// How long the floor is kept after that.
    pub floor: Duration,
    /// How long the load took.
    pub load: Duration,
}
