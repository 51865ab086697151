//! Looking at accounts and ending sessions by hand.

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    directory::{Put, Seen},
    event::Transition,
    flow::{Inner, KickOut},
    ident::{Boot, Class, NodeId, SessionId, SessionKey, Uid},
    nodes::Standing,
    offline::Code,
    record::{Revocation, SlotEntry, UserRecord},
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
    /// The kick, as in the events.
    pub kick_id: Uuid,
    /// Whether the session is known to be gone. If not, its node has not answered yet and finds out by itself.
    pub gone: bool,
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
    /// An account's record and how its nodes stand.
    ///
    /// # Errors
    /// Failures of the store; [`ErrorKind::Corrupt`] for a record that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn view(&self, uid: &Uid) -> Result<UserView> {
        let Seen { version, record } = self.inner.directory.read(uid).await?;
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
    /// # Errors
    /// Failures of the store; sessions that were ended before it stay ended.
    ///
    /// # Cancel safety
    /// Dropping it leaves the rest undone; what was revoked reaches its node all the same.
    pub async fn kick(&self, target: &Target, reason: Option<&str>) -> Result<Vec<Kicked>> {
        let inner = &self.inner;
        if let Target::Uid(uid) = target {
            return inner.kick_account(uid, |_| true, reason).await;
        }
        let wanted = |entry: &SlotEntry| match target {
            Target::Uid(_) => true,
            Target::Session(session) => entry.key.session == *session,
            Target::Class(class) => entry.class == *class,
            Target::Node(node) => entry.key.node == *node,
        };
        let mut kicked = Vec::new();
        let mut after = None;
        loop {
            let page = inner.directory.page(after.as_ref(), PAGE).await?;
            let Some((last, ..)) = page.last() else {
                return Ok(kicked);
            };
            after = Some(last.clone());
            for (_, uid, seen) in page {
                if let (Some(uid), Ok(seen)) = (uid, seen)
                    && seen.record.slots.values().any(wanted)
                {
                    kicked.extend(inner.kick_account(&uid, wanted, reason).await?);
                }
            }
        }
    }
}

impl Inner {
    async fn kick_account(
        &self,
        uid: &Uid,
        wanted: impl Fn(&SlotEntry) -> bool + Send + Sync,
        reason: Option<&str>,
    ) -> Result<Vec<Kicked>> {
        for _ in 0..ROUNDS {
            let Seen {
                version,
                mut record,
            } = self.directory.read(uid).await?;
            let revoked: Vec<_> = record
                .slots
                .values()
                .filter(|entry| wanted(entry))
                .map(|entry| Revocation {
                    key: entry.key.clone(),
                    // What was seen, and nothing newer.
                    gen_max: entry.r#gen,
                    reason: Code::AdminKick,
                    text: reason.map(str::to_owned),
                    by_device: None,
                    by_gen: None,
                    kick_id: Uuid::new_v4(),
                })
                .collect();
            if revoked.is_empty() {
                return Ok(Vec::new());
            }
            for revocation in &revoked {
                let (node, boot) = (&revocation.key.node, revocation.key.boot);
                self.directory.leave_hint(node, boot, uid).await?;
                record.evict(&revocation.key);
            }
            record.revocations.extend(revoked.iter().cloned());
            let landed = |now: &UserRecord| {
                revoked
                    .iter()
                    .all(|it| now.slot_of(&it.key).is_none())
                    .then_some(Put::Stored)
            };
            if self.directory.put(uid, version, &record, landed).await? == Put::Conflict {
                continue;
            }
            for revocation in &revoked {
                self.events.emit(Transition::Revoked, |event| {
                    event.revocation(uid, revocation);
                });
            }
            let gone = self.kick_all(uid, &revoked, self.timers.kick_budget).await;
            if !gone.is_empty() {
                self.settle(uid, &gone).await?;
            }
            return Ok(revoked
                .into_iter()
                .map(|it| Kicked {
                    uid: uid.clone(),
                    gone: gone.contains(&it.key),
                    key: it.key,
                    kick_id: it.kick_id,
                })
                .collect());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("record of account {uid:?} changed {ROUNDS} times in between"),
        ))
    }
}
