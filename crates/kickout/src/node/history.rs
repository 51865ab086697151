//! Detects that the store has lost data, and suspends grants after such a loss.
//!
//! A store that restarts empty, or fails over to a replica that lagged behind, has lost sessions
//! that are alive. After such a loss no login is granted and no node counts as dead for one node
//! lease. In this time every node notices the loss and writes its sessions again.

use std::time::Duration;

use distlock_core::{
    Epoch, LockInfo, Moment, Result,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{model::node::Roster, node::Node};

/// The store's history as this node has seen it.
#[derive(Debug, Default)]
pub(crate) struct History {
    state: Mutex<HistoryState>,
    reconcile_request: Notify,
}

#[derive(Debug, Default)]
struct HistoryState {
    epoch: Option<Epoch>,
    epoch_before: Option<Epoch>,
    /// Id of the last roster. A new store has a new roster.
    roster: Option<Uuid>,
    /// Time until which no login is granted.
    suspended_until: Option<Moment>,
}

impl Node {
    /// Notes the epoch of a lock of this node. A new epoch suspends grants.
    pub(crate) fn observe_epoch(&self, epoch: &Epoch) {
        let mut state = self.history.state.lock();
        // A lock that was last renewed before the change still reports the old epoch. If the old
        // epoch counted as another change, grants would be suspended again.
        let is_old = state.epoch_before.as_ref() == Some(epoch)
            && self.remaining_suspension(&state).is_some();
        if is_old || state.epoch.as_ref() == Some(epoch) {
            return;
        }
        state.epoch_before = state.epoch.replace(epoch.clone());
        if state.epoch_before.is_some() {
            self.suspend_grants(state, "the store has another history than before");
        }
    }

    /// Reads the roster and notes its id.
    pub(crate) async fn read_roster(&self) -> Result<Roster> {
        let roster = self.directory.roster().await?;
        self.observe_roster(roster.id);
        Ok(roster)
    }

    pub(crate) async fn inspect_own_lease(&self) -> Result<LockInfo> {
        self.locker.inspect(self.this.id.lock_name()?).await
    }

    /// Checks whether the store has lost data: it does not know this node's lease, or has another
    /// roster. Returns the time for which grants are suspended. During that time, a missing record
    /// or lease is no sign that a session or node has ended.
    pub(crate) async fn check_for_data_loss(&self) -> Result<Option<Duration>> {
        if self.grants_suspended_for().is_none() && self.this.current_incarnation().is_some() {
            let (own, roster) = tokio::join!(self.inspect_own_lease(), self.read_roster());
            roster?;
            if own?.held.is_none() {
                self.report_data_loss("the store has lost this node's lease");
            }
        }
        Ok(self.grants_suspended_for())
    }

    /// Notes the id of the store's roster; `None` without a roster. A changed id suspends grants.
    pub(crate) fn observe_roster(&self, id: Option<Uuid>) {
        let mut state = self.history.state.lock();
        let before = std::mem::replace(&mut state.roster, id);
        if before.is_some() && before != id {
            self.suspend_grants(state, "the store was emptied");
        }
    }

    /// Suspends grants, because the store may have lost sessions. `why` is for the log.
    pub(crate) fn report_data_loss(&self, why: &'static str) {
        self.suspend_grants(self.history.state.lock(), why);
    }

    /// Suspends grants for one node lease. The caller passes the guard under which it noted the
    /// change. If the caller unlocked in between, another task could see the new epoch as known and
    /// grants as not suspended, and would grant a login.
    fn suspend_grants(&self, mut state: MutexGuard<'_, HistoryState>, why: &'static str) {
        let no_logins_for = self.settings.timers.node_lease;
        state.suspended_until = Some(self.clock.now() + no_logins_for);
        drop(state);
        self.history.reconcile_request.notify_one();
        tracing::warn!(
            node = %self.this.id, ?no_logins_for,
            "{why}, so sessions may be missing from the directory: no login is granted until the \
             nodes have written their sessions again"
        );
    }

    /// Time until grants are allowed again; `None` if grants are allowed.
    pub(crate) fn grants_suspended_for(&self) -> Option<Duration> {
        self.remaining_suspension(&self.history.state.lock())
    }

    /// The same as [`grants_suspended_for`](Self::grants_suspended_for), for a caller with the
    /// state locked.
    fn remaining_suspension(&self, state: &HistoryState) -> Option<Duration> {
        let left = state.suspended_until?.since(self.clock.now());
        (!left.is_zero()).then_some(left)
    }

    /// Requests a reconciliation now. The reconciliation writes the missing sessions of this node
    /// again.
    pub(crate) fn request_reconcile(&self) {
        self.history.reconcile_request.notify_one();
    }

    /// Waits until a reconciliation is requested. At most one task may wait.
    pub(crate) async fn reconcile_requested(&self) {
        self.history.reconcile_request.notified().await;
    }
}
