//! Time in the cases: the clock, sleeps, bounds on the time of a step, and the measurement of
//! stalls: times in which this process could not run.
//!
//! Invariant: a bound here is either the promise of a case or seconds long, so a busy machine does
//! not fail a case. A bound on running time leaves stalls out, so a case does not take a stall of
//! the machine for a late report.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock as _, Moment, SystemClock, at_most};

use crate::{
    Outcome,
    failure::{ensure, fail},
};

/// The time that a case adds to a bound of the contract, because the machine may be busy with other
/// cases.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// The time limit of a step that does not wait for a lease to expire.
pub(crate) const SOON: Duration = Duration::from_secs(8);

pub(crate) fn now() -> Moment {
    SystemClock.now()
}

pub(crate) async fn sleep(time: Duration) {
    SystemClock.sleep(time).await;
}

pub(crate) async fn sleep_until(moment: Moment) {
    while now() < moment {
        sleep(moment.since(now())).await;
    }
}

/// The output of the future; `None` when it is not ready in time.
pub(crate) async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    at_most(&SystemClock, time, future).await
}

/// Waits for the output of a future for at most [`SOON`]. A late output is a failure.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> Outcome<F::Output> {
    match within(SOON, future).await {
        Some(output) => Ok(output),
        None => fail!("{what}: not within {SOON:?}"),
    }
}

/// Repeats a check until the condition holds. It is a failure when the condition does not hold
/// within `time`.
pub(crate) async fn eventually<F>(
    what: &str,
    time: Duration,
    mut condition: impl FnMut() -> F,
) -> Outcome
where
    F: Future<Output = Outcome<bool>>,
{
    let end = now() + time;
    loop {
        let over = now() >= end;
        if condition().await? {
            return Ok(());
        }
        ensure!(!over, "{what}: not within {time:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

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
