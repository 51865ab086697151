//! The store's history, as this node knows it. A store that restarts empty, or fails over to a
//! replica that lagged behind, has forgotten sessions that are alive. Until every node has noticed
//! it and has written its sessions again, nobody is let in, and no node is taken for dead, on the
//! word of such a directory.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LockInfo, Locker, Moment, Result};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{directory::access::Directory, model::roster::Roster, node::this_node::ThisNode};

#[derive(Debug)]
pub(crate) struct History {
    /// Within a node lease every node has noticed that the history is another one, and has written
    /// its sessions again, or has ended them.
    node_lease: Duration,
    clock: Arc<dyn Clock>,
    this: Arc<ThisNode>,
    locker: Locker,
    directory: Arc<Directory>,
    state: Mutex<HistoryState>,
    forgot: Notify,
}

#[derive(Debug, Default)]
struct HistoryState {
    epoch: Option<Epoch>,
    epoch_before: Option<Epoch>,
    /// Which roster there was: with a new store comes a new one.
    roster: Option<Uuid>,
    /// Until when nothing is granted.
    suspended_until: Option<Moment>,
}

impl History {
    pub(crate) fn new(
        this: Arc<ThisNode>,
        node_lease: Duration,
        locker: Locker,
        directory: Arc<Directory>,
    ) -> Self {
        Self {
            node_lease,
            clock: locker.clock(),
            this,
            locker,
            directory,
            state: Mutex::default(),
            forgot: Notify::new(),
        }
    }

    /// A lock of this node says this of the store's history.
    pub(crate) fn observe_epoch(&self, epoch: &Epoch) {
        let mut state = self.state();
        // What a lock says that was taken or renewed before the change is old.
        let is_old =
            state.epoch_before.as_ref() == Some(epoch) && self.suspended_in(&state).is_some();
        if is_old || state.epoch.as_ref() == Some(epoch) {
            return;
        }
        state.epoch_before = state.epoch.replace(epoch.clone());
        if state.epoch_before.is_some() {
            self.suspend_grants(state, "the store's history is another one");
        }
    }

    /// The roster of nodes, which with a new store is a new one.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        let roster = self.directory.roster().await?;
        self.observe_roster(roster.id);
        Ok(roster)
    }

    /// This node's own lease, as others see it.
    pub(crate) async fn inspect_own_lease(&self) -> Result<LockInfo> {
        self.locker.inspect(self.this.id.lock()?).await
    }

    /// For how long it means nothing that something is missing from the store. A store that was
    /// emptied knows nothing of this node's own lease, or has another roster.
    pub(crate) async fn check_for_data_loss(&self) -> Result<Option<Duration>> {
        if self.grants_suspended_for().is_none() && self.this.now().is_some() {
            let (own, roster) = tokio::join!(self.inspect_own_lease(), self.roster());
            roster?;
            if own?.held.is_none() {
                self.store_lost_data("the store knows nothing of this node's lease");
            }
        }
        Ok(self.grants_suspended_for())
    }

    /// The store has this roster, or none.
    pub(crate) fn observe_roster(&self, id: Option<Uuid>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.roster, id);
        if before.is_some() && before != id {
            self.suspend_grants(state, "the store was emptied");
        }
    }

    /// The store may have forgotten sessions.
    pub(crate) fn store_lost_data(&self, why: &'static str) {
        self.suspend_grants(self.state(), why);
    }

    /// In one step with what was found out: whoever looks next must not find it known, and nobody
    /// silent.
    fn suspend_grants(&self, mut state: MutexGuard<'_, HistoryState>, why: &'static str) {
        let no_logins_for = self.node_lease;
        state.suspended_until = Some(self.clock.now() + no_logins_for);
        drop(state);
        self.forgot.notify_one();
        tracing::warn!(node = %self.this.id, ?no_logins_for, "{why}: sessions may be missing from the directory");
    }

    /// For how long nothing may be granted.
    pub(crate) fn grants_suspended_for(&self) -> Option<Duration> {
        self.suspended_in(&self.state())
    }

    fn suspended_in(&self, state: &HistoryState) -> Option<Duration> {
        let left = state.suspended_until?.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }

    /// Has the sessions written again at once that are missing from the directory.
    pub(crate) fn request_reconcile(&self) {
        self.forgot.notify_one();
    }

    /// Waits until the store has forgotten something. For one waiter.
    pub(crate) async fn store_has_forgotten(&self) {
        self.forgot.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
