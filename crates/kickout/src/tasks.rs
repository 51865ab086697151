//! The background tasks of one flow.
//!
//! Every task starts through [`Tasks::spawn`], so [`Tasks::stop_and_wait`] can wait for all of
//! them. Every loop watches [`Tasks::stop`]. No task may block its thread.

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
