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

use crate::{directory::store::Directory, model::roster::Roster, node::this_node::ThisNode};

#[derive(Debug)]
pub(crate) struct History {
    /// Within a node lease every node has noticed that the history is another one, and has written
    /// its sessions again, or has ended them.
    node_lease: Duration,
    clock: Arc<dyn Clock>,
    this: Arc<ThisNode>,
    locker: Locker,
    directory: Arc<Directory>,
    state: Mutex<State>,
    forgot: Notify,
}

#[derive(Debug, Default)]
struct State {
    epoch: Option<Epoch>,
    epoch_before: Option<Epoch>,
    /// Which roster there was: with a new store comes a new one.
    roster: Option<Uuid>,
    /// Until when nothing is granted.
    silent: Option<Moment>,
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
    pub(crate) fn met(&self, epoch: &Epoch) {
        let mut state = self.state();
        // What a lock says that was taken or renewed before the change is old.
        let is_old = state.epoch_before.as_ref() == Some(epoch) && self.silent_in(&state).is_some();
        if is_old || state.epoch.as_ref() == Some(epoch) {
            return;
        }
        state.epoch_before = state.epoch.replace(epoch.clone());
        if state.epoch_before.is_some() {
            self.silence(state, "the store's history is another one");
        }
    }

    /// The roster of nodes, which with a new store is a new one.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        let roster = self.directory.roster().await?;
        self.met_roster(roster.id);
        Ok(roster)
    }

    /// This node's own lease, as others see it.
    pub(crate) async fn own_lease(&self) -> Result<LockInfo> {
        self.locker.inspect(self.this.id.lock()?).await
    }

    /// For how long it means nothing that something is missing from the store. A store that was
    /// emptied knows nothing of this node's own lease, or has another roster.
    pub(crate) async fn forgotten_for(&self) -> Result<Option<Duration>> {
        if self.silent_for().is_none() && self.this.now().is_some() {
            let (own, roster) = tokio::join!(self.own_lease(), self.roster());
            roster?;
            if own?.held.is_none() {
                self.forgotten("the store knows nothing of this node's lease");
            }
        }
        Ok(self.silent_for())
    }

    /// The store has this roster, or none.
    pub(crate) fn met_roster(&self, id: Option<Uuid>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.roster, id);
        if before.is_some() && before != id {
            self.silence(state, "the store was emptied");
        }
    }

    /// The store may have forgotten sessions.
    pub(crate) fn forgotten(&self, why: &'static str) {
        self.silence(self.state(), why);
    }

    /// In one step with what was found out: whoever looks next must not find it known, and nobody
    /// silent.
    fn silence(&self, mut state: MutexGuard<'_, State>, why: &'static str) {
        let no_logins_for = self.node_lease;
        state.silent = Some(self.clock.now() + no_logins_for);
        drop(state);
        self.forgot.notify_one();
        tracing::warn!(node = %self.this.id, ?no_logins_for, "{why}: sessions may be missing from the directory");
    }

    /// For how long nothing may be granted.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        self.silent_in(&self.state())
    }

    fn silent_in(&self, state: &State) -> Option<Duration> {
        let left = state.silent?.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }

    /// Has the sessions written again at once that are missing from the directory.
    pub(crate) fn write_again(&self) {
        self.forgot.notify_one();
    }

    /// Waits until the store has forgotten something. For one waiter.
    pub(crate) async fn has_forgotten(&self) {
        self.forgot.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
