//! The request of a login, the resume token of its client, and the answers of a login without a
//! session.
//!
//! A resume token proves no identity; the login token does. The directory decides whether the
//! session may resume.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Class, ClientInfo, Device, Generation, SessionId, Uid},
    notice::Code,
    record::{Slot, SlotEntry, UserRecord},
};

/// A login request. The caller has checked that the client owns the account.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Login {
    /// The account.
    pub uid: Uid,
    /// The device, by the name that people give it.
    pub device: Device,
    /// The class of the device.
    pub class: Class,
    /// The intent of the client.
    pub intent: Intent,
    /// The resume token of the client's last session, for [`Intent::Resume`].
    pub resume: Option<String>,
    /// The number of this attempt to resume. See [`Login::attempt`].
    pub attempt: u64,
    /// Whether the client acknowledges messages.
    pub acks: bool,
    /// Whether the program of the session says when it has saved.
    pub saves: bool,
    /// The sessions of the account that the client wants to end, under every policy.
    pub end: Vec<SessionId>,
    /// The client's address and version, for administrators.
    pub client: ClientInfo,
}

/// The part that confirmed, before a login was answered, that the older sessions have ended. With
/// several older sessions this is the weakest confirmation. The order is that of the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConfirmedBy {
    /// The node of an older session did not answer within the time. The session may still send,
    /// receive and save, until its node finds the login or its lease ends.
    Nobody,
    /// The node of each older session has ended it, or the lease of that node has ended. No older
    /// session can send or receive. The program of an older session may still be saving.
    Node,
    /// The program of each older session has said that it has saved. This is also the answer if no
    /// session had to end.
    Program,
}

/// The reason why a login was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// The reason as a code.
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
    /// The device whose session is in the way.
    pub by_device: Option<Device>,
    /// If the policy allows no further session: the sessions of the account, the newest first. A
    /// client gets their devices, classes and times, and the session ids as handles for
    /// [`Login::end`].
    pub sessions: Vec<SlotEntry>,
}

/// The newer login that replaced a login.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overtaken {
    /// The device of the newer login, if it is known.
    pub by_device: Option<Device>,
    /// The generation of the newer login, if that login is granted already.
    pub r#gen: Option<Generation>,
}

impl Denied {
    /// A denial with the standard text of its code.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self {
            code,
            reason: code.text().into(),
            by_device: None,
            sessions: Vec::new(),
        }
    }
}

impl Login {
    /// An ordinary login.
    #[must_use]
    pub const fn new(uid: Uid, device: Device, class: Class) -> Self {
        Self {
            uid,
            device,
            class,
            intent: Intent::Login,
            resume: None,
            attempt: 0,
            acks: false,
            saves: false,
            end: Vec::new(),
            client: ClientInfo {
                address: None,
                version: None,
            },
        }
    }

    /// Sets the client's address and version, which administrators see. They are in the account's
    /// record as long as the session is.
    #[must_use]
    pub fn client(mut self, client: ClientInfo) -> Self {
        self.client = client;
        self
    }

    /// Names sessions of the account that this login ends, as if it took over from each of them. A
    /// session that the account does not have is ignored: it may have ended, or never was one of
    /// the account's.
    #[must_use]
    pub fn end(mut self, sessions: Vec<SessionId>) -> Self {
        self.end = sessions;
        self
    }

    /// Sets the intent, and the resume token that belongs to it.
    #[must_use]
    pub fn intent(mut self, intent: Intent, resume: Option<String>) -> Self {
        self.intent = intent;
        self.resume = resume;
        self
    }

    /// Sets the number of this attempt to resume. The number rises with each attempt of the client.
    ///
    /// A client whose answer was lost shows the token of an earlier session than its last one. With
    /// a higher number that attempt continues the session that the lost answer was about. An equal
    /// or lower number belongs to an attempt that is late, and is denied. Without a number a token
    /// is good for one login.
    #[must_use]
    pub const fn attempt(mut self, attempt: u64) -> Self {
        self.attempt = attempt;
        self
    }

    /// Whether the client acknowledges messages; unless set, it does not.
    #[must_use]
    pub const fn acks(mut self, acks: bool) -> Self {
        self.acks = acks;
        self
    }

    /// Whether the program of the session calls [`Session::saved`](crate::Session::saved) when it
    /// has saved; unless set, it does not. When such a session ends, the login that ended it waits
    /// for that call, for up to [`Timers::save_budget`](crate::Timers::save_budget).
    #[must_use]
    pub const fn saves(mut self, saves: bool) -> Self {
        self.saves = saves;
        self
    }
}

impl fmt::Display for ConfirmedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Node => "node",
            Self::Program => "program",
        })
    }
}

/// The wish of a client at a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Intent {
    /// Log in by the rules of the policy.
    #[default]
    Login,
    /// Continue the client's last session. The login is denied if another device has logged in
    /// meanwhile.
    Resume,
    /// Log in, even if the policy would deny the login.
    Takeover,
}

/// Names the client's last session. The token proves nothing by itself: the directory confirms or
/// refuses its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumeToken {
    uid: Uid,
    slot: Slot,
    session: SessionId,
    r#gen: Generation,
}

impl ResumeToken {
    pub(crate) const fn new(uid: Uid, slot: Slot, session: SessionId, r#gen: Generation) -> Self {
        Self {
            uid,
            slot,
            session,
            r#gen,
        }
    }

    /// Reads the text that a client of this account sent.
    pub(crate) fn parse(text: &str, uid: &Uid) -> Result<Self> {
        let refused = || Error::new(ErrorKind::InvalidArgument, "resume token is not valid");
        if text.len() > 1024 {
            return Err(refused());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| refused())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| refused())?;
        if token.uid != *uid {
            return Err(refused());
        }
        Ok(token)
    }

    /// Whether the session may resume. It may resume if it still has its slot. If it left the slot,
    /// it may resume unless a newer session got the slot or an administrator ended the session.
    pub(crate) fn is_current(&self, record: &UserRecord) -> bool {
        match record.slots.get(&self.slot) {
            Some(entry) => entry.key.session == self.session && entry.r#gen == self.r#gen,
            None => !record.is_over(&self.slot, self.r#gen),
        }
    }

    /// The session that the client continues with this attempt; `None` if it may not resume. It
    /// continues the session of this token, or the session that its earlier attempt with this token
    /// got: the answer to that attempt was lost.
    pub(crate) fn now_in(&self, record: &UserRecord, attempt: u64) -> Option<Self> {
        if self.is_current(record) {
            return Some(self.clone());
        }
        let past = record.past.get(&self.slot)?;
        let earlier = past.resumed.filter(|it| it.session == self.session)?;
        // An attempt that is not the client's latest arrives late. The client may use the session
        // of a later attempt, so this one must not replace that session.
        if attempt <= earlier.attempt {
            return None;
        }
        let entry = record.slots.get(&self.slot);
        let newer = Self {
            session: entry.map_or(self.session, |entry| entry.key.session),
            r#gen: past.last,
            ..self.clone()
        };
        newer.is_current(record).then_some(newer)
    }

    pub(crate) const fn slot(&self) -> &Slot {
        &self.slot
    }

    pub(crate) const fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) const fn generation(&self) -> Generation {
        self.r#gen
    }

    /// The text for the client.
    pub(crate) fn to_text(&self) -> String {
        // A struct of four plain fields always serialises.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        ident::{Boot, NodeId, SessionKey},
        record::Resumed,
    };

    #[test]
    fn a_token_is_bound_to_account_slot_session_and_generation() {
        let uid = Uid::new("u").unwrap();
        let token = ResumeToken::new(
            uid.clone(),
            Slot::main(),
            SessionId::random(),
            Generation::new(7),
        );
        assert_eq!(ResumeToken::parse(&token.to_text(), &uid).unwrap(), token);
        assert!(ResumeToken::parse(&token.to_text(), &Uid::new("v").unwrap()).is_err());
        for garbage in ["", "x", "e30", &"A".repeat(2000)] {
            assert!(ResumeToken::parse(garbage, &uid).is_err());
        }
        let mut record = UserRecord {
            r#gen: Generation::new(7),
            ..UserRecord::default()
        };
        assert!(token.is_current(&record));
        // Another device logs in to another slot; then a device logs in to this slot.
        record.r#gen = Generation::new(8);
        assert!(token.is_current(&record));
        let past = record.past.entry(Slot::main()).or_default();
        past.over = Generation::new(7);
        assert!(!token.is_current(&record));
    }

    /// The record of an account whose client resumes.
    struct Account(UserRecord);

    impl Account {
        fn grant(&mut self, resumed: Option<Resumed>) -> (SessionKey, ResumeToken) {
            let key = SessionKey {
                node: NodeId::new("n1").unwrap(),
                boot: Boot::new(1),
                session: SessionId::random(),
            };
            let newcomer = |r#gen| SlotEntry {
                key: key.clone(),
                r#gen,
                device: Device::new("phone").unwrap(),
                class: Class::none(),
                since_ms: 0,
                client: ClientInfo::default(),
            };
            let victims: Vec<_> = self.0.slots.keys().cloned().collect();
            let victims: Vec<_> = victims.into_iter().map(|it| (it, Code::Replaced)).collect();
            let (r#gen, _) = self.0.grant(Slot::main(), 0, newcomer, resumed, &victims);
            let uid = Uid::new("u").unwrap();
            let token = ResumeToken::new(uid, Slot::main(), key.session, r#gen);
            (key, token)
        }

        /// Resumes as a login does. Returns the new session unless the attempt is refused.
        fn resume(
            &mut self,
            token: &ResumeToken,
            attempt: u64,
        ) -> Option<(SessionKey, ResumeToken)> {
            token.now_in(&self.0, attempt)?;
            let session = token.session();
            Some(self.grant(Some(Resumed { session, attempt })))
        }
    }

    #[test]
    fn every_order_of_three_attempts_leaves_the_highest() {
        let orders = ["123", "132", "213", "231", "312", "321"];
        // After each attempt the latest session stays, or leaves: one bit for each.
        for (order, leaves) in orders.iter().flat_map(|it| (0..8).map(move |of| (it, of))) {
            let mut account = Account(UserRecord::default());
            let (_, first) = account.grant(None);
            let mut highest = 0;
            let mut latest = None;
            for (at, digit) in order.bytes().enumerate() {
                let attempt = u64::from(digit - b'0');
                let granted = account.resume(&first, attempt);
                assert_eq!(granted.is_some(), attempt > highest, "{order}, {leaves}");
                highest = highest.max(attempt);
                latest = granted.or(latest);
                if leaves & (1 << at) != 0 {
                    account.0.remove(&latest.as_ref().unwrap().0);
                }
            }
            // The client has the answer to its third attempt. All others are late.
            let (_, token) = latest.unwrap();
            assert_eq!(account.0.past[&Slot::main()].last, token.generation());
            let (last, _) = account.resume(&token, 4).unwrap();
            for attempt in 0..=4 {
                assert!(account.resume(&first, attempt).is_none(), "{order}");
                assert!(account.resume(&token, attempt).is_none(), "{order}");
            }
            assert_eq!(account.0.slots[&Slot::main()].key, last, "{order}");
        }
    }

    #[test]
    fn an_attempt_is_known_after_its_session_was_restored_and_not_after_another_login() {
        let mut account = Account(UserRecord::default());
        let (_, first) = account.grant(None);
        let (lost, _) = account.resume(&first, 1).unwrap();
        let entry = account.0.remove(&lost).unwrap();
        account.0.restore(&Slot::main(), entry);
        assert!(first.now_in(&account.0, 1).is_none());
        let again = first.now_in(&account.0, 2).unwrap();
        assert_eq!(again.session(), lost.session);
        account.grant(None);
        assert!(first.now_in(&account.0, 3).is_none());
    }
}
