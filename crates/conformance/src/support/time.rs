//! Time in the cases: the clock, sleeps, and bounds on the time of a step.
//!
//! Invariant: a bound here is either the promise of a case or seconds long, so a busy machine does
//! not fail a case.

use std::{future::Future, time::Duration};

use distlock_core::{Clock as _, Moment, SystemClock};

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
    tokio::select! {
        biased;
        output = future => Some(output),
        () = sleep(time) => None,
    }
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
