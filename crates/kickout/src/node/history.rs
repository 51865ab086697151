//! Detects that the store has lost data, and suspends grants after such a loss. If the records are
//! in another store than the locks, this holds for each of the two stores.
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
    locks: SeenEpochs,
    /// The epochs of the records; none if they are in the store of the locks.
    records: SeenEpochs,
    /// Id of the last roster. A new store has a new roster.
    roster: Option<Uuid>,
    /// Time until which no login is granted.
    suspended_until: Option<Moment>,
}

/// The epochs of one store that this node has seen.
#[derive(Debug, Default)]
struct SeenEpochs {
    now: Option<Epoch>,
    before: Option<Epoch>,
}

impl SeenEpochs {
    /// Notes an epoch. Returns whether the store has another history than before. `suspended` says
    /// whether grants are suspended.
    fn note(&mut self, epoch: &Epoch, suspended: bool) -> bool {
        // A lock that was last renewed before the change still reports the old epoch. If the old
        // epoch counted as another change, grants would be suspended again.
        let is_old = self.before.as_ref() == Some(epoch) && suspended;
        if is_old || self.now.as_ref() == Some(epoch) {
            return false;
        }
        self.before = self.now.replace(epoch.clone());
        self.before.is_some()
    }
}

impl Node {
    /// Notes the epoch of a lock of this node. A new epoch suspends grants.
    pub(crate) fn observe_epoch(&self, epoch: &Epoch) {
        let mut state = self.history.state.lock();
        let suspended = self.remaining_suspension(&state).is_some();
        if state.locks.note(epoch, suspended) {
            self.suspend_grants(state, "the store has another history than before");
        }
    }

    /// Notes the epoch of the store that keeps the records, if it is not that of the locks. A new
    /// epoch suspends grants.
    pub(crate) fn observe_records_epoch(&self, epoch: &Epoch) {
        let mut state = self.history.state.lock();
        let suspended = self.remaining_suspension(&state).is_some();
        if state.records.note(epoch, suspended) {
            let why = "the store of the records has another history than before";
            self.suspend_grants(state, why);
        }
    }

    /// The last epoch of the store that keeps the records; `None` if that is the store of the
    /// locks.
    pub(crate) fn epoch_of_records(&self) -> Option<Epoch> {
        self.history.state.lock().records.now.clone()
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
