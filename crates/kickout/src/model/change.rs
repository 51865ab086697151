//! The changes of presence, which say what sessions came online and went offline, and those of
//! accounts.

use std::{fmt, str::FromStr};

use distlock_core::{Error, ErrorKind, Result};
use serde::Serialize;
use uuid::Uuid;

use crate::model::{
    ident::{Device, Uid},
    notice::Code,
    record::SlotEntry,
};

/// The place of a change among the changes of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeId {
    /// The node's process, which gets another id with each start.
    run: Uuid,
    /// The number of the change. The first change of a process has the number 1.
    number: u64,
}

impl ChangeId {
    pub(crate) const fn new(run: Uuid, number: u64) -> Self {
        Self { run, number }
    }

    /// How many changes are between `earlier` and this one, without the two; 0 if they are of
    /// different processes.
    #[must_use]
    pub fn between(self, earlier: Self) -> u64 {
        let earlier = earlier.number_in(self.run);
        earlier.map_or(0, |it| self.number.saturating_sub(it).saturating_sub(1))
    }

    /// The number, if the change is one of this process.
    pub(crate) fn number_in(self, run: Uuid) -> Option<u64> {
        (self.run == run).then_some(self.number)
    }
}

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.run.simple(), self.number)
    }
}

impl FromStr for ChangeId {
    type Err = Error;

    /// Reads the text that [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (run, number) = text.split_once(':')?;
            let id = Self::new(Uuid::try_parse(run).ok()?, number.parse().ok()?);
            // Only one text is the id of a change.
            (id.to_string() == text).then_some(id)
        };
        read().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                "this is no id of a change: it has the form RUN:NUMBER",
            )
        })
    }
}

/// A session of a node came online, or went offline. Each session that was let in comes online once
/// and goes offline once, unless its node dies. A session that was granted and not let in only goes
/// offline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The place of the change among those of the node.
    #[serde(skip)]
    pub id: ChangeId,
    /// Whether the session came online. Otherwise it went offline: it got its notice, or left.
    #[serde(skip)]
    pub online: bool,
    /// Wall clock of the node in milliseconds since 1970. For display.
    pub at_ms: u64,
    /// The account.
    pub uid: Uid,
    /// The session.
    #[serde(flatten)]
    pub session: SlotEntry,
    /// Why the session had to end; absent if it came online, or if its client left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The device that took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_device: Option<Device>,
}

/// Something that this node did to an account: it stored a message, banned the account, or lifted
/// its ban.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccountChange {
    /// The place of the change among those of the node. The changes of presence have other places.
    #[serde(skip)]
    pub id: ChangeId,
    /// Wall clock of the node in milliseconds since 1970. For display.
    pub at_ms: u64,
    /// The account.
    pub uid: Uid,
    /// What happened.
    #[serde(flatten)]
    pub news: AccountNews,
}

/// What a node did to an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum AccountNews {
    /// A message that did not arrive was stored.
    #[non_exhaustive]
    Stored {
        /// The sender's name for the message.
        message: String,
        /// The device that the message waits for; absent if it waits for the account's next login.
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<Device>,
    },
    /// The account was banned.
    #[non_exhaustive]
    Banned {
        /// When the ban ends, by the node's wall clock; absent if it has no end.
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        /// The reason of the administrator.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The account's ban holds no more.
    #[non_exhaustive]
    Unbanned {
        /// Whether the ban's time was over, which a node notices at the account's next login or in
        /// a sweep. Otherwise an administrator lifted the ban.
        ended: bool,
    },
}

/// Changes that a reader can no longer read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The last change before the gap, as the reader named it.
    pub after: ChangeId,
    /// The first change after the gap, which may not have happened yet.
    pub next: ChangeId,
    /// The place just before `next`: a reader that comes back continues from there.
    pub position: ChangeId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_text() {
        let id = ChangeId::new(Uuid::from_u128(7), 12);
        assert_eq!(id.to_string(), "00000000000000000000000000000007:12");
        assert_eq!(id.to_string().parse::<ChangeId>().unwrap(), id);
        let place = |number| ChangeId::new(Uuid::from_u128(7), number);
        assert_eq!(place(12).between(place(9)), 2);
        assert_eq!(place(12).between(place(11)), 0);
        assert_eq!(place(12).between(place(12)), 0);
        assert_eq!(place(12).between(ChangeId::new(Uuid::from_u128(8), 9)), 0);
        for bad in [
            "",
            ":",
            "7:12",
            "00000000000000000000000000000007",
            "00000000000000000000000000000007:",
            "00000000000000000000000000000007:-1",
            "00000000000000000000000000000007:012",
            "00000000-0000-0000-0000-000000000007:12",
            "00000000000000000000000000000007:99999999999999999999",
            "00000000000000000000000000000007:1\n",
        ] {
            assert!(bad.parse::<ChangeId>().is_err(), "{bad:?}");
        }
    }
}
