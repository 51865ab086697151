//! Where the keeper's jobs run: on the runtime of its thread, or where a simulation says.
//!
//! Owned: the jobs that have not ended. A job is dropped at the latest by [`Tasks::shutdown`].

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// Something to be run to its end.
pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes a job and has it polled.
pub(crate) type Spawn = Arc<dyn Fn(Job) + Send + Sync>;

/// The jobs of one keeper.
pub(super) enum Tasks {
    OnRuntime(JoinSet<()>),
    Elsewhere(Elsewhere),
}

/// Jobs that somebody else polls.
pub(super) struct Elsewhere {
    spawn: Spawn,
    running: usize,
    tell: mpsc::UnboundedSender<()>,
    ended: mpsc::UnboundedReceiver<()>,
    stop: watch::Sender<bool>,
}

impl Tasks {
    /// On the runtime that polls the caller.
    pub(super) fn on_runtime() -> Self {
        Self::OnRuntime(JoinSet::new())
    }

    pub(super) fn elsewhere(spawn: Spawn) -> Self {
        let (tell, ended) = mpsc::unbounded_channel();
        Self::Elsewhere(Elsewhere {
            spawn,
            running: 0,
            tell,
            ended,
            stop: watch::Sender::new(false),
        })
    }

    pub(super) fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::OnRuntime(tasks) => {
                tasks.spawn(job);
            }
            Self::Elsewhere(tasks) => tasks.spawn(job),
        }
    }

    /// Waits until one has ended; `None` when there is none.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn join_next(&mut self) -> Option<()> {
        match self {
            Self::OnRuntime(tasks) => tasks.join_next().await.map(drop),
            Self::Elsewhere(tasks) => tasks.join_next().await,
        }
    }

    /// Drops those that have not ended.
    pub(super) async fn shutdown(&mut self) {
        match self {
            Self::OnRuntime(tasks) => tasks.shutdown().await,
            Self::Elsewhere(tasks) => {
                tasks.stop.send_replace(true);
                while tasks.join_next().await.is_some() {}
            }
        }
    }
}

impl Elsewhere {
    fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        self.running += 1;
        // Told by its drop, so that a job that panics or is thrown away has ended as well.
        let ended = Ended(self.tell.clone());
        let mut stop = self.stop.subscribe();
        (self.spawn)(Box::pin(async move {
            let _ended = ended;
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
        // The sender lives in `self`, so this cannot fail.
        let _ = self.ended.recv().await;
        self.running -= 1;
        Some(())
    }
}

struct Ended(mpsc::UnboundedSender<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
