//! Time limits for a store that hangs, and pauses.

use std::{future::Future, time::Duration};

use distlock::{Clock as _, SystemClock};

/// The result of `work`, or `None` if it takes longer than `time`.
pub(super) async fn within<F: Future>(time: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(time, Box::pin(work)).await.ok()
}

/// Waits in real time.
pub(super) async fn pause(time: Duration) {
    SystemClock.sleep(time).await;
}
