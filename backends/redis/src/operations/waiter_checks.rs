//! Chooses the releases that ask the server whether another process waits. If one waits, this
//! process lets it take the lock first.
//!
//! Two kinds of releases ask. The first is the release that ends a series of hand-overs. The second
//! is a sample of all releases. The sample is needed because a process that takes a lock again
//! right after its release is faster than a waiter that must first receive a push. Without the
//! sample, such a process would never notice that others wait. Not every release asks, because with
//! many callers this costs an eighth of the throughput.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use distlock_core::{Moment, OwnerId, sync::Mutex};

/// The limit of entries. A limit is needed because entries of lost guards are never removed one by
/// one.
const MAX_ENTRIES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct WaiterChecks {
    // A blocking mutex: it is held for one operation of the set.
    owners: Mutex<HashSet<OwnerId>>,
    len: AtomicUsize,
    /// The moment of the last sampled release, in milliseconds since boot.
    sampled: AtomicU64,
}

impl WaiterChecks {
    /// Records that a lock passed from one owner to the next.
    pub(crate) fn handed_over(&self, from: OwnerId, to: OwnerId) {
        let mut owners = self.owners.lock();
        owners.remove(&from);
        if owners.len() >= MAX_ENTRIES {
            owners.clear();
        }
        owners.insert(to);
        self.len.store(owners.len(), Ordering::Release);
    }

    /// Returns whether the release of this owner must ask if another process waits.
    pub(crate) fn should_check(&self, owner: OwnerId, now: Moment) -> bool {
        self.came_by_hand_over(owner) || self.is_sampled(owner, now)
    }

    /// Returns whether no release was sampled for a random time of up to a quarter of a second.
    /// With a fixed time, several locks in a regular cycle could keep one of them from ever being
    /// sampled.
    fn is_sampled(&self, owner: OwnerId, now: Moment) -> bool {
        let now = u64::try_from(now.since_boot().as_millis()).unwrap_or(u64::MAX);
        // An owner id is random, so its first byte gives a random pause.
        let pause = u64::from(owner.as_uuid().as_bytes()[0]);
        let due = now.saturating_sub(self.sampled.load(Ordering::Relaxed)) > pause;
        if due {
            self.sampled.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Returns whether this owner got its lock by hand-over.
    fn came_by_hand_over(&self, owner: OwnerId) -> bool {
        if self.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut owners = self.owners.lock();
        let came = owners.remove(&owner);
        self.len.store(owners.len(), Ordering::Release);
        came
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the number of releases that ask, when one release follows the other after the time
    /// `each`.
    fn asks(waiter_checks: &WaiterChecks, releases: u32, each: Duration) -> u32 {
        let mut now = Moment::from_boot(Duration::from_secs(100));
        let mut asked = 0;
        for _ in 0..releases {
            now = now + each;
            asked += u32::from(waiter_checks.should_check(OwnerId::new(), now));
        }
        asked
    }

    #[test]
    fn frequent_releases_rarely_ask_and_rare_ones_mostly_ask() {
        let waiter_checks = WaiterChecks::default();
        let few = asks(&waiter_checks, 100_000, Duration::from_micros(10));
        assert!((50..5000).contains(&few), "{few}");
        let most = asks(&waiter_checks, 1000, Duration::from_millis(150));
        assert!((500..1000).contains(&most), "{most}");
    }

    #[test]
    fn only_the_last_owner_of_a_series_asks() {
        let waiter_checks = WaiterChecks::default();
        let owners: Vec<_> = (0..3).map(|_| OwnerId::new()).collect();
        assert!(!waiter_checks.came_by_hand_over(owners[0]));
        waiter_checks.handed_over(owners[0], owners[1]);
        waiter_checks.handed_over(owners[1], owners[2]);
        assert!(!waiter_checks.came_by_hand_over(owners[1]));
        assert!(waiter_checks.came_by_hand_over(owners[2]));
        assert!(!waiter_checks.came_by_hand_over(owners[2]));
        for _ in 0..2 * MAX_ENTRIES {
            waiter_checks.handed_over(OwnerId::new(), OwnerId::new());
        }
        assert!(waiter_checks.owners.lock().len() <= MAX_ENTRIES);
    }
}
