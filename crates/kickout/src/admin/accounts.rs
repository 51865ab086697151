//! Looking at accounts and ending sessions by hand.

use std::sync::Arc;

use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    directory::store::{AT_ONCE, Put, Seen},
    flow::{Inner, KickOut},
    model::{
        ban::Ban,
        event::Transition,
        ident::{Boot, Class, Device, NodeId, SessionId, SessionKey, Uid},
        notice::Code,
        record::{Revocation, SlotEntry, UserRecord},
    },
    node::liveness::Standing,
};

const PAGE: u32 = 256;
const ROUNDS: u32 = 8;

/// Whom an administrator means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// Every session of an account.
    Uid(Uid),
    /// One session. Looks through the whole directory.
    Session(SessionId),
    /// Every session of a kind of device. Looks through the whole directory.
    Class(Class),
    /// Every session on a node. Looks through the whole directory.
    Node(NodeId),
    /// Every session there is. Looks through the whole directory.
    All,
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

/// A revocation that is not known to be final.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pending {
    /// The account.
    pub uid: Uid,
    /// What must go, and why.
    #[serde(flatten)]
    pub revocation: Revocation,
}

/// Why sessions are ended by hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) code: Code,
    pub(crate) text: Option<&'a str>,
    /// The ban that the record is marked with in the same write.
    pub(crate) ban: Option<&'a Ban>,
}

impl Target {
    fn means(&self, entry: &SlotEntry) -> bool {
        match self {
            Self::Uid(_) | Self::All => true,
            Self::Session(session) => entry.key.session == *session,
            Self::Class(class) => entry.class == *class,
            Self::Node(node) => entry.key.node == *node,
        }
    }
}

/// What became of one session that was to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Kicked {
    /// The account.
    pub uid: Uid,
    /// The session.
    #[serde(flatten)]
    pub key: SessionKey,
    /// Its device.
    pub device: Device,
    /// The kick, as in the events; nil where there was an error.
    pub kick_id: Uuid,
    /// Whether the session is known to be gone. If not, and there is no error, its node has not answered yet and finds out by
    /// itself.
    pub gone: bool,
    /// Why its account's record could not be changed, or is not known to be changed: kicking again is safe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Kicked {
    fn failed(uid: &Uid, entry: &SlotEntry, error: &Error) -> Self {
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
    /// Its record; absent when the account never logged in.
    pub record: Option<UserRecord>,
    /// How the incarnations stand that the record names.
    pub nodes: Vec<NodeView>,
}

/// How an incarnation stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// The incarnation.
    pub boot: Boot,
    /// `up`, `dead` or `unknown`.
    pub state: String,
    /// Its address, where it is up.
    pub addr: Option<String>,
}

impl KickOut {
    /// Whether an account has ever logged in. One that logged out long ago is known as well.
    ///
    /// # Errors
    /// Failures of the store; [`ErrorKind::Corrupt`] for a record that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn knows(&self, uid: &Uid) -> Result<bool> {
        Ok(self.inner.directory.read(uid).await?.version.is_some())
    }

    /// An account's record and how its nodes stand.
    ///
    /// # Errors
    /// Failures of the store; [`ErrorKind::Corrupt`] for a record that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn view(&self, uid: &Uid) -> Result<UserView> {
        let Seen {
            version,
            mut record,
            ..
        } = self.inner.directory.read(uid).await?;
        if record.ban.is_some() && self.inner.standing_ban(uid).await?.is_none() {
            // Its mark stays until somebody tidies up.
            record.ban = None;
        }
        let mut nodes = Vec::new();
        for (node, boot) in record.incarnations() {
            let standing = self.inner.standing(&node, boot).await;
            let (state, addr) = match standing {
                Ok(Standing::Up(up)) => ("up", Some(up.addr)),
                Ok(Standing::Dead) => ("dead", None),
                Err(_) => ("unknown", None),
            };
            nodes.push(NodeView {
                node,
                boot,
                state: state.into(),
                addr,
            });
        }
        Ok(UserView {
            uid: uid.clone(),
            record: version.map(|_| record),
            nodes,
        })
    }

    /// Ends sessions by hand: takes each out of the directory if it is still there, and tells it. A login that comes at the
    /// same time is either seen and ended, or newer and left alone.
    ///
    /// Where a target means several accounts, what fails for one of them is told with its sessions, and the others are ended all
    /// the same.
    ///
    /// # Errors
    /// Failures of the store that kept every account from being changed.
    ///
    /// # Cancel safety
    /// Dropping it leaves the rest undone; what was revoked reaches its node all the same.
    pub async fn kick(&self, target: &Target, reason: Option<&str>) -> Result<Vec<Kicked>> {
        let ending = Ending {
            code: Code::AdminKick,
            text: reason,
            ban: None,
        };
        let wanted = |entry: &SlotEntry| target.means(entry);
        if let Target::Uid(uid) = target {
            return self.inner.end_sessions(uid, wanted, ending).await;
        }
        let mut kicked = Vec::new();
        let (mut changed_any, mut is_away, mut first) = (false, false, None);
        for some in self.inner.accounts_of(target).await?.chunks(AT_ONCE) {
            let ended = match &first {
                Some(error) if is_away => vec![Err(Error::clone(error)); some.len()],
                _ => {
                    let uids = some.iter().map(|(uid, _)| uid);
                    join_all(uids.map(|uid| self.inner.end_sessions(uid, wanted, ending))).await
                }
            };
            is_away = ended.iter().all(Result::is_err);
            for ((uid, found), ended) in some.iter().zip(ended) {
                match ended {
                    Ok(ended) => {
                        kicked.extend(ended);
                        changed_any = true;
                    }
                    Err(error) => {
                        tracing::warn!(?uid, %error, "sessions could not be ended");
                        kicked.extend(found.iter().map(|it| Kicked::failed(uid, it, &error)));
                        first.get_or_insert(error);
                    }
                }
            }
        }
        match first {
            Some(error) if !changed_any => Err(error),
            _ => Ok(kicked),
        }
    }

    /// The sessions that [`kick`](Self::kick) would end. Changes nothing.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn find(&self, target: &Target) -> Result<Vec<Found>> {
        let accounts = self.inner.accounts_of(target).await?;
        let found = |(uid, entries): (Uid, Vec<SlotEntry>)| {
            entries.into_iter().map(move |entry| Found {
                uid: uid.clone(),
                entry,
            })
        };
        Ok(accounts.into_iter().flat_map(found).collect())
    }

    /// Who is logged in, on all nodes, in the order of accounts: at least `most` sessions where
    /// there are so many, and then from where to go on. Sessions of dead nodes do not count.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn online(
        &self,
        after: Option<&Uid>,
        most: usize,
    ) -> Result<(Vec<Found>, Option<Uid>)> {
        let inner = &self.inner;
        let mut online = Vec::new();
        let mut at = after.map(Uid::record).transpose()?;
        loop {
            let page = inner.directory.page(at.as_ref(), PAGE).await?;
            let is_last = page.len() < PAGE as usize;
            for (key, uid, seen) in page {
                at = Some(key);
                let (Some(uid), Ok(seen)) = (uid, seen) else {
                    continue;
                };
                for entry in seen.record.slots.into_values() {
                    let key = &entry.key;
                    if inner.standing(&key.node, key.boot).await? != Standing::Dead {
                        let uid = uid.clone();
                        online.push(Found { uid, entry });
                    }
                }
                if online.len() >= most {
                    return Ok((online, Some(uid)));
                }
            }
            if is_last {
                return Ok((online, None));
            }
        }
    }

    /// The revocations that are not known to be final, `most` of them at most. Looks through the whole directory.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn revocations(&self, most: usize) -> Result<Vec<Pending>> {
        let mut pending = Vec::new();
        self.inner
            .each_record(|uid, record| {
                let room = most.saturating_sub(pending.len());
                pending.extend(record.revocations.into_iter().take(room).map(|revocation| {
                    Pending {
                        uid: uid.clone(),
                        revocation,
                    }
                }));
            })
            .await?;
        Ok(pending)
    }
}

impl Inner {
    /// Shows every record that can be read. Those that cannot are the sweeper's to report.
    async fn each_record(&self, mut show: impl FnMut(&Uid, UserRecord) + Send) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.directory.page(after.as_ref(), PAGE).await?;
            let Some((last, ..)) = page.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            for (_, uid, seen) in page {
                if let (Some(uid), Ok(seen)) = (uid, seen) {
                    show(&uid, seen.record);
                }
            }
        }
    }

    /// The accounts that have sessions which a target means, with these.
    async fn accounts_of(&self, target: &Target) -> Result<Vec<(Uid, Vec<SlotEntry>)>> {
        let mut accounts = Vec::new();
        let mut take = |uid: &Uid, record: UserRecord| {
            let entries = record.slots.into_values();
            let meant: Vec<_> = entries.filter(|entry| target.means(entry)).collect();
            if !meant.is_empty() {
                accounts.push((uid.clone(), meant));
            }
        };
        if let Target::Uid(uid) = target {
            take(uid, self.directory.read(uid).await?.record);
        } else {
            self.each_record(take).await?;
        }
        Ok(accounts)
    }

    /// Ends the account's sessions that are wanted: takes them out of the directory, then tells them.
    pub(crate) async fn end_sessions(
        self: &Arc<Self>,
        uid: &Uid,
        wanted: impl Fn(&SlotEntry) -> bool + Send + Sync,
        ending: Ending<'_>,
    ) -> Result<Vec<Kicked>> {
        for _ in 0..ROUNDS {
            let Seen {
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
                    // What was seen, and nothing newer.
                    gen_max: entry.r#gen,
                    reason: ending.code,
                    text: ending.text.map(str::to_owned),
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
            let landed = |now: &UserRecord| {
                let gone = revoked.iter().all(|it| now.slot_of(&it.key).is_none());
                let marked = ending.ban.is_none_or(|ban| now.ban.as_ref() == Some(ban));
                (gone && marked).then_some(Put::Stored)
            };
            let until = self.clock.now() + self.timers.kick_budget;
            let may_wait = || self.clock.now() < until;
            let put = self
                .directory
                .put(uid, version, &record, landed, may_wait)
                .await?;
            if put == Put::Conflict {
                continue;
            }
            for revocation in &revoked {
                self.events.emit(Transition::Revoked, |event| {
                    event.revocation(uid, revocation);
                });
            }
            let gone = self
                .kick_all(uid, &revoked, self.timers.kick_budget, None)
                .await;
            let settled = self.settle(uid, &gone).await;
            if let Err(error) = &settled {
                // They are gone all the same.
                tracing::warn!(?uid, %error, "the directory is told later that sessions are gone");
            }
            if settled.is_err() || gone.len() < revoked.len() {
                self.go_on_telling(uid);
            }
            return Ok(revoked
                .into_iter()
                .zip(ended)
                .map(|(it, entry)| Kicked {
                    uid: uid.clone(),
                    device: entry.device,
                    gone: gone.contains(&it.key),
                    key: it.key,
                    kick_id: it.kick_id,
                    error: None,
                })
                .collect());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("record of account {uid:?} changed {ROUNDS} times in between"),
        ))
    }
}
