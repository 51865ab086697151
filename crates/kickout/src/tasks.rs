//! The background tasks of one flow, and the repetition of a step while the store is away.
//!
//! Every task starts through [`Tasks::spawn`], so [`Tasks::stop_and_wait`] can wait for all of
//! them. Every loop watches [`Tasks::stop`]. No task may block its thread.

use std::{future::Future, time::Duration};

use distlock_core::{Clock, Result, unix_time};
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The background tasks, and the signal that stops them.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// Cancelled when the flow ends.
    pub(crate) stop: CancellationToken,
    tracker: TaskTracker,
    runtime: Handle,
}

impl Tasks {
    /// Makes an empty set of tasks.
    pub(crate) fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            runtime: Handle::current(),
        }
    }

    /// Runs a task of the flow. The caller may be outside the runtime, because a session may be
    /// dropped on any thread.
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn_on(task, &self.runtime);
    }

    /// Stops the loops and waits until every task has ended.
    pub(crate) async fn stop_and_wait(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Shortest pause between two tries. A random time of up to the same length is added.
const PAUSE: Duration = Duration::from_millis(50);

/// Repeats a step after a temporary failure of the store, as long as `may_wait` returns true.
///
/// Two runs of the step must have the same effect as one run.
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

/// A random time of up to `most`. With such a pause, callers that failed at the same time retry at
/// different times.
pub(crate) fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

/// The wall clock in milliseconds since 1970.
pub(crate) fn wall_millis(clock: &dyn Clock) -> u64 {
    u64::try_from(unix_time(clock).as_millis()).unwrap_or(u64::MAX)
}
