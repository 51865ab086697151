//! Bounds on how often: a token bucket for each key, in memory, so that nothing is asked of the
//! store.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Moment};

use crate::wait::jitter;

/// Keys that are kept count of. Beyond it those that have been quiet are forgotten, which costs
/// nothing.
const KEYS: usize = 65_536;
/// Shortest advice to come back.
pub(crate) const LEAST: Duration = Duration::from_millis(200);

/// So many of something per second for each key, and so many at once after a quiet time.
pub struct Rates<K> {
    per_second: u32,
    burst: u32,
    clock: Arc<dyn Clock>,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Moment,
}

impl<K: Eq + Hash + Clone> Rates<K> {
    /// `per_second` in the long run, 0 = no bound; `burst` at once.
    #[must_use]
    pub fn new(per_second: u32, burst: u32, clock: Arc<dyn Clock>) -> Self {
        Self {
            per_second,
            burst,
            clock,
            buckets: Mutex::default(),
        }
    }

    /// Takes one for this key.
    ///
    /// # Errors
    /// There is none now: when to come back, spread at random.
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
        if buckets.len() >= KEYS && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| refilled(bucket) < burst);
            if buckets.len() >= KEYS {
                // More keys than that are busy at once: a bound on all together is what protects.
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
        let wait = Duration::from_secs_f64((1.0 - bucket.left) / rate).max(LEAST);
        // Those who were turned away together do not come back together.
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
