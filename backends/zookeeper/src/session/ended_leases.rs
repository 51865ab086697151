//! How the last leases of this store's handles ended.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use distlock_core::{LossReason, OwnerId};

use crate::sync::lock;

/// How many ended acquisitions are remembered, to tell a late renewal why.
const GRAVES: usize = 1024;

/// The reasons by which leases ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedLeases(Mutex<VecDeque<(OwnerId, LossReason)>>);

impl EndedLeases {
    /// Remembers how an acquisition ended.
    pub(crate) fn bury(&self, owner: OwnerId, reason: LossReason) {
        let mut graves = self.graves();
        if graves.len() >= GRAVES {
            graves.pop_front();
        }
        graves.push_back((owner, reason));
    }

    /// It begins anew: an owner that lost its place, in a queue or with its session, has another one now.
    pub(crate) fn unbury(&self, owner: OwnerId) {
        self.graves().retain(|(buried, _)| *buried != owner);
    }

    /// How an acquisition ended, if that is remembered.
    pub(crate) fn grave(&self, owner: OwnerId) -> Option<LossReason> {
        self.graves()
            .iter()
            .rev()
            .find(|(buried, _)| *buried == owner)
            .map(|(_, reason)| *reason)
    }

    fn graves(&self) -> MutexGuard<'_, VecDeque<(OwnerId, LossReason)>> {
        lock(&self.0)
    }
}
