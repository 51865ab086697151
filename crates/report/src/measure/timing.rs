//! The only place that reads the machine's clock or sleeps: what is measured here is real time, not a lease.

use std::time::{Duration, Instant};

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "throughput and latency are measured in real time; no lease depends on it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Lets a failing store breathe, so that a run against a dead one does not spin.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause between failures in real time; no lease depends on it"
)]
pub(crate) async fn pause_after_error() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Lets some time go by while a lock is held, to within less than a millisecond.
///
/// # Cancel safety
/// Safe.
pub async fn keep(time: Duration) {
    if !time.is_zero() {
        // Tokio's timers would make a millisecond two.
        async_io::Timer::after(time).await;
    }
}

/// A duration in whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
