//! Telling a late notice from a machine that did not run.

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
/// A sleep may be this late on a machine that is merely busy.
const USUAL: Duration = Duration::from_millis(5);

/// Measures for how long this process did not get to run, since bounds of running time do not count that.
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

    /// Running time from `earlier` to `later`, at least.
    pub(crate) async fn running(&self, earlier: Moment, later: Moment) -> Duration {
        // A stall that ended just now is counted by the next tick.
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
