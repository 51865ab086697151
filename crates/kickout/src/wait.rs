//! Bounded waits on the injected clock.

use std::{future::Future, time::Duration};

use distlock_core::Clock;

/// What `future` gives, or `None` when it takes longer than `limit`.
pub(crate) async fn within<F: Future>(
    clock: &dyn Clock,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep(limit) => None,
    }
}

/// A random time of up to `most`: callers that failed together do not come back together.
pub(crate) fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}
