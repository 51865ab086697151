//! Policies: how many sessions an account may have, and which session ends beyond that number.
//!
//! A decision depends only on the record, the login and the idle times. So every node makes the
//! same decision.

use std::{cmp::Reverse, collections::HashMap, fmt, str::FromStr, time::Duration};

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Class, Device, SessionKey},
    login::{Intent, ResumeToken},
    notice::Code,
    record::{Slot, SlotEntry, UserRecord},
};

/// Highest number of sessions of one account under any policy. With more sessions the account's
/// record might not fit into one value of every store.
pub(crate) const MAX_SESSIONS: u32 = 64;

/// A policy: the group of a new session, the number of sessions in that group, and the action
/// beyond that number.
///
/// A device has one session under every policy: its second login replaces its first session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The sessions that count together, and their number.
    pub name: PolicyName,
    /// The action beyond that number.
    pub on_exceed: OnExceed,
}

/// The known policies. As text: `single`, `phone+pc`, `one_per_class`, `n_per_class(3)`,
/// `n_total(3)`, `unlimited`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum PolicyName {
    /// One session per account.
    #[default]
    Single,
    /// One session of class `phone`, and one of any other class.
    PhoneAndPc,
    /// One session per class.
    OnePerClass,
    /// This number of sessions per class, 1 to 64.
    NPerClass(u32),
    /// This number of sessions per account, 1 to 64.
    NTotal(u32),
    /// As many sessions as an account can have: 64. Beyond that number `on_exceed` decides.
    Unlimited,
}

/// The action when a new session exceeds the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnExceed {
    /// The session with the lowest generation ends: the last login wins.
    #[default]
    EvictOldest,
    /// The session that has sent nothing for the longest time ends. A session whose node does not
    /// report counts as idle for ever; of equal sessions the oldest ends.
    EvictIdle,
    /// The new session is denied, unless its intent is to take over: the first login wins.
    Deny,
}

/// The decision of a policy: the slot of the new session, and the sessions that end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) slot: Slot,
    /// The slots of the sessions that end, each with the reason.
    pub(crate) victims: Vec<(Slot, Code)>,
}

/// The refusal of a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyRefusal {
    /// [`Code::Denied`] if the policy allows no further session. [`Code::Superseded`] if the client
    /// resumes a session, and sessions that were granted later are in the way.
    pub(crate) code: Code,
    /// The device of one session that is in the way.
    pub(crate) by: Option<Device>,
}

/// A client that wants to log in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer<'a> {
    pub(crate) class: &'a Class,
    pub(crate) device: &'a Device,
    pub(crate) intent: Intent,
    /// The session that the client resumes.
    pub(crate) resumes: Option<&'a ResumeToken>,
}

/// The idle time of each session, if its node reported one.
pub(crate) type IdleTimes = HashMap<SessionKey, Duration>;

impl Policy {
    /// One session per account; the last login wins.
    #[must_use]
    pub const fn single() -> Self {
        Self::named(PolicyName::Single)
    }

    /// A policy by its name. Beyond its limit the oldest session ends.
    #[must_use]
    pub const fn named(name: PolicyName) -> Self {
        Self {
            name,
            on_exceed: OnExceed::EvictOldest,
        }
    }

    /// Sets the action beyond the limit.
    #[must_use]
    pub const fn on_exceed(mut self, on_exceed: OnExceed) -> Self {
        self.on_exceed = on_exceed;
        self
    }

    /// The number of sessions per group.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        match self.name {
            PolicyName::Single | PolicyName::PhoneAndPc | PolicyName::OnePerClass => 1,
            PolicyName::NPerClass(limit) | PolicyName::NTotal(limit) => limit,
            PolicyName::Unlimited => MAX_SESSIONS,
        }
    }

    /// The group of a class of devices: the name of the group's first slot.
    #[must_use]
    pub fn slot_of(&self, class: &Class) -> Slot {
        match self.name {
            PolicyName::Single | PolicyName::NTotal(_) | PolicyName::Unlimited => Slot::main(),
            PolicyName::PhoneAndPc if class.as_str() == "phone" => Slot::new("phone"),
            PolicyName::PhoneAndPc => Slot::new("pc"),
            PolicyName::OnePerClass | PolicyName::NPerClass(_) => {
                Slot::new(format!("class:{class}"))
            }
        }
    }

    /// Refuses a policy for no session, or for more than [`MAX_SESSIONS`].
    pub(crate) fn validate(&self) -> Result<()> {
        match self.name {
            PolicyName::NPerClass(limit) | PolicyName::NTotal(limit) => {
                check_limit(limit).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether only the newer one of two simultaneous logins in one group can survive.
    pub(crate) fn last_wins(&self, intent: Intent) -> bool {
        self.limit() == 1 && (self.on_exceed != OnExceed::Deny || intent == Intent::Takeover)
    }

    /// The rivals of a new session: the sessions of other clients in its group, whether or not the
    /// group has room.
    pub(crate) fn rivals<'a>(
        &self,
        record: &'a UserRecord,
        newcomer: &Newcomer<'_>,
    ) -> Vec<(&'a Slot, &'a SlotEntry)> {
        let group = self.slot_of(newcomer.class);
        record
            .slots
            .iter()
            .filter(|(_, entry)| !newcomer.is_same_client(entry))
            .filter(|(_, entry)| self.slot_of(&entry.class) == group)
            .collect()
    }

    /// The number of rivals that have to end for a new session.
    pub(crate) fn excess(&self, rivals: usize) -> usize {
        let limit = usize::try_from(self.limit()).unwrap_or(usize::MAX);
        (rivals + 1).saturating_sub(limit)
    }

    /// Decides about a new session. The caller must have removed the sessions of dead nodes from
    /// the record.
    pub(crate) fn decide(
        &self,
        record: &UserRecord,
        newcomer: &Newcomer<'_>,
        idle: &IdleTimes,
    ) -> Result<Decision, PolicyRefusal> {
        let refusal = |code, entry: Option<&SlotEntry>| PolicyRefusal {
            code,
            by: entry.map(|entry| entry.device.clone()),
        };
        let of_client: Vec<_> = record
            .slots
            .iter()
            .filter(|(_, entry)| newcomer.is_same_client(entry))
            .collect();
        let mut rivals = self.rivals(record, newcomer);
        rivals.sort_by_key(|(_, entry)| entry.r#gen);
        let excess = self.excess(rivals.len());
        // A resume ranks by the generation of the session that it continues. The limit may have
        // been lowered since that grant. Without this check, old clients that come back by
        // themselves would end the session of a user who has just logged in.
        let later = rivals.partition_point(|(_, entry)| !newcomer.resumes_older_than(entry));
        let later = rivals.split_off(later);
        let later_of_client = of_client
            .iter()
            .find(|(_, entry)| newcomer.resumes_older_than(entry));
        if excess > rivals.len() || later_of_client.is_some() {
            let (_, newest) = later.last().or(later_of_client).copied().unzip();
            return Err(refusal(Code::Superseded, newest));
        }
        let mut victims: Vec<_> = of_client
            .into_iter()
            .map(|(slot, _)| (slot.clone(), Code::Replaced))
            .collect();
        if excess > 0 {
            match self.on_exceed {
                OnExceed::Deny if newcomer.intent != Intent::Takeover => {
                    let (_, newest) = rivals.last().copied().unzip();
                    return Err(refusal(Code::Denied, newest));
                }
                OnExceed::EvictIdle => {
                    // A session that started after the idle times were collected has no entry, and
                    // counts as busy. A session whose node did not report has the longest time.
                    rivals.sort_by_key(|(_, entry)| {
                        Reverse(idle.get(&entry.key).copied().unwrap_or(Duration::ZERO))
                    });
                }
                _ => {}
            }
            victims.extend(
                rivals
                    .into_iter()
                    .take(excess)
                    .map(|(slot, _)| (slot.clone(), Code::Superseded)),
            );
        }
        let left = record.slots.len() - victims.len();
        if left >= usize::try_from(MAX_SESSIONS).unwrap_or(usize::MAX) {
            let newest = record.slots.values().max_by_key(|entry| entry.r#gen);
            return Err(refusal(Code::Denied, newest));
        }
        let slot = self.free_slot(record, newcomer, &victims);
        Ok(Decision { slot, victims })
    }

    /// The slot for a new session, among the group's slots that are free or that a victim leaves.
    ///
    /// A resume stays in its slot: the past of that slot shows to the client's next attempt what
    /// this one did. Another login gets the slot with the oldest last login. So a client that left
    /// its slot recently can resume there.
    fn free_slot(
        &self,
        record: &UserRecord,
        newcomer: &Newcomer<'_>,
        victims: &[(Slot, Code)],
    ) -> Slot {
        let group = self.slot_of(newcomer.class);
        let is_free = |slot: &Slot| {
            !record.slots.contains_key(slot) || victims.iter().any(|(victim, _)| victim == slot)
        };
        let own = newcomer.resumes.map(ResumeToken::slot);
        // The sessions may have been granted under another limit. So a session that resumes may
        // have a slot beyond the limit, and all slots within the limit may be taken.
        (1..=MAX_SESSIONS)
            .map(|number| (number, group.numbered(number)))
            .filter(|(_, slot)| is_free(slot))
            .min_by_key(|(number, slot)| {
                let (is_other, is_beyond) = (own != Some(slot), *number > self.limit());
                (is_other, is_beyond, record.last_generation_in(slot))
            })
            .map_or_else(|| group.clone(), |(_, slot)| slot)
    }
}

impl Newcomer<'_> {
    /// Whether this entry is an older session of the client: it has the same device, or the client
    /// resumes it.
    fn is_same_client(&self, entry: &SlotEntry) -> bool {
        let resumes = |it: &ResumeToken| it.session() == entry.key.session;
        entry.device == *self.device || self.resumes.is_some_and(resumes)
    }

    /// Whether the client resumes a session that was granted before this entry.
    fn resumes_older_than(&self, entry: &SlotEntry) -> bool {
        let is_older = |it: &ResumeToken| it.generation() < entry.r#gen;
        self.resumes.is_some_and(is_older)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::single()
    }
}

/// Returns the limit if it is a possible number of sessions.
fn check_limit(limit: u32) -> Result<u32> {
    if (1..=MAX_SESSIONS).contains(&limit) {
        return Ok(limit);
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("policy is for {limit} sessions: 1 to {MAX_SESSIONS} are allowed"),
    ))
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let counted = |name: &str| {
            let number = text
                .strip_prefix(name)?
                .strip_prefix('(')?
                .strip_suffix(')')?;
            number.trim().parse::<u32>().ok()
        };
        Ok(match text {
            "single" => Self::Single,
            "phone+pc" => Self::PhoneAndPc,
            "one_per_class" => Self::OnePerClass,
            "unlimited" => Self::Unlimited,
            _ => {
                if let Some(limit) = counted("n_per_class") {
                    Self::NPerClass(check_limit(limit)?)
                } else if let Some(limit) = counted("n_total") {
                    Self::NTotal(check_limit(limit)?)
                } else {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        format!(
                            "policy is {text:?}: single, phone+pc, one_per_class, \
                             n_per_class(N), n_total(N) and unlimited are known"
                        ),
                    ));
                }
            }
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_exceed = match self.on_exceed {
            OnExceed::EvictOldest => "evict_oldest",
            OnExceed::EvictIdle => "evict_idle",
            OnExceed::Deny => "deny",
        };
        write!(f, "{}, {on_exceed}", self.name)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("single"),
            Self::PhoneAndPc => f.write_str("phone+pc"),
            Self::OnePerClass => f.write_str("one_per_class"),
            Self::NPerClass(limit) => write!(f, "n_per_class({limit})"),
            Self::NTotal(limit) => write!(f, "n_total({limit})"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl TryFrom<String> for PolicyName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<PolicyName> for String {
    fn from(name: PolicyName) -> Self {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ident::{Boot, ClientInfo, NodeId, SessionId};

    fn device(name: &str) -> Device {
        Device::new(name).unwrap()
    }

    /// Logs a device in by the policy. Returns the devices whose sessions ended, and the reasons.
    fn login(
        policy: Policy,
        record: &mut UserRecord,
        name: &str,
        class: &str,
        intent: Intent,
    ) -> Result<Vec<(String, Code)>, PolicyRefusal> {
        let (device, class) = (device(name), Class::new(class).unwrap());
        let newcomer = Newcomer {
            class: &class,
            device: &device,
            intent,
            resumes: None,
        };
        let decision = policy.decide(record, &newcomer, &IdleTimes::new())?;
        let gone = decision
            .victims
            .iter()
            .map(|(slot, code)| (record.slots[slot].device.to_string(), *code))
            .collect();
        record.grant(
            decision.slot,
            0,
            |r#gen| SlotEntry {
                key: SessionKey {
                    node: NodeId::new("n1").unwrap(),
                    boot: Boot::new(1),
                    session: SessionId::random(),
                },
                r#gen,
                device: device.clone(),
                class: class.clone(),
                since_ms: 0,
                client: ClientInfo::default(),
            },
            None,
            &decision.victims,
        );
        Ok(gone)
    }

    /// The devices with a session, in order.
    fn devices_in(record: &UserRecord) -> Vec<&str> {
        let mut devices: Vec<_> = record.slots.values().map(|it| it.device.as_str()).collect();
        devices.sort_unstable();
        devices
    }

    #[test]
    fn single_ends_the_older_session_with_a_code_for_the_same_or_another_device() {
        let (policy, mut record) = (Policy::single(), UserRecord::default());
        let mut login = |name| login(policy, &mut record, name, "", Intent::Login).unwrap();
        assert_eq!(login("pc"), []);
        assert_eq!(login("phone"), [("pc".into(), Code::Superseded)]);
        assert_eq!(login("phone"), [("phone".into(), Code::Replaced)]);
        assert_eq!(record.slots.keys().next(), Some(&Slot::main()));
    }

    #[test]
    fn each_policy_keeps_as_many_sessions_as_its_name_says() {
        for (name, logins, left) in [
            ("single", "a: b:x c:y", "c"),
            ("phone+pc", "a:phone b:pc c:tablet d:phone", "c d"),
            ("one_per_class", "a:x b:y c:x d:", "b c d"),
            ("n_per_class(2)", "a:x b:x c:x d:y e:y", "b c d e"),
            ("n_total(3)", "a:x b:y c:z d:w", "b c d"),
            ("n_total(2)", "a:x a:y b:x b:x", "a b"),
            ("unlimited", "a:x b:x c:x d:x", "a b c d"),
        ] {
            let parsed: PolicyName = name.parse().unwrap();
            assert_eq!(parsed.to_string(), name);
            let mut record = UserRecord::default();
            for it in logins.split(' ') {
                let (device, class) = it.split_once(':').unwrap();
                login(
                    Policy::named(parsed),
                    &mut record,
                    device,
                    class,
                    Intent::Login,
                )
                .unwrap();
            }
            assert_eq!(devices_in(&record).join(" "), left, "{name}");
        }
    }

    #[test]
    fn under_deny_the_first_login_wins_unless_another_takes_over() {
        let policy = Policy::named(PolicyName::NTotal(2)).on_exceed(OnExceed::Deny);
        let mut record = UserRecord::default();
        for name in ["a", "b"] {
            login(policy, &mut record, name, "", Intent::Login).unwrap();
        }
        let full = login(policy, &mut record, "c", "", Intent::Login).unwrap_err();
        assert_eq!(full.by, Some(device("b")));
        // A device with a session may log in again.
        login(policy, &mut record, "a", "", Intent::Login).unwrap();
        let gone = login(policy, &mut record, "c", "", Intent::Takeover).unwrap();
        assert_eq!(gone, [("b".into(), Code::Superseded)]);
    }

    #[test]
    fn evict_idle_ends_the_session_that_was_silent_for_longest() {
        let policy = Policy::named(PolicyName::NTotal(3)).on_exceed(OnExceed::EvictIdle);
        let mut record = UserRecord::default();
        for name in ["a", "b", "c"] {
            login(policy, &mut record, name, "", Intent::Login).unwrap();
        }
        let key = |name: &str| {
            let entry = record.slots.values().find(|it| it.device.as_str() == name);
            entry.unwrap().key.clone()
        };
        let newcomer = Newcomer {
            class: &Class::none(),
            device: &device("d"),
            intent: Intent::Login,
            resumes: None,
        };
        for (idle, goes) in [
            (vec![("a", 5), ("b", 9), ("c", 7)], "b"),
            (vec![("a", 5), ("b", 5), ("c", 5)], "a"),
            (vec![], "a"),
        ] {
            let idle = idle
                .into_iter()
                .map(|(name, seconds)| (key(name), Duration::from_secs(seconds)))
                .collect();
            let decision = policy.decide(&record, &newcomer, &idle).unwrap();
            let [(slot, Code::Superseded)] = decision.victims.as_slice() else {
                panic!("{decision:?}");
            };
            assert_eq!(record.slots[slot].device.as_str(), goes);
        }
    }

    #[test]
    fn a_new_session_gets_the_slot_with_the_oldest_last_login() {
        let policy = Policy::named(PolicyName::NTotal(3));
        let mut record = UserRecord::default();
        for name in ["a", "b"] {
            login(policy, &mut record, name, "", Intent::Login).unwrap();
        }
        let left = record.slots[&Slot::main()].key.clone();
        record.remove(&left);
        login(policy, &mut record, "c", "", Intent::Login).unwrap();
        assert!(!record.slots.contains_key(&Slot::main()));
    }

    #[test]
    fn an_account_has_at_most_64_sessions_and_a_wrong_limit_is_refused() {
        let mut record = UserRecord::default();
        let policy = Policy::named(PolicyName::Unlimited).on_exceed(OnExceed::Deny);
        for number in 0..MAX_SESSIONS {
            login(
                policy,
                &mut record,
                &format!("d{number}"),
                "",
                Intent::Login,
            )
            .unwrap();
        }
        assert!(login(policy, &mut record, "one more", "", Intent::Login).is_err());
        for bad in [
            "n_total(0)",
            "n_total(65)",
            "n_total",
            "n_per_class(x)",
            "two",
            "",
        ] {
            let error = bad.parse::<PolicyName>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
        assert!(Policy::named(PolicyName::NTotal(0)).validate().is_err());
    }
}
