//! How the last leases of this store's handles ended.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use distlock_core::{LossReason, OwnerId};

use crate::sync::lock;

/// How many ended acquisitions are remembered, to tell a late renewal why.
const REMEMBERED: usize = 1024;

/// The reasons by which leases ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedLeases(Mutex<VecDeque<(OwnerId, LossReason)>>);

impl EndedLeases {
    /// Remembers how an acquisition ended.
    pub(crate) fn record(&self, owner: OwnerId, reason: LossReason) {
        let mut ended = self.ended();
        if ended.len() >= REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((owner, reason));
    }

    /// It begins anew: an owner that lost its place, in a queue or with its session, has another one now.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.ended().retain(|(known, _)| *known != owner);
    }

    /// How an acquisition ended, if that is remembered.
    pub(crate) fn reason(&self, owner: OwnerId) -> Option<LossReason> {
        self.ended()
            .iter()
            .rev()
            .find(|(known, _)| *known == owner)
            .map(|(_, reason)| *reason)
    }

    fn ended(&self) -> MutexGuard<'_, VecDeque<(OwnerId, LossReason)>> {
        lock(&self.0)
    }
}
