//! Operations of an administrator: targets, results, reads of the whole directory, the end of the
//! selected sessions, and bans.
//!
//! A session leaves the directory before its client gets the notice, so a login at the same time
//! cannot be lost. No operation here ends a session with a higher generation than the generation
//! that was read. The mark in the account's record says that there is a ban; the record `ban/<uid>`
//! says how long it lasts. A mark without that record means nothing.

use std::{net::IpAddr, sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, RecordKey, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    directory::accounts::{PutOutcome, VersionedRecord},
    model::{
        change::AccountNews,
        event::Transition,
        ident::{Boot, Class, Device, NodeId, SessionId, SessionKey, Uid},
        notice::Code,
        record::{Ban, Revocation, SlotEntry, UserRecord},
    },
    node::{Node, kick::settled_among},
    tasks::wall_millis,
};

/// The sessions that an administrator selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// Every session of an account.
    Uid(Uid),
    /// One session. The operation reads the whole directory.
    Session(SessionId),
    /// One session of this account.
    SessionOf {
        /// The account.
        uid: Uid,
        /// The session.
        session: SessionId,
    },
    /// Every session of one class of device. The operation reads the whole directory.
    Class(Class),
    /// Every session on a node. The operation reads the whole directory.
    Node(NodeId),
    /// Every session. The operation reads the whole directory.
    All,
}

/// Selects sessions of the directory. Each member that is set leaves out the sessions that differ.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// The beginning of the account. Only the records of accounts that begin so are read.
    pub uid_prefix: String,
    /// The device.
    pub device: Option<Device>,
    /// The class of the device.
    pub class: Option<Class>,
    /// The node.
    pub node: Option<NodeId>,
    /// The address of the client.
    pub address: Option<IpAddr>,
}

/// A part of a list that is sorted by account.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T> {
    /// The entries. The list may go on although there are few of them, or none.
    pub entries: Vec<T>,
    /// The account after which the next part begins; `None` at the end of the list.
    pub next: Option<Uid>,
}

impl<T> Page<T> {
    /// Reads accounts with their entries, part by part, until there are `most` entries. A part
    /// begins after a key. A key without an account is skipped.
    pub(crate) async fn collect<F, E: IntoIterator<Item = T>>(
        most: usize,
        mut after: Option<RecordKey>,
        read_after: impl Fn(Option<RecordKey>) -> F,
    ) -> Result<Self>
    where
        F: Future<Output = Result<Vec<(RecordKey, Option<(Uid, E)>)>>>,
    {
        let (mut entries, mut next) = (Vec::new(), None);
        for reads in 1.. {
            let part = read_after(after).await?;
            let is_last = part.len() < PAGE as usize;
            after = part.last().map(|(key, _)| key.clone());
            for (uid, found) in part.into_iter().filter_map(|it| it.1) {
                entries.extend(found);
                next = Some(uid);
                if entries.len() >= most {
                    return Ok(Self { entries, next });
                }
            }
            if is_last {
                next = None;
                break;
            }
            // Without an account there is no place from which the next page could begin.
            if reads >= MAX_READS && next.is_some() {
                break;
            }
        }
        Ok(Self { entries, next })
    }
}

/// A session as the directory has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Found {
    /// The account.
    pub uid: Uid,
    /// The session and its login.
    #[serde(flatten)]
    pub entry: SlotEntry,
}

/// A ban that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Banned {
    /// The account.
    pub uid: Uid,
    /// The ban.
    #[serde(flatten)]
    pub ban: Ban,
}

/// A revocation whose session is not known to have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pending {
    /// The account.
    pub uid: Uid,
    /// The session to end, and the reason.
    #[serde(flatten)]
    pub revocation: Revocation,
}

/// The reason why an administrator ends sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndingReason<'a> {
    pub(crate) code: Code,
    pub(crate) reason: Option<&'a str>,
    /// The ban that the same write puts in the record.
    pub(crate) ban: Option<&'a Ban>,
}

impl Target {
    /// Whether the target covers this session. The accounts are not compared: for a target of one
    /// account, the caller has read only that account.
    pub(crate) fn matches(&self, entry: &SlotEntry) -> bool {
        match self {
            Self::Uid(_) | Self::All => true,
            Self::Session(session) | Self::SessionOf { session, .. } => {
                entry.key.session == *session
            }
            Self::Class(class) => entry.class == *class,
            Self::Node(node) => entry.key.node == *node,
        }
    }

    /// The only account that can have such sessions, if the target names it.
    pub(crate) const fn account(&self) -> Option<&Uid> {
        match self {
            Self::Uid(uid) | Self::SessionOf { uid, .. } => Some(uid),
            _ => None,
        }
    }
}

impl SessionFilter {
    /// Whether the session is selected. The accounts are not compared, because only the accounts
    /// with the prefix are read.
    pub(crate) fn matches(&self, entry: &SlotEntry) -> bool {
        self.device.as_ref().is_none_or(|it| *it == entry.device)
            && self.class.as_ref().is_none_or(|it| *it == entry.class)
            && self.node.as_ref().is_none_or(|it| *it == entry.key.node)
            && (self.address.is_none() || self.address == entry.client.address)
    }
}

/// The outcome of a kick for one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Kicked {
    /// The account.
    pub uid: Uid,
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// The device of the session.
    pub device: Device,
    /// Id of the kick, the same as in the events; nil after an error.
    pub kick_id: Uuid,
    /// Whether the session is known to have ended. If this is false and there is no error, the
    /// session's node has not answered yet. That node finds the revocation at its next
    /// reconciliation.
    pub gone: bool,
    /// Why the account's record was not changed, or may not have been changed. Another kick is
    /// safe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Kicked {
    /// The outcome for a session whose account could not be changed.
    pub(crate) fn failed(uid: &Uid, entry: &SlotEntry, error: &Error) -> Self {
        Self {
            uid: uid.clone(),
            key: entry.key.clone(),
            device: entry.device.clone(),
            kick_id: Uuid::nil(),
            gone: false,
            error: Some(error.to_string()),
        }
    }
}

/// An account as the directory has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UserView {
    /// The account.
    pub uid: Uid,
    /// The account's record; absent when the account never logged in.
    pub record: Option<UserRecord>,
    /// The state of each incarnation that the record names.
    pub nodes: Vec<NodeView>,
}

/// The state of one incarnation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// The incarnation.
    pub boot: Boot,
    /// `up`, `dead` or `unknown`.
    pub state: String,
    /// The node's address for peers, if the incarnation is up.
    pub addr: Option<String>,
}

/// Records in one read of the directory.
pub(crate) const PAGE: u32 = 256;
/// Most such reads for one page of a list. Whoever looks for something rare reads the directory in
/// several pages, so that one question cannot keep the store from logins for long.
const MAX_READS: u32 = 20;
/// Attempts at one change of a record while other nodes keep changing the same record.
const MAX_ATTEMPTS: u32 = 8;

impl Node {
    /// Calls `visit` with every readable record. The sweeper logs unreadable records.
    pub(crate) async fn for_each_record(
        &self,
        mut visit: impl FnMut(&Uid, UserRecord) + Send,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.directory.page("", after.as_ref(), PAGE).await?;
            let Some((last, ..)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            for (_, uid, seen) in page {
                if let (Some(uid), Ok(seen)) = (uid, seen) {
                    visit(&uid, seen.record);
                }
            }
        }
    }

    /// The accounts with sessions that match the target, each with these sessions.
    pub(crate) async fn find_accounts(
        &self,
        target: &Target,
    ) -> Result<Vec<(Uid, Vec<SlotEntry>)>> {
        let mut accounts = Vec::new();
        let mut add_matching = |uid: &Uid, record: UserRecord| {
            let entries = record.slots.into_values();
            let matching: Vec<_> = entries.filter(|entry| target.matches(entry)).collect();
            if !matching.is_empty() {
                accounts.push((uid.clone(), matching));
            }
        };
        if let Some(uid) = target.account() {
            add_matching(uid, self.directory.read(uid).await?.record);
        } else {
            self.for_each_record(add_matching).await?;
        }
        Ok(accounts)
    }

    /// Removes the sessions of an account for which `wanted` is true from the directory, then kicks
    /// them.
    pub(crate) async fn end_sessions(
        self: &Arc<Self>,
        uid: &Uid,
        wanted: impl Fn(&SlotEntry) -> bool + Send + Sync,
        ending: EndingReason<'_>,
    ) -> Result<Vec<Kicked>> {
        for _ in 0..MAX_ATTEMPTS {
            let VersionedRecord {
                version,
                mut record,
                ..
            } = self.directory.read(uid).await?;
            let ended: Vec<_> = record
                .slots
                .values()
                .filter(|it| wanted(it))
                .cloned()
                .collect();
            let revoked: Vec<_> = ended
                .iter()
                .map(|entry| Revocation {
                    key: entry.key.clone(),
                    // This is the generation that was read. A session with a higher generation must
                    // survive the kick.
                    gen_max: entry.r#gen,
                    code: ending.code,
                    reason: ending.reason.map(str::to_owned),
                    by_device: None,
                    by_gen: None,
                    kick_id: Uuid::new_v4(),
                })
                .collect();
            if revoked.is_empty() && ending.ban.is_none() {
                return Ok(Vec::new());
            }
            if ending.ban.is_some() {
                record.ban = ending.ban.cloned();
            }
            for revocation in &revoked {
                record.evict(&revocation.key);
            }
            record.revocations.extend(revoked.iter().cloned());
            let outcome_in = |now: &UserRecord| {
                let gone = revoked.iter().all(|it| now.slot_of(&it.key).is_none());
                let marked = ending.ban.is_none_or(|ban| now.ban.as_ref() == Some(ban));
                (gone && marked).then_some(PutOutcome::Stored)
            };
            let until = self.clock.now() + self.settings.timers.kick_budget;
            let may_wait = || self.clock.now() < until;
            let put = self
                .directory
                .put(uid, version, &record, outcome_in, may_wait)
                .await?;
            if put == PutOutcome::Conflict {
                continue;
            }
            for revocation in &revoked {
                self.events.emit(Transition::Revoked, |event| {
                    event.set_revocation(uid, revocation);
                });
            }
            let budget = self.settings.timers.kick_budget;
            let kicked = self.kick_all(uid, &revoked, budget, None).await;
            let settled = settled_among(&kicked);
            let all_settled = settled.len() == revoked.len();
            let settled = self.settle(uid, &settled).await;
            if let Err(error) = &settled {
                // The sessions have ended; only their revocations stay in the record for now.
                tracing::warn!(
                    ?uid, %error,
                    "the sessions have ended; their revocations could not be removed, and are \
                     removed later"
                );
            }
            if settled.is_err() || !all_settled {
                self.keep_kicking(uid);
            }
            return Ok(revoked
                .into_iter()
                .zip(ended)
                .map(|(it, entry)| Kicked {
                    uid: uid.clone(),
                    device: entry.device,
                    gone: kicked.iter().any(|(key, _)| *key == it.key),
                    key: it.key,
                    kick_id: it.kick_id,
                    error: None,
                })
                .collect());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the record of account {uid:?} was not written: other nodes changed it before each \
                 of {MAX_ATTEMPTS} writes"
            ),
        ))
    }
}

impl Node {
    /// The ban that holds for an account at this moment; `None` if the ban was lifted or has ended.
    pub(crate) async fn current_ban(&self, uid: &Uid) -> Result<Option<Ban>> {
        let Some((ban, age)) = self.directory.ban(uid).await? else {
            return Ok(None);
        };
        Ok((!self.ban_is_over(&ban, age)).then_some(ban))
    }

    /// Whether a ban of this age has ended.
    pub(crate) fn ban_is_over(&self, ban: &Ban, age: Option<Duration>) -> bool {
        match (ban.ttl_ms, age, ban.until_ms) {
            (Some(ttl), Some(age), _) => age >= Duration::from_millis(ttl),
            (Some(_), None, Some(until)) => wall_millis(&*self.clock) >= until,
            _ => false,
        }
    }

    /// Removes the ban record of an ended ban, after its mark was removed from the account's
    /// record.
    pub(crate) async fn remove_ended_ban(&self, uid: &Uid, ban: &Ban) {
        match self.directory.remove_ban(uid, Some(ban.id)).await {
            Ok(true) => {}
            // An administrator has lifted the ban, and says so.
            Ok(false) => return,
            Err(error) => {
                // A ban record without a mark in the account's record has no effect.
                tracing::debug!(?uid, %error, "an ended ban was not removed");
            }
        }
        self.events.emit(Transition::Unbanned, |event| {
            event.uid = Some(uid.clone());
            event.result = Some("the ban has ended".into());
        });
        let news = AccountNews::Unbanned { ended: true };
        self.account_changes.record_news(uid, news);
    }
}
