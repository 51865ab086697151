//! The lease of this node, and the incarnation that the lease belongs to.
//!
//! A session may act only while the lease of its incarnation is valid. The checks in this file do
//! no I/O.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LockWatch, LossReason};

use uuid::Uuid;

use crate::model::ident::Boot;

/// One incarnation of this node: its boot number and its lease.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    pub(crate) boot: Boot,
    pub(crate) lease: Lease,
}

/// The lease of one incarnation. All clones share it.
///
/// A lease that is missing from the store stays valid until its deadline, or until the node gives
/// it up. If the store lost the lease together with other data, no other node grants a login before
/// that deadline, and the node takes the lease again.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    /// `None` after the lease was given up.
    watch: Arc<Mutex<Option<LockWatch>>>,
    /// Id of the roster that lists this incarnation.
    roster: Arc<Mutex<Option<Uuid>>>,
}

/// Whether this reason of a loss means that the lease is missing from the store. A lease is missing
/// if it was deleted by hand, or if the store lost data.
pub(crate) const fn is_missing(loss: LossReason) -> bool {
    matches!(loss, LossReason::Removed | LossReason::HistoryChanged)
}

impl Lease {
    pub(crate) fn new(clock: Arc<dyn Clock>, lock: LockWatch) -> Self {
        Self {
            clock,
            watch: Arc::new(Mutex::new(Some(lock))),
            roster: Arc::default(),
        }
    }

    /// Whether the lease is valid at this moment. The check does no I/O.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Time until the deadline; zero after the lease was lost or given up. A lease that is missing
    /// from the store still runs until its deadline.
    pub(crate) fn remaining(&self) -> Duration {
        self.watch().as_ref().map_or(Duration::ZERO, |lock| {
            let missing = lock.loss().is_some_and(is_missing);
            if missing {
                lock.deadline().since(self.clock.now())
            } else {
                lock.remaining()
            }
        })
    }

    /// The epoch of the lease; `None` after it was given up.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.watch().as_ref().map(|lock| lock.fence().epoch)
    }

    /// Continues the lease with a lock that was taken again.
    pub(crate) fn replace_lock(&self, lock: LockWatch) {
        *self.watch() = Some(lock);
    }

    /// Notes the roster that lists this incarnation.
    pub(crate) fn set_roster(&self, roster: Option<Uuid>) {
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = roster;
    }

    /// Id of the roster that lists this incarnation; `None` if it is not known.
    pub(crate) fn roster(&self) -> Option<Uuid> {
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the lease invalid for all clones at once.
    pub(crate) fn give_up(&self) {
        *self.watch() = None;
    }

    fn watch(&self) -> MutexGuard<'_, Option<LockWatch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
