//! Rate limits: one token bucket for each key, in memory.
//!
//! This module never asks the store. The number of buckets is bounded.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Moment};

use crate::wait::jitter;

/// Most buckets. Beyond this number, full buckets are removed. A new bucket starts full as well, so
/// the removal changes no answer.
const MAX_BUCKETS: usize = 65_536;
/// Shortest delay that a refused caller gets.
pub(crate) const MIN_RETRY_AFTER: Duration = Duration::from_millis(200);

/// A rate limit for each key: a number per second, and a burst after a pause.
pub struct Rates<K> {
    per_second: u32,
    burst: u32,
    clock: Arc<dyn Clock>,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    /// Tokens that were left at the time `at`.
    left: f64,
    at: Moment,
}

impl<K: Eq + Hash + Clone> Rates<K> {
    /// Limits each key to `per_second` tokens on average, 0 = no limit, and to `burst` tokens at
    /// once.
    #[must_use]
    pub fn new(per_second: u32, burst: u32, clock: Arc<dyn Clock>) -> Self {
        Self {
            per_second,
            burst,
            clock,
            buckets: Mutex::default(),
        }
    }

    /// Takes one token of this key.
    ///
    /// # Errors
    /// The delay before the next attempt if there is no token. The delay has a random part.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        if self.per_second == 0 {
            return Ok(());
        }
        let (rate, burst) = (f64::from(self.per_second), f64::from(self.burst.max(1)));
        let now = self.clock.now();
        let refilled = |bucket: &Bucket| {
            let gained = now.since(bucket.at).as_secs_f64() * rate;
            (bucket.left + gained).min(burst)
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| refilled(bucket) < burst);
            if buckets.len() >= MAX_BUCKETS {
                // More keys than buckets are in use at once. The call is allowed; a limit on all
                // calls together has to protect the node.
                return Ok(());
            }
        }
        let bucket = buckets.entry(key.clone()).or_insert(Bucket {
            left: burst,
            at: now,
        });
        bucket.left = refilled(bucket);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        let wait = Duration::from_secs_f64((1.0 - bucket.left) / rate).max(MIN_RETRY_AFTER);
        // The random part spreads the next attempts of callers that were refused at the same time.
        Err(wait + jitter(wait))
    }
}

impl<K> fmt::Debug for Rates<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rates")
            .field("per_second", &self.per_second)
            .field("burst", &self.burst)
            .finish_non_exhaustive()
    }
}
