//! The limit of names that are held at the same time.
//!
//! Counting looks at all shards of the table, so it is done now and then: some more names than the
//! limit can be held.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use distlock_core::Moment;
use distlock_memory::Table;

/// The attempts between two looks while there is room.
const ATTEMPTS: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct NameLimit {
    most: usize,
    attempts: AtomicUsize,
    is_full: AtomicBool,
}

impl NameLimit {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            attempts: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// Whether one more name may be held.
    pub(super) fn has_room(&self, table: &Table, now: Moment) -> bool {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let is_due = attempt.is_multiple_of(ATTEMPTS);
        if is_due || self.is_full.load(Ordering::Relaxed) {
            // The rows of expired leases count, until somebody removes them.
            if is_due && table.rows() >= self.most {
                table.remove_expired(now);
            }
            self.is_full
                .store(table.rows() >= self.most, Ordering::Relaxed);
        }
        !self.is_full.load(Ordering::Relaxed)
    }
}
