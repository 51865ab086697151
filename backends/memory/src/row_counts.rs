//! The numbers of rows of all shards, which a shard reads without locking the others.
//!
//! Invariant: a shard stores its number under its own mutex, whenever the number has changed.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use distlock_core::{Moment, micros};

/// The time between two removals of expired rows from a full table.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// The numbers of all shards, and the most rows in all.
#[derive(Debug)]
pub(crate) struct RowCounts {
    of_shards: Box<[RowCount]>,
    most: AtomicUsize,
    /// When the expired rows of a full table are removed again, in microseconds since boot.
    next_sweep: AtomicU64,
}

/// Each number has a cache line of its own, so that shards do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
struct RowCount(AtomicUsize);

impl RowCounts {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            of_shards: (0..shards).map(|_| RowCount::default()).collect(),
            most: AtomicUsize::new(usize::MAX),
            next_sweep: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, shard: usize, rows: usize) {
        self.of_shards[shard].0.store(rows, Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> usize {
        let counts = self.of_shards.iter();
        counts.map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    /// Whether a shard with this many rows may not have another one; `Some` with the most rows.
    pub(crate) fn is_full(&self, rows: usize) -> Option<usize> {
        let most = self.most.load(Ordering::Relaxed);
        // The sum of all shards is not needed for every grant: a shard with less than half of its
        // share is hardly one of a full table.
        if rows < most / (self.of_shards.len() * 2) {
            return None;
        }
        (self.all() >= most).then_some(most)
    }

    /// Whether the caller, whose row a full table has refused, should remove all expired rows. One
    /// caller a second does.
    pub(crate) fn begin_sweep(&self, now: Moment) -> bool {
        let now = micros(now.since_boot());
        let due = self.next_sweep.load(Ordering::Relaxed);
        let next = now.saturating_add(micros(SWEEP_PAUSE));
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        now >= due
            && self
                .next_sweep
                .compare_exchange(due, next, set, read)
                .is_ok()
    }
}
