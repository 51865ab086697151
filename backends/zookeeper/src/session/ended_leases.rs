//! Stores the reasons for which the latest leases of a store ended, so that a later renewal gets
//! the reason.
//!
//! Invariant: at most [`REMEMBERED`] entries are kept, and the oldest entry is dropped first.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use distlock_core::{LossReason, OwnerId};

use crate::sync::lock;

/// The limit of stored ends of leases.
const REMEMBERED: usize = 1024;

/// Owners, and the reasons of their losses, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedLeases(Mutex<VecDeque<(OwnerId, LossReason)>>);

impl EndedLeases {
    /// Stores the reason for which an owner's lease ended.
    pub(crate) fn remember(&self, owner: OwnerId, reason: LossReason) {
        let mut ended = self.lock_entries();
        if ended.len() >= REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((owner, reason));
    }

    /// Removes the entry of an owner that has entered a queue again.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.lock_entries().retain(|(known, _)| *known != owner);
    }

    /// Returns the reason for which an owner's lease ended, if it is stored.
    pub(crate) fn loss_reason(&self, owner: OwnerId) -> Option<LossReason> {
        self.lock_entries()
            .iter()
            .rev()
            .find(|(known, _)| *known == owner)
            .map(|(_, reason)| *reason)
    }

    fn lock_entries(&self) -> MutexGuard<'_, VecDeque<(OwnerId, LossReason)>> {
        lock(&self.0)
    }
}
