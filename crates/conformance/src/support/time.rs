//! Time for cases.

use std::{future::Future, time::Duration};

use distlock_core::{Clock as _, Moment, SystemClock};

use crate::{
    Outcome,
    failure::{ensure, fail},
};

/// What goes on top of a bound that the contract gives, for a machine that is busy with other cases.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// Within this everything happens that does not wait for a lease to run out.
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

/// The future's output, or `None` when it is not ready in time.
pub(crate) async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = sleep(time) => None,
    }
}

/// As [`within`], where being late is a failure.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> Outcome<F::Output> {
    match within(SOON, future).await {
        Some(output) => Ok(output),
        None => fail!("{what}: not within {SOON:?}"),
    }
}

/// Asks until the answer is yes.
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
