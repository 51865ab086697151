//! The epochs that the connections of a handle have found, one after the other.

use distlock_core::{Epoch, sync::Mutex};

/// Remembers the epoch that the last connection found, and whether it ever changed.
///
/// Invariant: once the epoch has changed, it counts as changed for as long as the handle lives. A
/// lock that is missing then may have been lost to the change.
#[derive(Debug, Default)]
pub struct EpochHistory(
    // A blocking mutex: it is held only to look and to swap, never across an await.
    Mutex<Seen>,
);

#[derive(Debug, Default)]
struct Seen {
    last: Option<Epoch>,
    changed: bool,
}

impl EpochHistory {
    /// Notes the epoch that a new connection has found.
    pub fn note(&self, epoch: Epoch) {
        let mut seen = self.0.lock();
        let before = seen.last.replace(epoch);
        seen.changed |= before.is_some() && before != seen.last;
    }

    /// The epoch of the last connection; `None` before the first one.
    #[must_use]
    pub fn last(&self) -> Option<Epoch> {
        self.0.lock().last.clone()
    }

    /// Whether two connections found different epochs.
    #[must_use]
    pub fn changed(&self) -> bool {
        self.0.lock().changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_remembered_after_the_old_epoch_is_back() {
        let history = EpochHistory::default();
        assert_eq!(history.last(), None);
        for _ in 0..2 {
            history.note(Epoch::new("one"));
            assert!(!history.changed());
        }
        history.note(Epoch::new("two"));
        assert!(history.changed());
        for _ in 0..2 {
            history.note(Epoch::new("one"));
            assert!(history.changed());
        }
        assert_eq!(history.last(), Some(Epoch::new("one")));
    }
}
