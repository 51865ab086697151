//! Counts the requests of one opened store.
//!
//! The module owns the counters behind `statements()` and `retries()`, and the metric of the
//! retries with its help text. A statement is counted each time that it is sent.

use std::sync::atomic::{AtomicU64, Ordering};

use distlock_backend_kit::RequestCount;

const RETRIES: &str = "distlock_store_retries_total";

/// Counts the requests of an opened store and of all handles that were reopened from this store.
/// Another store that this process opens has its own counters, even for the same tables.
#[derive(Debug)]
pub(crate) struct RequestCounters {
    backend: &'static str,
    statements: RequestCount,
    retries: AtomicU64,
}

impl RequestCounters {
    pub(crate) fn new(backend: &'static str) -> Self {
        metrics::describe_counter!(RETRIES, "Statements that were sent again");
        Self {
            backend,
            statements: RequestCount::new(backend),
            retries: AtomicU64::new(0),
        }
    }

    /// Counts a statement of the operation `operation`.
    pub(crate) fn count(&self, operation: &'static str) {
        self.statements.add_operation(operation);
    }

    /// Statements sent so far.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.total()
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
