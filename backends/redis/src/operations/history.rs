//! Which history each bucket was last served from, and so why a missing lock was lost.
//!
//! After a restart, a failover or a slot migration, answers come from another history. A lock that
//! is still there survived the change. A lock that is missing was lost to the change if it was
//! granted before it. Tokens tell that, because they are counted on the server's clock.
//!
//! Invariant: a lease that was seen to hold its lock after a change is never reported as lost to
//! that change.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use distlock_core::{Epoch, Lease, LossReason, OwnerId};

use crate::format::keys::{BUCKETS, Bucket};

/// The histories that this process has seen, shared by all handles of a store.
#[derive(Debug)]
pub(crate) struct Histories {
    /// All epochs that were seen, numbered from 1.
    // A std mutex: it is held for operations on a short list only.
    epochs: Mutex<Vec<Epoch>>,
    buckets: Box<[BucketHistory]>,
    /// Owners whose locks were granted before a change and were seen to be held after it.
    survivors: Mutex<HashSet<OwnerId>>,
    surviving: AtomicUsize,
}

#[derive(Debug, Default)]
struct BucketHistory {
    /// The number of the epoch of the last answer; 0 before the first one.
    epoch: AtomicU32,
    /// Tokens below this number were granted in an earlier history.
    since: AtomicU64,
}

impl Histories {
    pub(crate) fn new() -> Self {
        Self {
            epochs: Mutex::default(),
            buckets: (0..BUCKETS).map(|_| BucketHistory::default()).collect(),
            survivors: Mutex::default(),
            surviving: AtomicUsize::new(0),
        }
    }

    /// The number of an epoch.
    pub(crate) fn number(&self, epoch: &Epoch) -> u32 {
        let mut epochs = lock(&self.epochs);
        let at = epochs.iter().position(|known| known == epoch);
        let at = at.unwrap_or_else(|| {
            epochs.push(epoch.clone());
            epochs.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX - 1) + 1
    }

    /// Records that a bucket was served by this epoch. If the epoch is new for the bucket, `now`
    /// reads the server's clock; it returns `None` when the answer is older than the change and
    /// must be ignored.
    pub(crate) fn observe(&self, bucket: Bucket, epoch: u32, now: impl FnOnce() -> Option<u64>) {
        let history = &self.buckets[bucket.index()];
        if history.epoch.load(Ordering::Acquire) == epoch {
            return;
        }
        // Changes are rare. The list's mutex keeps apart two handles that notice one at the same
        // time.
        let _one_at_a_time = lock(&self.epochs);
        let before = history.epoch.load(Ordering::Acquire);
        if before != epoch {
            if before != 0 {
                let Some(now) = now() else { return };
                history.since.store(now, Ordering::Release);
            }
            history.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Records that a lease was found to hold its lock.
    pub(crate) fn record_survival(&self, bucket: Bucket, lease: &Lease) {
        if self.is_from_before(bucket, lease) && lock(&self.survivors).insert(lease.owner) {
            self.surviving.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The reason of a lease's end that its holder is told.
    pub(crate) fn reason(&self, bucket: Bucket, lease: &Lease, seen: LossReason) -> LossReason {
        let before = self.is_from_before(bucket, lease);
        if before && !self.forget(lease.owner) {
            LossReason::HistoryChanged
        } else {
            seen
        }
    }

    /// Forgets an owner whose lease is over. Returns whether the lease had survived a change.
    pub(crate) fn forget(&self, owner: OwnerId) -> bool {
        if self.surviving.load(Ordering::Acquire) == 0 {
            return false;
        }
        let survived = lock(&self.survivors).remove(&owner);
        if survived {
            self.surviving.fetch_sub(1, Ordering::AcqRel);
        }
        survived
    }

    fn is_from_before(&self, bucket: Bucket, lease: &Lease) -> bool {
        let since = self.buckets[bucket.index()].since.load(Ordering::Acquire);
        lease.token.is_some_and(|token| token.get() < since)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use distlock_core::{FencingToken, LockName};

    use super::*;

    fn lease(name: &str, token: u64) -> Lease {
        let name = LockName::new(name).unwrap();
        Lease::new(name, OwnerId::new(), FencingToken::new(token).ok())
    }

    #[test]
    fn a_lock_granted_before_a_change_is_lost_to_it_unless_seen_after_it() {
        let histories = Histories::new();
        let (one, two) = (
            histories.number(&Epoch::new("one")),
            histories.number(&Epoch::new("two")),
        );
        assert_eq!(one, histories.number(&Epoch::new("one")));
        assert_ne!(one, two);
        let bucket = Bucket::of("a");
        let (lost, survives) = (lease("a", 100), lease("a", 101));
        histories.observe(bucket, one, || unreachable!("the first is no news"));
        histories.observe(bucket, one, || unreachable!());
        let seen = LossReason::Removed;
        assert_eq!(histories.reason(bucket, &lost, seen), seen);

        histories.observe(bucket, two, || Some(500));
        // A late answer from before the change has no effect on either list.
        histories.observe(bucket, one, || None);
        histories.observe(bucket, two, || unreachable!());
        assert_eq!(
            histories.reason(bucket, &lost, seen),
            LossReason::HistoryChanged
        );
        histories.record_survival(bucket, &survives);
        histories.record_survival(bucket, &survives);
        assert_eq!(histories.reason(bucket, &survives, seen), seen);
        assert_eq!(histories.reason(bucket, &lease("a", 500), seen), seen);
        // Another bucket is still served from its old history.
        assert_eq!(histories.reason(Bucket::of("b"), &lost, seen), seen);
        assert_eq!(histories.surviving.load(Ordering::Acquire), 0);
    }
}
