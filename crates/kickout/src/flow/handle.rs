//! The handle of a flow, and its shutdown.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, LockInfo, Locker, Result};
use futures_util::future::join_all;
use tokio::sync::broadcast;
use tokio_util::sync::DropGuard;

use crate::{
    admin::operations::Admin,
    directory::{access::Directory, bans::Bans},
    events::Events,
    login::context::LoginParts,
    model::{
        event::Event,
        ident::{Boot, NodeId},
        notice::{Code, Offline},
        settings::Settings,
    },
    node::{
        drain::Drain, lease_keeper::LeaseKeeper, liveness::LivenessCache, roster::RosterKeeper,
        this_node::ThisNode,
    },
    peer::{client::PeerClient, route::Router},
    session::{
        end::SessionEnder, live::Phase, logout::Logouts, registry::Registry, revoke::Revoker,
    },
    tasks::Tasks,
    upkeep::{hand_out::HandOuts, reconcile::rounds::Reconciler},
};

/// The kick-out flow of one node. A clone is cheap.
///
/// When the last clone is dropped, the node ends its sessions and releases its lease in the
/// background, which voids the sessions. [`shutdown`](Self::shutdown) does the same and waits for
/// the clients.
#[derive(Clone, Debug)]
pub struct KickOut {
    pub(crate) parts: Arc<Parts>,
    pub(super) _stop: Arc<DropGuard>,
}

/// The parts of one flow.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) this: Arc<ThisNode>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locker: Locker,
    pub(crate) directory: Arc<Directory>,
    pub(crate) liveness: Arc<LivenessCache>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) bans: Arc<Bans>,
    pub(crate) ender: Arc<SessionEnder>,
    pub(crate) revoker: Arc<Revoker>,
    pub(crate) logouts: Arc<Logouts>,
    pub(crate) router: Router,
    pub(crate) peers: Arc<PeerClient>,
    pub(crate) hand_outs: Arc<HandOuts>,
    pub(crate) logins: Arc<LoginParts>,
    pub(crate) admin: Admin,
    pub(crate) roster: Arc<RosterKeeper>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) keeper: Arc<LeaseKeeper>,
    pub(crate) reconciler: Arc<Reconciler>,
    pub(crate) events: Arc<Events>,
    pub(crate) tasks: Arc<Tasks>,
    /// Sessions that have to end and are not known to have ended. The sweeper's last complete pass
    /// counted them.
    pub(crate) pending: Arc<AtomicUsize>,
}

impl KickOut {
    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.parts.this.id
    }

    /// The present incarnation of this node; `None` while the node has no valid lease. Without a
    /// valid lease the node serves no client.
    #[must_use]
    pub fn boot(&self) -> Option<Boot> {
        self.parts.this.current_incarnation().map(|own| own.boot)
    }

    /// Time until this node must stop serving unless its lease is renewed.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.parts
            .this
            .current_incarnation()
            .map_or(Duration::ZERO, |own| own.lease.remaining())
    }

    /// Whether the store took this node's last change of a record or of an account's lock. While it
    /// does not, logins fail, and the node tries again once in a third of its lease.
    #[must_use]
    pub fn store_takes_changes(&self) -> bool {
        self.parts.directory.takes_changes()
    }

    /// Sessions of this node that have not ended.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.parts.registry.len()
    }

    /// Number of accounts with a login in progress on this node.
    #[must_use]
    pub fn logins_under_way(&self) -> usize {
        self.parts.logins.queues.len()
    }

    /// Sessions on all nodes that have to end and are not known to have ended. This node's sweeper
    /// counted them in its last complete pass.
    #[must_use]
    pub fn revocations_pending(&self) -> usize {
        self.parts.pending.load(Ordering::Relaxed)
    }

    /// The locks of at most `most` accounts with a login in progress on this node.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn locks_under_way(&self, most: usize) -> Result<Vec<LockInfo>> {
        let uids = self.parts.logins.queues.busy_accounts(most);
        let looking = uids
            .iter()
            .map(async |uid| self.parts.locker.inspect(uid.lock_name()?).await);
        join_all(looking).await.into_iter().collect()
    }

    /// The node's events. The first caller gets all events since the start; a later caller gets the
    /// events from the call on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.parts.events.subscribe()
    }

    /// Refuses further logins, ends every session with code 6, gives the clients the grace period
    /// to leave and the programs the time to save, and releases the node's lease.
    ///
    /// # Cancel safety
    /// Safe: another call continues where this one stopped.
    pub async fn shutdown(&self) {
        let parts = &self.parts;
        parts.drain.refuse_logins();
        let saves = parts.registry.all().iter().any(|live| live.saves);
        let grace = parts.settings.timers.grace_of(saves);
        let until = parts.clock.now() + grace + Duration::from_millis(250);
        loop {
            // A login that was in progress may be admitted after one pass over the sessions, so one
            // pass is not enough.
            for live in parts.registry.all() {
                if live.phase() <= Phase::Active {
                    parts
                        .ender
                        .end(&live, Offline::new(Code::Draining), true, |_| {});
                }
            }
            if parts.registry.len() == 0 || parts.clock.now() >= until {
                break;
            }
            parts.clock.sleep(Duration::from_millis(20)).await;
        }
        parts.logouts.retire_all().await;
        parts.tasks.stop_and_wait().await;
        // If a delete is still pending, the node stays on the roster. Another node then finds the
        // dead incarnation and removes its records.
        if !parts.logouts.retries.has_pending() {
            parts.keeper.leave_roster().await;
        }
    }
}
