//! The jobs of the keeper. Jobs run on the runtime of the keeper thread, or a simulation polls
//! them.
//!
//! This module owns the jobs that have not ended. Invariant: [`Jobs::shutdown`] drops every job
//! that has not ended. The module knows nothing of the work inside a job.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// A future that runs to its end.
pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes a job, and has the job polled until it ends.
pub(crate) type Spawn = Arc<dyn Fn(Job) + Send + Sync>;

/// The jobs of one keeper.
pub(super) enum Jobs {
    OnRuntime(JoinSet<()>),
    Elsewhere(JobsElsewhere),
}

/// Jobs that a simulation polls.
pub(super) struct JobsElsewhere {
    spawn: Spawn,
    running: usize,
    end_sender: mpsc::UnboundedSender<()>,
    ends: mpsc::UnboundedReceiver<()>,
    stop: watch::Sender<bool>,
}

impl Jobs {
    /// Jobs on the tokio runtime of the calling task.
    pub(super) fn on_runtime() -> Self {
        Self::OnRuntime(JoinSet::new())
    }

    pub(super) fn elsewhere(spawn: Spawn) -> Self {
        let (end_sender, ends) = mpsc::unbounded_channel();
        Self::Elsewhere(JobsElsewhere {
            spawn,
            running: 0,
            end_sender,
            ends,
            stop: watch::Sender::new(false),
        })
    }

    pub(super) fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::OnRuntime(jobs) => {
                jobs.spawn(job);
            }
            Self::Elsewhere(jobs) => jobs.spawn(job),
        }
    }

    /// Waits until one job has ended; `None` when there is no job.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn join_next(&mut self) -> Option<()> {
        match self {
            Self::OnRuntime(jobs) => jobs.join_next().await.map(drop),
            Self::Elsewhere(jobs) => jobs.join_next().await,
        }
    }

    /// Drops the jobs that have not ended.
    pub(super) async fn shutdown(&mut self) {
        match self {
            Self::OnRuntime(jobs) => jobs.shutdown().await,
            Self::Elsewhere(jobs) => {
                jobs.stop.send_replace(true);
                while jobs.join_next().await.is_some() {}
            }
        }
    }
}

impl JobsElsewhere {
    fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        self.running += 1;
        // A drop sends the message of the end, so that a job that panics or is dropped counts as
        // ended too.
        let at_end = SendAtEnd(self.end_sender.clone());
        let mut stop = self.stop.subscribe();
        (self.spawn)(Box::pin(async move {
            let _at_end = at_end;
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = job => {}
            }
        }));
    }

    async fn join_next(&mut self) -> Option<()> {
        if self.running == 0 {
            return None;
        }
        // The wait cannot fail, because the sender lives in `self`.
        let _ = self.ends.recv().await;
        self.running -= 1;
        Some(())
    }
}

struct SendAtEnd(mpsc::UnboundedSender<()>);

impl Drop for SendAtEnd {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
