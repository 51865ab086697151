//! The number of requests that an opened store has sent, as a number of the store and as a metric.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use metrics::Counter;

const REQUESTS: &str = "distlock_store_requests_total";

/// Counts the requests of an opened store and of all handles that were reopened from this store.
/// Another store that this process opens has its own count.
///
/// Invariant: the metric `distlock_store_requests_total` of a backend is the sum of
/// [`requests_sent`](distlock_core::DistLock::requests_sent) over all stores of this backend that
/// the process has opened since it installed its recorder.
#[derive(Debug)]
pub struct RequestCount {
    backend: &'static str,
    sent: AtomicU64,
    /// The metric without the label `operation`. A store that labels all its requests has none.
    unlabelled: OnceLock<Counter>,
}

impl RequestCount {
    /// Creates the count of a store of this backend, and gives the metric its help text.
    #[must_use]
    pub fn new(backend: &'static str) -> Self {
        metrics::describe_counter!(REQUESTS, "Requests that were sent to the store");
        Self {
            backend,
            sent: AtomicU64::new(0),
            unlabelled: OnceLock::new(),
        }
    }

    /// Counts requests that are sent now.
    pub fn add(&self, requests: usize) {
        let requests = u64::try_from(requests).unwrap_or(u64::MAX);
        self.sent.fetch_add(requests, Ordering::Relaxed);
        let metric = || metrics::counter!(REQUESTS, "backend" => self.backend);
        self.unlabelled.get_or_init(metric).increment(requests);
    }

    /// Counts one request of this operation, which becomes a label of the metric.
    pub fn add_operation(&self, operation: &'static str) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(REQUESTS, "backend" => self.backend, "operation" => operation)
            .increment(1);
    }

    /// Requests sent so far.
    pub fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
