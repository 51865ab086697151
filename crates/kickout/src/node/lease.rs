//! The lease that makes this process an incarnation of its node.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LockWatch, LossReason};

use uuid::Uuid;

use crate::model::ident::Boot;

/// One incarnation of this node: its boot number and the lease that makes it one.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    pub(crate) boot: Boot,
    pub(crate) lease: Lease,
}

/// All clones are of one lease.
///
/// One that is not in the store any more stays valid until its deadline, or until it is given up:
/// where the store has forgotten it together with everything else, no other node lets anybody in,
/// and it is taken again.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    /// `None` once it was given up.
    lock: Arc<Mutex<Option<LockWatch>>>,
    /// The roster that its node was put on when it was taken.
    roster: Arc<Mutex<Option<Uuid>>>,
}

/// Whether a lease was lost because it is not in the store any more: it was deleted by hand, or the
/// store has forgotten it.
pub(crate) const fn is_missing(loss: LossReason) -> bool {
    matches!(loss, LossReason::Removed | LossReason::HistoryChanged)
}

impl Lease {
    pub(crate) fn new(clock: Arc<dyn Clock>, lock: LockWatch) -> Self {
        Self {
            clock,
            lock: Arc::new(Mutex::new(Some(lock))),
            roster: Arc::default(),
        }
    }

    /// Local, no I/O.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.lock().as_ref().map_or(Duration::ZERO, |lock| {
            let missing = lock.loss().is_some_and(is_missing);
            if missing {
                lock.deadline().since(self.clock.now())
            } else {
                lock.remaining()
            }
        })
    }

    /// The store's history that it belongs to; `None` once it was given up.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.lock().as_ref().map(|lock| lock.fence().epoch)
    }

    /// It was taken again: it goes on by this lock.
    pub(crate) fn replace_lock(&self, lock: LockWatch) {
        *self.lock() = Some(lock);
    }

    /// Its node was put on this roster.
    pub(crate) fn set_roster(&self, roster: Option<Uuid>) {
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner) = roster;
    }

    /// The roster that its node was put on; `None` where that is not known.
    pub(crate) fn roster(&self) -> Option<Uuid> {
        *self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give_up(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<LockWatch>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
