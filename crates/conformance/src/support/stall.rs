//! The measurement of stalls: times in which this process could not run.
//!
//! A bound on running time leaves stalls out. So a case does not take a stall of the machine for a
//! late report.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::Moment;

use super::time::{now, sleep};

/// The pause after which the meter expects to run again.
const TICK: Duration = Duration::from_millis(5);
/// The usual delay of a sleep on a busy machine. Such a delay does not count as a stall.
const USUAL: Duration = Duration::from_millis(5);

/// Measures the time in which this process could not run.
#[derive(Debug)]
pub(crate) struct StallMeter {
    stalled_nanos: Arc<AtomicU64>,
    ticker: tokio::task::JoinHandle<()>,
}

impl StallMeter {
    /// Starts to measure, until the meter is dropped.
    pub(crate) fn start() -> Self {
        let stalled_nanos = Arc::<AtomicU64>::default();
        let total = Arc::clone(&stalled_nanos);
        let ticker = tokio::spawn(async move {
            loop {
                let before = now();
                sleep(TICK).await;
                let late = now().since(before).saturating_sub(TICK + USUAL);
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                total.fetch_add(late, Ordering::Relaxed);
            }
        });
        Self {
            stalled_nanos,
            ticker,
        }
    }

    /// The time from `earlier` to `later` without the stalls since the start of the meter.
    pub(crate) async fn running(&self, earlier: Moment, later: Moment) -> Duration {
        // The next tick counts a stall that ended just now.
        sleep(2 * TICK).await;
        let stalled = Duration::from_nanos(self.stalled_nanos.load(Ordering::Relaxed));
        later.since(earlier).saturating_sub(stalled)
    }
}

impl Drop for StallMeter {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}
