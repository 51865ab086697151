//! Counts the requests of one opened store.
//!
//! The module owns the counters behind `statements()` and `retries()`, and the two metrics with the
//! same values and their help texts. A statement is counted each time that it is sent.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

const OPERATIONS: &str = "distlock_store_operations_total";
const RETRIES: &str = "distlock_store_retries_total";

/// Counts the requests of an opened store and of all handles that were reopened from this store.
/// Another store that this process opens has its own counters, even for the same tables.
pub(crate) struct RequestCounters {
    backend: &'static str,
    statements: AtomicU64,
    retries: AtomicU64,
}

impl RequestCounters {
    pub(crate) fn new(backend: &'static str) -> Self {
        metrics::describe_counter!(OPERATIONS, "Statements that were sent to the database");
        metrics::describe_counter!(RETRIES, "Statements that were sent again");
        Self {
            backend,
            statements: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        }
    }

    /// Counts a statement of the operation `operation`.
    pub(crate) fn count(&self, operation: &'static str) {
        self.statements.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(OPERATIONS, "backend" => self.backend, "operation" => operation)
            .increment(1);
    }

    /// Statements sent so far.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Counts a statement that is sent again because the server rolled the first send back for
    /// another transaction, or because the connection was lost.
    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(RETRIES, "backend" => self.backend).increment(1);
    }

    /// Statements that were sent again so far.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RequestCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestCounters")
            .field("statements", &self.statements())
            .finish_non_exhaustive()
    }
}
