//! The handle of a flow, and its shutdown.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use distlock_core::{LockInfo, Result};
use futures_util::future::join_all;
use tokio::sync::broadcast;
use tokio_util::sync::DropGuard;

use crate::{
    model::{
        event::Event,
        ident::{Boot, NodeId},
        notice::{Code, Offline},
    },
    node::Node,
    session::live::Phase,
};

/// The kick-out flow of one node. A clone is cheap.
///
/// When the last clone is dropped, the node ends its sessions and releases its lease in the
/// background, which voids the sessions. [`shutdown`](Self::shutdown) does the same and waits for
/// the clients.
#[derive(Clone, Debug)]
pub struct KickOut {
    pub(crate) node: Arc<Node>,
    pub(super) _stop: Arc<DropGuard>,
}

impl KickOut {
    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node.this.id
    }

    /// The present incarnation of this node; `None` while the node has no valid lease. Without a
    /// valid lease the node serves no client.
    #[must_use]
    pub fn boot(&self) -> Option<Boot> {
        self.node.this.current_incarnation().map(|own| own.boot)
    }

    /// Time until this node must stop serving unless its lease is renewed.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.node
            .this
            .current_incarnation()
            .map_or(Duration::ZERO, |own| own.lease.remaining())
    }

    /// Whether the store took this node's last change of a record or of an account's lock. While it
    /// does not, logins fail, and the node tries again once in a third of its lease.
    #[must_use]
    pub fn store_takes_changes(&self) -> bool {
        self.node.directory.takes_changes()
    }

    /// Sessions of this node that have not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.node.registry.len()
    }

    /// Number of accounts with a login in progress on this node.
    #[must_use]
    pub fn logins_under_way(&self) -> usize {
        self.node.queues.len()
    }

    /// Sessions on all nodes that have to end and are not known to have ended. This node's sweeper
    /// counted them in its last complete pass.
    #[must_use]
    pub fn revocations_pending(&self) -> usize {
        self.node.pending_revocations.load(Ordering::Relaxed)
    }

    /// The locks of at most `most` accounts with a login in progress on this node.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn locks_under_way(&self, most: usize) -> Result<Vec<LockInfo>> {
        let uids = self.node.queues.busy_accounts(most);
        let looking = uids
            .iter()
            .map(async |uid| self.node.locker.inspect(uid.lock_name()?).await);
        join_all(looking).await.into_iter().collect()
    }

    /// The node's events. The first caller gets all events since the start; a later caller gets the
    /// events from the call on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.node.events.subscribe()
    }

    /// Refuses further logins, ends every session with code 6, gives the clients the grace period
    /// to leave and the programs the time to save, and releases the node's lease.
    ///
    /// # Cancel safety
    /// Safe: another call continues where this one stopped.
    pub async fn shutdown(&self) {
        let node = &self.node;
        node.refuse_logins();
        let saves = node.registry.all().iter().any(|live| live.saves);
        let grace = node.settings.timers.grace_of(saves);
        let until = node.clock.now() + grace + Duration::from_millis(250);
        loop {
            // A login that was in progress may be admitted after one pass over the sessions, so one
            // pass is not enough.
            for live in node.registry.all() {
                if live.phase() <= Phase::Active {
                    node.end_session(&live, Offline::new(Code::Draining), true, |_| {});
                }
            }
            if node.registry.len() == 0 || node.clock.now() >= until {
                break;
            }
            node.clock.sleep(Duration::from_millis(20)).await;
        }
        node.retire_all().await;
        node.tasks.stop_and_wait().await;
        // If a delete is still pending, the node stays on the roster. Another node then finds the
        // dead incarnation and removes its records.
        if !node.retries.has_pending() {
            node.leave_roster().await;
        }
    }
}
