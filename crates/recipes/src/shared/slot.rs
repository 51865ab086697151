//! The slots: the exclusive locks behind the holders of shared locks.
//!
//! Invariant: at most one caller of this process uses a slot at a time, and each use of a slot has
//! a higher token than the one before. So whoever got a slot knows that the earlier holder with it
//! is gone.

use std::sync::Arc;

use distlock_core::{Guard, LockName, Result};

use super::{holder::Holder, hub::Hub};

/// A slot that a caller has for its entry.
pub(super) struct Slot {
    pub(super) guard: Guard,
    pub(super) number: SlotNumber,
    pub(super) holder: Arc<Holder>,
}

/// The number of a slot that nobody else of this process uses meanwhile.
pub(super) struct SlotNumber {
    hub: Arc<Hub>,
    number: u32,
}

impl SlotNumber {
    /// A number that was used before, if there is one.
    pub(super) fn used_before(hub: &Arc<Hub>) -> Self {
        let number = hub.state.lock().free_slots.pop_front();
        match number {
            Some(number) => Self {
                hub: Arc::clone(hub),
                number,
            },
            None => Self::unused(hub),
        }
    }

    /// A number that was never used.
    pub(super) fn unused(hub: &Arc<Hub>) -> Self {
        let mut state = hub.state.lock();
        let number = state.next_slot;
        state.next_slot += 1;
        Self {
            hub: Arc::clone(hub),
            number,
        }
    }

    /// The name of the slot in the record.
    pub(super) fn id(&self) -> String {
        format!("{}{}", self.hub.slots, self.number)
    }
}

impl Drop for SlotNumber {
    fn drop(&mut self) {
        self.hub.state.lock().free_slots.push_back(self.number);
    }
}

/// The lock behind a slot.
pub(super) fn slot_lock(id: &str) -> Result<LockName> {
    LockName::new(format!("{}{id}", LockName::RESERVED))
}
