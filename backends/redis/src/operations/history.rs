//! The epoch that last served each bucket. This epoch decides the reason that is reported for a
//! missing lock.
//!
//! After a restart, a failover or a slot migration, answers come from another history (epoch). A
//! lock that still exists survived the change. A missing lock was lost to the change if it was
//! granted before the change. The token of the lock shows that, because tokens are counted on the
//! server's clock.
//!
//! Invariant: a lease that was seen to hold its lock after a change is never reported as lost to
//! that change.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use distlock_core::{Epoch, Lease, LossReason, OwnerId, sync::Mutex};

use crate::format::keys::{BUCKETS, Bucket};

/// The epochs that this process has seen. All handles of a store share them.
#[derive(Debug)]
pub(crate) struct Histories {
    /// All epochs that were seen. The position in the list, counted from 1, is the number of the
    /// epoch.
    // A blocking mutex: it is held for operations on a short list only.
    epochs: Mutex<Vec<Epoch>>,
    buckets: Box<[BucketHistory]>,
    /// Owners whose locks were granted before a change of the epoch and were seen to be held after
    /// it.
    survivors: Mutex<HashSet<OwnerId>>,
    surviving: AtomicUsize,
}

#[derive(Debug, Default)]
struct BucketHistory {
    /// The number of the epoch that gave the last answer; 0 before the first answer.
    epoch: AtomicU32,
    /// A token below this number was granted in an earlier epoch.
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

    /// Returns the number of an epoch. A new epoch gets the next number.
    pub(crate) fn number(&self, epoch: &Epoch) -> u32 {
        let mut epochs = self.epochs.lock();
        let at = epochs.iter().position(|known| known == epoch);
        let at = at.unwrap_or_else(|| {
            epochs.push(epoch.clone());
            epochs.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX - 1) + 1
    }

    /// Records that this epoch served a bucket. If the epoch is new for the bucket, `now` reads the
    /// server's clock. `now` returns `None` when the answer is older than the change; then nothing
    /// is recorded.
    pub(crate) fn observe(&self, bucket: Bucket, epoch: u32, now: impl FnOnce() -> Option<u64>) {
        let history = &self.buckets[bucket.index()];
        if history.epoch.load(Ordering::Acquire) == epoch {
            return;
        }
        // Changes are rare. The mutex of the list excludes two handles that notice a change at the
        // same time.
        let _one_at_a_time = self.epochs.lock();
        let before = history.epoch.load(Ordering::Acquire);
        if before != epoch {
            if before != 0 {
                let Some(now) = now() else { return };
                history.since.store(now, Ordering::Release);
            }
            history.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Records that a lease was renewed after a change of the epoch. A lease that was granted after
    /// the change is not recorded.
    pub(crate) fn record_survival(&self, bucket: Bucket, lease: &Lease) {
        if self.is_from_before(bucket, lease) && self.survivors.lock().insert(lease.owner) {
            self.surviving.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the reason of the loss that is reported to the holder of a lease.
    pub(crate) fn reason(&self, bucket: Bucket, lease: &Lease, seen: LossReason) -> LossReason {
        let before = self.is_from_before(bucket, lease);
        if before && !self.forget(lease.owner) {
            LossReason::HistoryChanged
        } else {
            seen
        }
    }

    /// Removes an owner whose lease has ended. Returns whether the lease had survived a change of
    /// the epoch.
    pub(crate) fn forget(&self, owner: OwnerId) -> bool {
        if self.surviving.load(Ordering::Acquire) == 0 {
            return false;
        }
        let survived = self.survivors.lock().remove(&owner);
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
        // A late answer from before the change changes nothing.
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
        // Another bucket is still served by its old epoch.
        assert_eq!(histories.reason(Bucket::of("b"), &lost, seen), seen);
        assert_eq!(histories.surviving.load(Ordering::Acquire), 0);
    }
}
