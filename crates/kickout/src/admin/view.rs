//! The targets and the results of an administrator's operations.

use distlock_core::Error;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{
    ban::Ban,
    ident::{Boot, Class, Device, NodeId, SessionId, SessionKey, Uid},
    notice::Code,
    record::{Revocation, SlotEntry, UserRecord},
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
    /// Every session of one class of device. The operation reads the whole directory.
    Class(Class),
    /// Every session on a node. The operation reads the whole directory.
    Node(NodeId),
    /// Every session. The operation reads the whole directory.
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
    pub(crate) text: Option<&'a str>,
    /// The ban that the same write puts in the record.
    pub(crate) ban: Option<&'a Ban>,
}

impl Target {
    /// Whether the target covers this session. The accounts are not compared: for a target of one
    /// account, the caller has read only that account.
    pub(crate) fn matches(&self, entry: &SlotEntry) -> bool {
        match self {
            Self::Uid(_) | Self::All => true,
            Self::Session(session) => entry.key.session == *session,
            Self::Class(class) => entry.class == *class,
            Self::Node(node) => entry.key.node == *node,
        }
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
