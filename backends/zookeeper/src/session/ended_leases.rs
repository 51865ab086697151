//! How the last leases of a store ended, so that a late renewal can be told the reason.
//!
//! Invariant: at most [`REMEMBERED`] entries; the oldest one goes first.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use distlock_core::{LossReason, OwnerId};

use crate::sync::lock;

/// How many ended leases are remembered.
const REMEMBERED: usize = 1024;

/// Owners and the reasons of their losses, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedLeases(Mutex<VecDeque<(OwnerId, LossReason)>>);

impl EndedLeases {
    /// Remembers how an owner's lease ended.
    pub(crate) fn record(&self, owner: OwnerId, reason: LossReason) {
        let mut ended = self.ended();
        if ended.len() >= REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((owner, reason));
    }

    /// Forgets an owner that acquires again: it lost its queue entry, alone or with the session,
    /// and has a new one now.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.ended().retain(|(known, _)| *known != owner);
    }

    /// How an owner's lease ended, if that is remembered.
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
