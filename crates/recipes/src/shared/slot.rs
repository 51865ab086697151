//! The slots: the exclusive locks behind the holders of shared locks.
//!
//! Invariant: at most one caller of this process uses a slot at a time, and whoever got a slot has
//! a higher token than its holder before. So whoever got a slot knows that the earlier holder with
//! it is gone. Callers of one process may use a slot one after the other with one token.

use std::sync::Arc;

use distlock_core::{Clock, Guard, LockName, Result};

use super::{holder::Holder, hub::Hub, record::EntryId};

/// A slot that a caller has for its entry.
pub(super) struct Slot {
    pub(super) guard: Guard,
    /// Its drop frees the number.
    _number: SlotNumber,
    pub(super) holder: Arc<Holder>,
}

impl Slot {
    /// A slot that this process has got.
    pub(super) fn new(hub: &Hub, number: SlotNumber, guard: Guard) -> Self {
        let id = EntryId {
            slot: number.id(),
            token: guard.token(),
        };
        let holder = Holder::new(&hub.name, id, &guard, &hub.clock);
        Self {
            guard,
            _number: number,
            holder,
        }
    }

    /// The same slot for another entry, unless its lease has ended or is about to.
    pub(super) fn again(self, clock: &Arc<dyn Clock>) -> Option<Self> {
        let old = self.holder;
        let holder = Holder::new(old.name(), old.id().clone(), &self.guard, clock);
        let slot = Self { holder, ..self };
        slot.holder.is_fresh().then_some(slot)
    }
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
