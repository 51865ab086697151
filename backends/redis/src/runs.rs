//! Which leases came by hand-over: when such a one is released, the core asks whether another process waits.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_core::OwnerId;

/// More are forgotten: guards that were lost never come back to be struck off.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Runs {
    // A std mutex: held for one operation of the set.
    owners: Mutex<HashSet<OwnerId>>,
    len: AtomicUsize,
}

impl Runs {
    /// A lock passed from one owner to the next.
    pub(crate) fn passed(&self, from: OwnerId, to: OwnerId) {
        let mut owners = self.owners();
        owners.remove(&from);
        if owners.len() >= MOST {
            owners.clear();
        }
        owners.insert(to);
        self.len.store(owners.len(), Ordering::Release);
    }

    /// This owner is about to let go. Whether it had come by hand-over.
    pub(crate) fn ended(&self, owner: OwnerId) -> bool {
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
    use super::*;

    #[test]
    fn a_run_ends_with_its_last_owner() {
        let runs = Runs::default();
        let owners: Vec<_> = (0..3).map(|_| OwnerId::new()).collect();
        assert!(!runs.ended(owners[0]));
        runs.passed(owners[0], owners[1]);
        runs.passed(owners[1], owners[2]);
        assert!(!runs.ended(owners[1]));
        assert!(runs.ended(owners[2]));
        assert!(!runs.ended(owners[2]));
        for _ in 0..2 * MOST {
            runs.passed(OwnerId::new(), OwnerId::new());
        }
        assert!(runs.owners().len() <= MOST);
    }
}
