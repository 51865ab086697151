//! The leases that this process holds at the ring: at which member each one is.
//!
//! Invariant: a release goes to the member that was asked for the lock, also after the name has
//! moved, and also if the answer was lost. The request is noted before it is sent.

use std::collections::HashMap;

use distlock_core::{Moment, OwnerId, sync::Mutex};

/// The leases of this process, by their owner. All handles share them.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_owner: HashMap<OwnerId, Held>,
    /// The size of the table at which ended leases are removed from it.
    sweep_at: usize,
}

/// One lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The member.
    pub(crate) at: usize,
    /// The latest end of the lease there, if the requests arrived when they were sent.
    pub(crate) until: Moment,
}

impl Leases {
    /// Notes that a request at this member may give or extend the lease until this moment.
    pub(crate) fn note(&self, owner: OwnerId, held: Held, now: Moment) {
        let mut table = self.0.lock();
        // A guard whose lease was lost is not released by anybody, so ended leases are removed
        // here, each time the table has doubled.
        if table.by_owner.len() >= table.sweep_at.max(64) {
            table.by_owner.retain(|_, held| held.until > now);
            table.sweep_at = table.by_owner.len() * 2;
        }
        table.by_owner.insert(owner, held);
    }

    pub(crate) fn of(&self, owner: OwnerId) -> Option<Held> {
        self.0.lock().by_owner.get(&owner).copied()
    }

    pub(crate) fn remove(&self, owner: OwnerId) {
        self.0.lock().by_owner.remove(&owner);
    }
}
