//! How much one opened store has asked its database.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// What an opened store has sent, with all handles that were reopened from it. Another opened store
/// of this process counts its own, also on the same tables.
pub(crate) struct RequestCounters {
    backend: &'static str,
    statements: AtomicU64,
    retries: AtomicU64,
}

impl RequestCounters {
    pub(crate) const fn new(backend: &'static str) -> Self {
        Self {
            backend,
            statements: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        }
    }

    /// Counts a statement.
    pub(crate) fn count(&self, operation: &'static str) {
        self.statements.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("distlock_store_operations_total", "backend" => self.backend, "operation" => operation)
            .increment(1);
    }

    /// Statements sent so far.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Counts a statement that the store broke off for others' sake and that is sent again.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("distlock_store_retries_total", "backend" => self.backend).increment(1);
    }

    /// Statements that were sent again so far.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RequestCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tally")
            .field("statements", &self.statements())
            .finish_non_exhaustive()
    }
}
