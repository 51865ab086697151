//! The targets of operations by hand, and their results.

use distlock_core::Error;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{
    ban::Ban,
    ident::{Boot, Class, Device, NodeId, SessionId, SessionKey, Uid},
    notice::Code,
    record::{Revocation, SlotEntry, UserRecord},
};

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
pub(crate) struct EndingReason<'a> {
    pub(crate) code: Code,
    pub(crate) text: Option<&'a str>,
    /// The ban that the record is marked with in the same write.
    pub(crate) ban: Option<&'a Ban>,
}

impl Target {
    pub(crate) fn means(&self, entry: &SlotEntry) -> bool {
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
