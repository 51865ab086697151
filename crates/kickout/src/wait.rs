//! Bounded waits on the injected clock.

use std::{future::Future, time::Duration};

use distlock_core::{Clock, Result, unix_time};

/// The shortest pause before a step is tried again. A random time of up to as much is added.
const PAUSE: Duration = Duration::from_millis(50);

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

/// Tries a step again while the store cannot do it for the moment and `may_wait` says that it is worth it.
///
/// For steps that change nothing when they are done twice.
pub(crate) async fn retry_while<T, F: Future<Output = Result<T>>>(
    clock: &dyn Clock,
    may_wait: impl Fn() -> bool,
    mut step: impl FnMut() -> F,
) -> Result<T> {
    loop {
        match step().await {
            Err(error) if error.is_retryable() && may_wait() => {
                clock.sleep(PAUSE + jitter(PAUSE)).await;
            }
            done => return done,
        }
    }
}

/// A random time of up to `most`: callers that failed together do not come back together.
pub(crate) fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

/// The wall clock in milliseconds since 1970.
pub(crate) fn wall_millis(clock: &dyn Clock) -> u64 {
    u64::try_from(unix_time(clock).as_millis()).unwrap_or(u64::MAX)
}
