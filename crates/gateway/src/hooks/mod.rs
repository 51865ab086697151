//! Web hooks: a node tells other web services what happens on it.
//!
//! Invariant of this folder: nothing waits for a receiver. A receiver costs a bounded memory, and
//! each event is delivered, or counted as dropped. An event has one id at every attempt.

mod address;
mod event;
mod receiver;
mod sender;
mod signature;

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, Result, at_most};
use distlock_kickout::{KickOut, NodeId};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::{receiver::Receiver, sender::Sender};
use crate::config::HookConfig;

/// Longest wait for receivers when the node stops.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// The receivers of the configuration. All clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Hooks(Arc<[Arc<Sender>]>);

impl Hooks {
    /// Reads the secrets of each receiver.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file or a URL that cannot
    /// be used.
    pub(crate) async fn open(
        hooks: &[HookConfig],
        node: &NodeId,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut senders = Vec::new();
        for hook in hooks {
            let sender = Sender::open(hook, node.clone(), Arc::clone(clock)).await?;
            senders.push(Arc::new(sender));
        }
        Ok(Self(senders.into()))
    }

    /// Whether there is a file to read again.
    pub(crate) fn can_reload(&self) -> bool {
        !self.0.is_empty()
    }

    /// Reads the secrets again, and sends to receivers that were gone. A file that cannot be used
    /// changes nothing.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open): that of the first file that cannot be used.
    pub(crate) async fn reload(&self) -> Result<()> {
        let mut first = Ok(());
        for sender in &*self.0 {
            first = first.and(sender.reload().await);
        }
        first
    }

    /// Begins to send what happens on this node from now on.
    pub(crate) fn spawn(&self, kick: &KickOut) -> HookTasks {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for sender in &*self.0 {
            let receiver = Receiver::new(Arc::clone(sender), kick);
            tasks.spawn(receiver.run(stop.clone()));
        }
        HookTasks { stop, tasks }
    }
}

/// The tasks that send. Dropping them ends them at once.
#[derive(Debug)]
pub(crate) struct HookTasks {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl HookTasks {
    /// Sends what has happened until now, each event once more, for a bounded time.
    pub(crate) async fn flush(&mut self, clock: &dyn Clock) {
        self.stop.cancel();
        let sent = async { while self.tasks.join_next().await.is_some() {} };
        if at_most(clock, FLUSH_LIMIT, sent).await.is_none() {
            self.tasks.shutdown().await;
        }
    }
}
