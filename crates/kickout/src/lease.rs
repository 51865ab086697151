//! The lease that makes this process an incarnation of its node.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Epoch, LockWatch};

use crate::ident::Boot;

/// One incarnation of this node: its boot number and the lease that makes it one.
#[derive(Clone, Debug)]
pub(crate) struct Incarnation {
    pub(crate) boot: Boot,
    pub(crate) lease: Lease,
}

/// All clones are of one lease.
///
/// It is valid until its deadline, or until it is given up, whichever comes first. A lease that the
/// store says is gone is not given up at once: where the store has forgotten it together with
/// everything else, no other node lets anybody in, and it is taken again.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    /// `None` once it was given up.
    lock: Arc<Mutex<Option<LockWatch>>>,
}

impl Lease {
    pub(crate) fn new(clock: Arc<dyn Clock>, lock: LockWatch) -> Self {
        let lock = Arc::new(Mutex::new(Some(lock)));
        Self { clock, lock }
    }

    /// Local, no I/O.
    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.lock().as_ref().map_or(Duration::ZERO, |lock| {
            lock.deadline().since(self.clock.now())
        })
    }

    /// The store's history that it belongs to; `None` once it was given up.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.lock().as_ref().map(|lock| lock.fence().epoch)
    }

    /// It was taken again: it goes on by this lock.
    pub(crate) fn goes_on(&self, lock: LockWatch) {
        *self.lock() = Some(lock);
    }

    pub(crate) fn give_up(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<LockWatch>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
