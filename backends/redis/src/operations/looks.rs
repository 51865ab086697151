//! Which releases ask the server whether another process waits, so that this one lets it go first.
//!
//! Two kinds of releases ask. One is the release that ends a run of hand-overs. The other is a sample
//! of all: a process that takes a lock again as soon as it has released it is sooner there than those
//! who have to hear of the release first, and would never notice that they wait. Not every release
//! asks, because with many callers that costs an eighth of the throughput.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use distlock_core::{Moment, OwnerId};

/// More are forgotten: guards that were lost never come back to be struck off.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Looks {
    // A std mutex: held for one operation of the set.
    owners: Mutex<HashSet<OwnerId>>,
    len: AtomicUsize,
    /// When a release was sampled last, in milliseconds.
    sampled: AtomicU64,
}

impl Looks {
    /// A lock passed from one owner to the next.
    pub(crate) fn handed_over(&self, from: OwnerId, to: OwnerId) {
        let mut owners = self.owners();
        owners.remove(&from);
        if owners.len() >= MOST {
            owners.clear();
        }
        owners.insert(to);
        self.len.store(owners.len(), Ordering::Release);
    }

    /// This owner is about to let go. Whether it is to ask who waits.
    pub(crate) fn looks(&self, owner: OwnerId, now: Moment) -> bool {
        self.ended(owner) || self.samples(owner, now)
    }

    /// Whether no release was sampled for a random time of up to a quarter of a second. A fixed time
    /// could miss the same lock each time, where several are used in turn.
    fn samples(&self, owner: OwnerId, now: Moment) -> bool {
        let now = u64::try_from(now.since_boot().as_millis()).unwrap_or(u64::MAX);
        // Owners are random.
        let pause = u64::from(owner.as_uuid().as_bytes()[0]);
        let due = now.saturating_sub(self.sampled.load(Ordering::Relaxed)) > pause;
        if due {
            self.sampled.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Whether it had come by hand-over.
    fn ended(&self, owner: OwnerId) -> bool {
        if self.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut owners = self.owners();
        let came = owners.remove(&owner);
        self.len.store(owners.len(), Ordering::Release);
        came
    }

    fn owners(&self) -> MutexGuard<'_, HashSet<OwnerId>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many of the releases ask, with so much time from one to the next.
    fn asks(looks: &Looks, releases: u32, each: Duration) -> u32 {
        let mut now = Moment::from_boot(Duration::from_secs(100));
        let mut asked = 0;
        for _ in 0..releases {
            now = now + each;
            asked += u32::from(looks.looks(OwnerId::new(), now));
        }
        asked
    }

    #[test]
    fn few_of_many_releases_ask_and_most_of_few() {
        let looks = Looks::default();
        let few = asks(&looks, 100_000, Duration::from_micros(10));
        assert!((50..5000).contains(&few), "{few}");
        let most = asks(&looks, 1000, Duration::from_millis(150));
        assert!((500..1000).contains(&most), "{most}");
    }

    #[test]
    fn a_run_ends_with_its_last_owner() {
        let looks = Looks::default();
        let owners: Vec<_> = (0..3).map(|_| OwnerId::new()).collect();
        assert!(!looks.ended(owners[0]));
        looks.handed_over(owners[0], owners[1]);
        looks.handed_over(owners[1], owners[2]);
        assert!(!looks.ended(owners[1]));
        assert!(looks.ended(owners[2]));
        assert!(!looks.ended(owners[2]));
        for _ in 0..2 * MOST {
            looks.handed_over(OwnerId::new(), OwnerId::new());
        }
        assert!(looks.owners().len() <= MOST);
    }
}
