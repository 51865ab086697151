//! Real time. Only this module reads the machine's clock or sleeps: the measured times are real
//! times, and no lease depends on them.

use std::time::{Duration, Instant};

/// The present moment.
#[expect(
    clippy::disallowed_methods,
    reason = "throughput and latency are measured in real time; no lease depends on it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pauses after an error, so that a run against a dead store does not spin.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause between failures in real time; no lease depends on it"
)]
pub(crate) async fn pause_after_error() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// Waits for the given time while a lock is held, exact to less than a millisecond.
///
/// # Cancel safety
/// Safe to drop: nothing is changed.
pub async fn hold_for(time: Duration) {
    if !time.is_zero() {
        // Tokio's timers have a resolution of one millisecond and round up, so a wait of one
        // millisecond could take two.
        async_io::Timer::after(time).await;
    }
}

/// A duration in whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
