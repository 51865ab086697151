//! What this node does in addition if the locks are in another store than the records.
//!
//! With one store, the epoch of a lock and the roster tell of one history. With two stores, each
//! can lose data alone, and each can refuse changes alone.

use std::sync::Arc;

use distlock_core::{Attempt, DistLock, LockName, Result, Store};

use crate::{directory::records::Changes, locks::wanted_lock, node::Node};

/// The two stores of a node.
#[derive(Debug)]
pub(crate) struct Apart {
    /// The locks of the store that keeps the records. Nobody takes them: they tell the epoch of
    /// that store.
    records_lock: Arc<dyn DistLock>,
    /// Whether the store of the locks takes changes.
    lock_changes: Changes,
}

impl Apart {
    /// The two stores; `None` if the records are in the store of the locks.
    pub(crate) fn of(store: &Store) -> Option<Self> {
        Some(Self {
            records_lock: store.records_store()?.backend(),
            lock_changes: Changes::new("the store of the locks"),
        })
    }
}

impl Node {
    /// Notes the epoch of the store that keeps the records, if that is another store than that of
    /// the locks. A new epoch suspends grants: that store may have lost sessions, and the epoch of
    /// a lock does not tell.
    pub(crate) async fn observe_epoch_of_records(&self) -> Result<()> {
        let Some(apart) = &self.apart else {
            return Ok(());
        };
        let info = apart
            .records_lock
            .inspect(&self.this.id.lock_name()?)
            .await?;
        if let Some(epoch) = &info.epoch {
            self.observe_records_epoch(epoch);
        }
        Ok(())
    }

    /// Suspends grants after the loss of a missing lease, if the records are in another store. All
    /// leases may be gone: Redis keeps its epoch when its keys are deleted, and the roster, which
    /// would be gone with them in one store, is in the other store. The nodes that have not noticed
    /// yet still serve their sessions, for at most one node lease.
    pub(crate) fn suspend_after_missing_lease(&self) {
        if self.apart.is_some() {
            self.report_data_loss("the store of the locks has lost this node's lease");
        }
    }

    /// Notes the outcome of the acquisition of an account's lock.
    pub(crate) fn note_lock<T>(&self, outcome: &Result<T>) {
        match &self.apart {
            Some(apart) => apart.lock_changes.note(outcome),
            // A store without memory refuses even the lock, so no write would show the failure.
            // After a success, the write that follows decides.
            None if outcome.is_err() => self.directory.note_change(outcome),
            None => {}
        }
    }

    /// Whether the stores took this node's last changes.
    pub(crate) fn stores_take_changes(&self) -> bool {
        let locks = self.apart.as_ref().map(|apart| &apart.lock_changes);
        self.directory.takes_changes() && locks.is_none_or(Changes::are_taken)
    }

    /// Takes a lock that nobody wants, if the store of the locks refused the last one. Without it,
    /// a node without logins would not notice that the store takes changes again.
    pub(crate) async fn probe_locks_if_refused(&self) {
        let refusing = self.apart.as_ref().map(|apart| &apart.lock_changes);
        let Some(changes) = refusing.filter(|changes| !changes.are_taken()) else {
            return;
        };
        let Ok(name) = LockName::new(format!("probe/{}", self.this.id)) else {
            return;
        };
        let ttl = self.settings.timers.lock_ttl;
        let probe = wanted_lock(&self.locker, &name, ttl, &self.this.id)
            .give_up_when_unreachable()
            .try_acquire()
            .await;
        changes.note(&probe);
        if let Ok(Attempt::Acquired(guard)) = probe {
            let _ = guard.release().await;
        }
    }
}
