//! The time in which this process could not run.
//!
//! A bound of running time does not count that time: it tells a late notice from a stalled machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::Moment;

use super::time::{now, sleep};

const TICK: Duration = Duration::from_millis(5);
/// The usual lateness of a sleep on a busy machine.
const USUAL: Duration = Duration::from_millis(5);

/// Measures the time in which this process could not run.
#[derive(Debug)]
pub(crate) struct StallMeter {
    stalled_nanos: Arc<AtomicU64>,
    ticker: tokio::task::JoinHandle<()>,
}

impl StallMeter {
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

    /// The running time from `earlier` to `later`; it may be a little more than that.
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
