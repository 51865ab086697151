//! The account's record: the current sessions, and the older sessions that may still run.
//!
//! The generation never falls. After a session got a slot, no older session gets that slot again.
//! Nothing here reads or writes the store.

use std::collections::BTreeMap;

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{
    ident::{Boot, Class, ClientInfo, Device, Generation, NodeId, SessionId, SessionKey, Uid},
    notice::{Code, Offline},
};

/// Format of the record; a reader refuses any other.
const FORMAT: u8 = 1;

/// Highest number of pending revocations of one account. An account reaches the limit only if it
/// logs in on new nodes faster than node leases end.
pub(crate) const MAX_REVOCATIONS: usize = 64;

/// Highest number of slots whose past the record keeps. Clients choose their class, and each class
/// may be a slot of its own. Without this bound a client could make the record grow until the store
/// refuses the record.
const MAX_PAST_SLOTS: usize = 128;

/// The stored state of one account. The record survives logout, because the generation must never
/// fall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UserRecord {
    /// Format of the record.
    pub v: u8,
    /// The generation of the last granted login.
    pub r#gen: Generation,
    /// The sessions, by the slot that the policy chose.
    pub slots: BTreeMap<Slot, SlotEntry>,
    /// Sessions that lost their slot and are not known to have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revocations: Vec<Revocation>,
    /// The mark of a ban. The record `ban/<uid>` says whether the ban still holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<Ban>,
    /// The earlier sessions of each slot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub past: BTreeMap<Slot, Past>,
    /// Replaces the pasts that were removed to keep the record small: in a slot without a past,
    /// sessions up to this generation cannot resume.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forgotten: Generation,
}

fn is_zero(r#gen: &Generation) -> bool {
    r#gen.get() == 0
}

/// The earlier sessions of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Past {
    /// The last generation that was granted in this slot.
    pub last: Generation,
    /// Sessions up to this generation were ended by another login or an administrator, so they
    /// cannot resume.
    pub over: Generation,
    /// The attempt with which the last session of the slot was granted, if that was a resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resumed: Option<Resumed>,
}

/// A client's attempt to resume a session. The answer to the attempt may be lost: the client then
/// knows only the older session, and resumes that session again with a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resumed {
    /// The session that the client named.
    pub(crate) session: SessionId,
    /// The number of the attempt, by the client's count.
    pub(crate) attempt: u64,
}

/// A place for one session in the record. The single-session policy has one slot: `main`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(String);

/// A session in its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SlotEntry {
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// The generation of its login.
    pub r#gen: Generation,
    /// The device of the session.
    pub device: Device,
    /// The class of the device.
    pub class: Class,
    /// Login time of the session, by the wall clock of its node, in milliseconds since 1970. For
    /// display.
    pub since_ms: u64,
    /// The client's address and version.
    #[serde(flatten)]
    pub client: ClientInfo,
}

/// A session that has to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Revocation {
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// The highest generation that this revocation may end. A newer session survives.
    pub gen_max: Generation,
    /// The reason as a code.
    pub code: Code,
    /// The reason, for people, if an administrator gave a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The device that took over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_device: Option<Device>,
    /// The generation that took over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_gen: Option<Generation>,
    /// Id of the kick.
    pub kick_id: Uuid,
}

impl Revocation {
    /// The notice for the session's client.
    pub(crate) fn notice(&self) -> Offline {
        Offline::new(self.code)
            .superseded_by(self.by_device.clone(), self.by_gen)
            .with_reason(self.reason.clone())
    }
}

impl Slot {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The slot with this number in the group of this name. The first slot has the group's own
    /// name.
    pub(crate) fn numbered(&self, number: u32) -> Self {
        if number <= 1 {
            self.clone()
        } else {
            Self(format!("{}#{number}", self.0))
        }
    }

    /// The only slot of the single-session policy.
    #[must_use]
    pub fn main() -> Self {
        Self("main".into())
    }

    /// The name of the slot.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for UserRecord {
    fn default() -> Self {
        Self {
            v: FORMAT,
            r#gen: Generation::default(),
            slots: BTreeMap::new(),
            revocations: Vec::new(),
            ban: None,
            past: BTreeMap::new(),
            forgotten: Generation::default(),
        }
    }
}

impl UserRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for anything else than a record of the known format. Such a record
    /// never counts as "nobody is logged in".
    pub fn parse(uid: &Uid, value: &[u8]) -> Result<Self> {
        let corrupt = |why: String| {
            Error::new(
                ErrorKind::Corrupt,
                format!("record of account {uid:?} {why}"),
            )
        };
        let record: Self = serde_json::from_slice(value)
            .map_err(|error| corrupt(format!("cannot be read: {error}")))?;
        if record.v != FORMAT {
            return Err(corrupt(format!(
                "has format {}, this version knows {FORMAT}",
                record.v
            )));
        }
        Ok(record)
    }

    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(
                ErrorKind::Internal,
                "the account's record could not be turned into JSON",
            )
            .caused_by(error)
        })
    }

    /// The slot that holds exactly this session.
    #[must_use]
    pub fn slot_of(&self, key: &SessionKey) -> Option<&Slot> {
        self.slots
            .iter()
            .find_map(|(slot, entry)| (entry.key == *key).then_some(slot))
    }

    /// Puts a new session in its slot, and turns the sessions in `victims` into revocations.
    /// `newcomer` makes the session's entry from the new generation. That generation is at least as
    /// high as `token`, the fencing token of the account's lock. `resumed` is the client's attempt,
    /// if the login is a resume. Returns the generation and the revocations.
    pub(crate) fn grant(
        &mut self,
        slot: Slot,
        token: u64,
        newcomer: impl FnOnce(Generation) -> SlotEntry,
        resumed: Option<Resumed>,
        victims: &[(Slot, Code)],
    ) -> (Generation, Vec<Revocation>) {
        let granted = Generation::new((self.r#gen.get() + 1).max(token));
        let entry = newcomer(granted);
        let mut removed = Vec::new();
        for (slot, code) in victims {
            if let Some(victim) = self.slots.remove(slot) {
                self.change_past(slot, |past| past.over = past.over.max(victim.r#gen));
                removed.push(Revocation {
                    key: victim.key,
                    gen_max: Generation::new(granted.get() - 1),
                    code: *code,
                    reason: None,
                    by_device: Some(entry.device.clone()),
                    by_gen: Some(granted),
                    kick_id: Uuid::new_v4(),
                });
            }
        }
        // The revocations include sessions of the writing node. If that node never learns that this
        // write succeeded, other nodes must find these sessions and kick them.
        self.revocations.extend(removed.iter().cloned());
        self.r#gen = granted;
        // Another login of the slot takes the place of an earlier attempt, which then cannot be
        // repeated.
        self.change_past(&slot, |past| past.resumed = resumed);
        self.place(slot, entry);
        (granted, removed)
    }

    /// Puts an entry in a slot, and notes its generation in the slot's past.
    fn place(&mut self, slot: Slot, entry: SlotEntry) {
        let r#gen = entry.r#gen;
        self.change_past(&slot, |past| {
            past.last = past.last.max(r#gen);
            past.over = past.over.max(Generation::new(r#gen.get() - 1));
        });
        self.slots.insert(slot, entry);
        self.forget_oldest_pasts();
    }

    /// Changes the past of a slot. The past of a new slot starts from the forgotten generation.
    fn change_past(&mut self, slot: &Slot, change: impl FnOnce(&mut Past)) {
        let over = self.forgotten;
        let past = self.past.entry(slot.clone()).or_insert(Past {
            over,
            ..Past::default()
        });
        change(past);
    }

    /// Removes the pasts of the free slots with the oldest last login, so that the record stays
    /// small. Sessions of those slots cannot resume afterwards.
    fn forget_oldest_pasts(&mut self) {
        while self.past.len() > MAX_PAST_SLOTS {
            let free = self
                .past
                .iter()
                .filter(|(slot, _)| !self.slots.contains_key(slot));
            let Some((slot, past)) = free.min_by_key(|(_, past)| past.last) else {
                return;
            };
            self.forgotten = self.forgotten.max(past.last).max(past.over);
            let slot = slot.clone();
            self.past.remove(&slot);
        }
    }

    /// The last generation that was granted in a slot.
    pub(crate) fn last_generation_in(&self, slot: &Slot) -> Generation {
        self.past.get(slot).copied().unwrap_or_default().last
    }

    /// Whether a session of this generation was ended by another login or an administrator, or its
    /// slot has a newer session.
    pub(crate) fn is_over(&self, slot: &Slot, r#gen: Generation) -> bool {
        let over = self.past.get(slot).map_or(self.forgotten, |past| past.over);
        r#gen <= over || self.slots.get(slot).is_some_and(|it| it.r#gen > r#gen)
    }

    /// Takes one session out of its slot, if the session is there. The session cannot resume
    /// afterwards.
    pub(crate) fn evict(&mut self, key: &SessionKey) -> Option<SlotEntry> {
        let slot = self.slot_of(key)?.clone();
        let entry = self.slots.remove(&slot)?;
        self.change_past(&slot, |past| past.over = past.over.max(entry.r#gen));
        Some(entry)
    }

    /// Puts a session that the store has lost back in its slot.
    pub(crate) fn restore(&mut self, slot: &Slot, entry: SlotEntry) {
        self.r#gen = self.r#gen.max(entry.r#gen);
        self.place(slot.clone(), entry);
    }

    /// Takes one session out of its slot, if the session is there. The session may resume
    /// afterwards.
    pub(crate) fn remove(&mut self, key: &SessionKey) -> Option<SlotEntry> {
        let slot = self.slot_of(key)?.clone();
        self.slots.remove(&slot)
    }

    /// Removes the revocations of the sessions for which `gone` is true. Returns their number.
    pub(crate) fn settle(&mut self, gone: impl Fn(&SessionKey) -> bool) -> usize {
        let before = self.revocations.len();
        self.revocations.retain(|it| !gone(&it.key));
        before - self.revocations.len()
    }

    /// Removes the entries and revocations of dead incarnations. Returns the removed entries, and
    /// the number of removed revocations.
    pub(crate) fn sweep(
        &mut self,
        dead: impl Fn(&NodeId, Boot) -> bool,
    ) -> (Vec<SlotEntry>, usize) {
        let mut ghosts = Vec::new();
        self.slots.retain(|_, entry| {
            let is_dead = dead(&entry.key.node, entry.key.boot);
            if is_dead {
                ghosts.push(entry.clone());
            }
            !is_dead
        });
        let settled = self.settle(|key| dead(&key.node, key.boot));
        (ghosts, settled)
    }

    /// The incarnations that the record names, in its entries and revocations.
    pub(crate) fn incarnations(&self) -> Vec<(NodeId, Boot)> {
        let mut named: Vec<_> = self
            .slots
            .values()
            .map(|entry| &entry.key)
            .chain(self.revocations.iter().map(|it| &it.key))
            .map(|key| (key.node.clone(), key.boot))
            .collect();
        named.sort();
        named.dedup();
        named
    }

    /// The sessions of the record.
    pub fn sessions(&self) -> impl Iterator<Item = (&Slot, SessionId)> {
        self.slots
            .iter()
            .map(|(slot, entry)| (slot, entry.key.session))
    }
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ban {
    /// Id of the ban.
    pub id: Uuid,
    /// The reason, for people. The account's clients get this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Duration in milliseconds. A ban without a duration does not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The end of the ban, by the wall clock of the node that set the ban, in milliseconds since
    /// 1970. The value is for display. It decides only if the store cannot tell the age of the ban:
    /// ZooKeeper never can, SQLite cannot after a reboot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(node: &str, boot: u64) -> SessionKey {
        SessionKey {
            node: NodeId::new(node).unwrap(),
            boot: Boot::new(boot),
            session: SessionId::random(),
        }
    }

    fn entry(key: SessionKey) -> impl FnOnce(Generation) -> SlotEntry {
        |r#gen| SlotEntry {
            key,
            r#gen,
            device: Device::new("phone").unwrap(),
            class: Class::none(),
            since_ms: 0,
            client: ClientInfo::default(),
        }
    }

    /// Grants a session in the slot `main`, which ends all others. Returns their revocations.
    fn login(record: &mut UserRecord, key: &SessionKey, token: u64) -> Vec<Revocation> {
        let victims: Vec<_> = record
            .slots
            .keys()
            .map(|slot| (slot.clone(), Code::Superseded))
            .collect();
        record
            .grant(Slot::main(), token, entry(key.clone()), None, &victims)
            .1
    }

    #[test]
    fn a_client_that_names_ever_new_classes_does_not_make_the_record_grow() {
        let mut record = UserRecord::default();
        let mut first = None;
        for number in 0..5000_u64 {
            let key = key("n1", 1);
            let slot = Slot::new(format!("class:{number}"));
            let resumed = Some(Resumed {
                session: key.session,
                attempt: u64::MAX,
            });
            record.grant(slot.clone(), 0, entry(key.clone()), resumed, &[]);
            record.remove(&key);
            let last = record.r#gen;
            assert!(!record.is_over(&slot, last), "it may come back");
            first.get_or_insert((slot, last));
        }
        assert!(record.to_bytes().unwrap().len() < 32 * 1024);
        let (slot, r#gen) = first.unwrap();
        assert!(
            record.is_over(&slot, r#gen),
            "a session with a forgotten past is over"
        );
        let bytes = record.to_bytes().unwrap();
        let uid = Uid::new("u").unwrap();
        assert_eq!(UserRecord::parse(&uid, &bytes).unwrap(), record);
    }

    #[test]
    fn generation_rises_with_the_token_and_without() {
        let mut record = UserRecord::default();
        login(&mut record, &key("n1", 1), 100);
        assert_eq!(record.r#gen.get(), 100);
        // A store that lost its counter grants a lower token; the generation still rises.
        login(&mut record, &key("n1", 1), 7);
        assert_eq!(record.r#gen.get(), 101);
    }

    #[test]
    fn generation_survives_the_last_logout() {
        let mut record = UserRecord::default();
        let only = key("n1", 1);
        login(&mut record, &only, 5);
        assert!(record.remove(&only).is_some());
        assert!(record.slots.is_empty());
        let again =
            UserRecord::parse(&Uid::new("u").unwrap(), &record.to_bytes().unwrap()).unwrap();
        assert_eq!(again.r#gen.get(), 5);
    }

    #[test]
    fn removal_compares_node_boot_and_session() {
        let mut record = UserRecord::default();
        let held = key("n1", 3);
        login(&mut record, &held, 1);
        for stale in [
            SessionKey {
                boot: Boot::new(2),
                ..held.clone()
            },
            SessionKey {
                node: NodeId::new("n2").unwrap(),
                ..held.clone()
            },
            key("n1", 3),
        ] {
            assert_eq!(record.remove(&stale), None);
        }
        assert!(record.remove(&held).is_some());
    }

    #[test]
    fn a_takeover_leaves_a_revocation_that_does_not_cover_the_new_session() {
        let mut record = UserRecord::default();
        let (first, second) = (key("n1", 1), key("n2", 1));
        login(&mut record, &first, 10);
        let removed = login(&mut record, &second, 20);
        assert_eq!(record.slots.len(), 1);
        assert_eq!(removed, record.revocations);
        assert_eq!(removed[0].key, first);
        assert!(removed[0].gen_max < record.r#gen);
        assert_eq!(record.settle(|key| *key == first), 1);
    }

    #[test]
    fn a_sweep_removes_only_sessions_of_the_dead_incarnation() {
        let mut record = UserRecord::default();
        login(&mut record, &key("n1", 1), 1);
        login(&mut record, &key("n1", 2), 2);
        let (ghosts, settled) = record.sweep(|node, boot| node.as_str() == "n1" && boot.get() < 2);
        assert!(ghosts.is_empty());
        assert_eq!(settled, 1);
        assert_eq!(record.slots.len(), 1);
        let (ghosts, _) = record.sweep(|_, boot| boot.get() < 3);
        assert_eq!(ghosts.len(), 1);
        assert_eq!(record.r#gen.get(), 2);
    }

    #[test]
    fn a_record_that_is_garbage_or_of_an_unknown_format_is_refused() {
        let uid = Uid::new("u").unwrap();
        for bad in [
            &b""[..],
            b"{}",
            b"[]",
            b"{\"v\":2,\"gen\":1,\"slots\":{}}",
            b"\xff",
        ] {
            assert_eq!(
                UserRecord::parse(&uid, bad).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
    }
}
