//! Storm control: limits on the logins of one account and of one node.
//!
//! A login beyond a limit is refused, with a delay before the client may try again. This module
//! never asks the store.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Moment, sync::Mutex};

use crate::{model::ident::Uid, tasks::jitter};

/// Limits on logins. Each node counts by itself. The limit per account slows down two devices that
/// end each other's sessions again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Average number of logins of one account per second; 0 = no limit.
    pub per_second: u32,
    /// Number of logins that one account may make at once after a pause.
    pub burst: u32,
    /// Number of logins that may be in progress on this node at the same time; 0 = no limit.
    pub under_way: usize,
}

impl Admission {
    /// No limits, for a server with limits of its own.
    #[must_use]
    pub const fn unbounded() -> Self {
        Self {
            per_second: 0,
            burst: 0,
            under_way: 0,
        }
    }

    /// Limits the logins of one account: `per_second` on average, and `burst` at once after a
    /// pause.
    #[must_use]
    pub const fn per_account(mut self, per_second: u32, burst: u32) -> Self {
        self.per_second = per_second;
        self.burst = burst;
        self
    }

    /// Limits the logins in progress on this node at the same time.
    #[must_use]
    pub const fn under_way(mut self, most: usize) -> Self {
        self.under_way = most;
        self
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::unbounded()
    }
}

/// Counts logins against the limits.
#[derive(Debug)]
pub(crate) struct Admissions {
    most: usize,
    under_way: Arc<AtomicUsize>,
    accounts: Rates<Uid>,
}

/// Counts one login in progress until it is dropped.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(Arc<AtomicUsize>);

/// The refusal of a login beyond a limit. The client may try again later.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Throttled {
    /// The exceeded limit: `account` or `node`.
    pub(crate) scope: &'static str,
    pub(crate) retry_after: Duration,
}

impl Admissions {
    pub(crate) fn new(bounds: Admission, clock: Arc<dyn Clock>) -> Self {
        Self {
            most: bounds.under_way,
            under_way: Arc::default(),
            accounts: Rates::new(bounds.per_second, bounds.burst, clock),
        }
    }

    /// Admits one login that is within the bounds. The login counts as in progress until the permit
    /// is dropped.
    pub(crate) fn take_permit(&self, uid: &Uid) -> Result<AdmissionPermit, Throttled> {
        let before = self.under_way.fetch_add(1, Ordering::AcqRel);
        let permit = AdmissionPermit(Arc::clone(&self.under_way));
        if self.most > 0 && before >= self.most {
            return Err(Throttled {
                scope: "node",
                retry_after: MIN_RETRY_AFTER + jitter(Duration::from_secs(2)),
            });
        }
        let throttled = |retry_after| Throttled {
            scope: "account",
            retry_after,
        };
        self.accounts.take(uid).map_err(throttled)?;
        Ok(permit)
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

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
        let mut buckets = self.buckets.lock();
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

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    #[test]
    fn an_account_is_slowed_down_and_others_are_not() {
        let clock = ManualClock::new();
        let bounds = Admission::unbounded().per_account(2, 5);
        let admissions = Admissions::new(bounds, Arc::new(clock.clone()));
        let (anna, otto) = (Uid::new("anna").unwrap(), Uid::new("otto").unwrap());
        for _ in 0..5 {
            admissions.take_permit(&anna).unwrap();
        }
        let throttled = admissions.take_permit(&anna).unwrap_err();
        assert_eq!(throttled.scope, "account");
        let advised = throttled.retry_after;
        assert!(advised >= Duration::from_millis(500) && advised <= Duration::from_secs(1));
        admissions.take_permit(&otto).unwrap();
        clock.advance(Duration::from_millis(500));
        admissions.take_permit(&anna).unwrap();
        admissions.take_permit(&anna).unwrap_err();
    }

    #[test]
    fn a_node_runs_a_bounded_number_of_logins_at_the_same_time() {
        let admissions = Admissions::new(
            Admission::unbounded().under_way(2),
            Arc::new(ManualClock::new()),
        );
        let uid = Uid::new("anna").unwrap();
        let (first, _second) = (
            admissions.take_permit(&uid).unwrap(),
            admissions.take_permit(&uid).unwrap(),
        );
        assert_eq!(admissions.take_permit(&uid).unwrap_err().scope, "node");
        assert_eq!(admissions.take_permit(&uid).unwrap_err().scope, "node");
        drop(first);
        drop(admissions.take_permit(&uid).unwrap());
    }
}
