//! How many sessions an account may have, and who goes when there are too many. Pure.

use crate::{
    config::PolicyName,
    ident::{Class, Device},
    offline::Code,
    record::{Slot, UserRecord},
};

/// A policy: which slot a newcomer belongs to, how many sessions that slot's group may have, and what happens beyond.
///
/// Today there is one, [`Policy::single`]. The record stores slots, a limit above one would add slots to it and
/// [`OnExceed`] would choose among them; nothing else in the flow counts sessions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Policy {
    /// Its name.
    pub name: PolicyName,
    /// Sessions per slot group.
    pub limit: u32,
    /// What happens beyond the limit.
    pub on_exceed: OnExceed,
}

/// What happens when a newcomer exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExceed {
    /// The session with the lowest generation goes: the last login wins.
    EvictOldest,
}

/// What a policy decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) slot: Slot,
    pub(crate) victims: Vec<(Slot, Code)>,
}

impl Policy {
    /// One session per account; the last login wins.
    #[must_use]
    pub const fn single() -> Self {
        Self {
            name: PolicyName::Single,
            limit: 1,
            on_exceed: OnExceed::EvictOldest,
        }
    }

    /// The policy of a name.
    #[must_use]
    pub const fn named(name: PolicyName) -> Self {
        match name {
            PolicyName::Single => Self::single(),
        }
    }

    /// The slot a device of a class belongs to.
    #[must_use]
    pub fn slot_of(&self, _class: &Class, _device: &Device) -> Slot {
        match self.name {
            PolicyName::Single => Slot::main(),
        }
    }

    /// Decides about a newcomer, given a record that names only live sessions.
    pub(crate) fn decide(&self, record: &UserRecord, class: &Class, device: &Device) -> Decision {
        let slot = self.slot_of(class, device);
        let mut group: Vec<_> = record
            .slots
            .iter()
            .filter(|(_, entry)| self.slot_of(&entry.class, &entry.device) == slot)
            .collect();
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let excess = (group.len() + 1).saturating_sub(limit);
        match self.on_exceed {
            OnExceed::EvictOldest => group.sort_by_key(|(_, entry)| entry.r#gen),
        }
        let victims = group
            .into_iter()
            .take(excess)
            .map(|(slot, entry)| {
                let code = if entry.device == *device {
                    Code::Replaced
                } else {
                    Code::Superseded
                };
                (slot.clone(), code)
            })
            .collect();
        Decision { slot, victims }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::single()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ident::{Boot, Generation, NodeId, SessionId, SessionKey},
        record::SlotEntry,
    };

    #[test]
    fn single_evicts_whoever_is_there_and_says_whether_it_is_the_same_device() {
        let device = |name| Device::new(name).unwrap();
        let mut record = UserRecord::default();
        let policy = Policy::single();
        assert!(
            policy
                .decide(&record, &Class::none(), &device("pc"))
                .victims
                .is_empty()
        );
        record.slots.insert(
            Slot::main(),
            SlotEntry {
                key: SessionKey {
                    node: NodeId::new("n1").unwrap(),
                    boot: Boot::new(1),
                    session: SessionId::random(),
                },
                r#gen: Generation::new(1),
                device: device("phone"),
                class: Class::none(),
                since: 0,
            },
        );
        for (name, code) in [("pc", Code::Superseded), ("phone", Code::Replaced)] {
            let decision = policy.decide(&record, &Class::none(), &device(name));
            assert_eq!(decision.victims, [(Slot::main(), code)]);
        }
    }
}
