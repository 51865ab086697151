//! The requests that nodes send to each other, and the answers.
//!
//! Every request names exactly one session, and the target compares the whole identity.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{
    ident::{Class, Device, Generation, NodeId, SessionKey, Uid},
    login::ConfirmedBy,
    notice::Code,
    record::Revocation,
};

/// A kick: "end exactly this session".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KickRequest {
    /// The account.
    pub uid: Uid,
    /// The session.
    pub key: SessionKey,
    /// The highest generation that the kick may end.
    pub gen_max: Generation,
    /// The reason as a code.
    pub code: Code,
    /// The reason, for people.
    pub reason: Option<String>,
    /// The device that took over.
    pub by_device: Option<Device>,
    /// The generation that took over.
    pub by_gen: Option<Generation>,
    /// Id of the kick, the same in every retry.
    pub kick_id: Uuid,
    /// The sending node. For events and logs.
    pub from: NodeId,
    /// Time from the write that decided the kick until it was sent, if known. For display.
    pub after: Option<Duration>,
}

/// The answer to a kick: the session has ended. Every answer but `Saving` is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KickResult {
    /// The session was on this node, and this kick superseded it.
    Kicked,
    /// The session has ended, and its program still has time to save. Repeat the kick to learn
    /// whether the program has saved.
    Saving,
    /// The session has ended, and its program has saved.
    Saved,
    /// The session was not on this node, or it was ended before.
    AlreadyGone,
    /// The session belonged to an earlier incarnation of this node.
    BootMismatch,
    /// The account has a newer session on this node, which survives.
    Newer(Generation),
}

/// A delivery: "hand this message to exactly this session".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeliverRequest {
    /// The account.
    pub uid: Uid,
    /// The session.
    pub key: SessionKey,
    /// The message.
    pub message: Message,
    /// Time for the target to hand the message to the client.
    pub within: Duration,
}

/// A message to all sessions of an account, or to those of one device or class. The flow does not
/// look into its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The sending account.
    pub from: Uid,
    /// The id that the sender chose for the message.
    pub id: String,
    /// The text.
    pub body: String,
    /// If set, the message is only for this device of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_device: Option<Device>,
    /// If set, the message is only for the account's devices of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_class: Option<Class>,
}

/// The answer to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeliverResult {
    /// The session's client acknowledged the message.
    Delivered,
    /// The message was written to the connection of a client that does not acknowledge.
    Written,
    /// The session's client acknowledges messages, and did not acknowledge this one in time. The
    /// message may still arrive.
    Unacknowledged,
    /// The session is not active here. Nothing was delivered.
    NotCurrent,
    /// The session's queue is full. Nothing was delivered.
    Full,
    /// The session took the message for its connection, and did not report an outcome in time. The
    /// message may still arrive.
    Unknown,
}

/// The failure of a call to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerError {
    /// The call was certainly not executed.
    NotSent(String),
    /// The call may have been executed.
    Unknown(String),
}

impl Message {
    /// A message with an empty id. The fields are public.
    #[must_use]
    pub fn new(from: Uid, body: impl Into<String>) -> Self {
        Self {
            from,
            id: String::new(),
            body: body.into(),
            to_device: None,
            to_class: None,
        }
    }

    /// The same message for one device only.
    #[must_use]
    pub fn for_device(&self, device: &Device) -> Self {
        Self {
            to_device: Some(device.clone()),
            to_class: None,
            ..self.clone()
        }
    }

    /// Whether the message is for a session of this device and class.
    #[must_use]
    pub fn addresses(&self, device: &Device, class: &Class) -> bool {
        self.to_device.as_ref().is_none_or(|it| it == device)
            && self.to_class.as_ref().is_none_or(|it| it == class)
    }
}

impl KickResult {
    /// Whether a later kick of the session cannot have another answer that matters.
    pub(crate) fn is_final(self) -> bool {
        self != Self::Saving
    }

    /// The confirmation that this answer gives.
    pub(crate) fn confirmed_by(self) -> ConfirmedBy {
        if self == Self::Saved {
            ConfirmedBy::Program
        } else {
            ConfirmedBy::Node
        }
    }
}

impl PeerError {
    /// The call was certainly not executed, for this reason.
    #[must_use]
    pub fn not_sent(why: impl fmt::Display) -> Self {
        Self::NotSent(why.to_string())
    }

    /// The call may have been executed, and this failure came first.
    #[must_use]
    pub fn unknown(why: impl fmt::Display) -> Self {
        Self::Unknown(why.to_string())
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(why) => write!(f, "not sent: {why}"),
            Self::Unknown(why) => write!(f, "outcome unknown: {why}"),
        }
    }
}

impl std::error::Error for PeerError {}

impl KickRequest {
    /// A kick of exactly this session. The optional fields are public.
    #[must_use]
    pub fn new(
        uid: Uid,
        key: SessionKey,
        gen_max: Generation,
        code: Code,
        kick_id: Uuid,
        from: NodeId,
    ) -> Self {
        Self {
            uid,
            key,
            gen_max,
            code,
            reason: None,
            by_device: None,
            by_gen: None,
            kick_id,
            from,
            after: None,
        }
    }

    /// The kick for a revocation in the account's record; `from` is the sending node.
    pub(crate) fn for_revocation(uid: &Uid, revocation: &Revocation, from: &NodeId) -> Self {
        Self {
            uid: uid.clone(),
            key: revocation.key.clone(),
            gen_max: revocation.gen_max,
            code: revocation.code,
            reason: revocation.reason.clone(),
            by_device: revocation.by_device.clone(),
            by_gen: revocation.by_gen,
            kick_id: revocation.kick_id,
            from: from.clone(),
            after: None,
        }
    }
}

impl DeliverRequest {
    /// A delivery to exactly this session.
    #[must_use]
    pub const fn new(uid: Uid, key: SessionKey, message: Message, within: Duration) -> Self {
        Self {
            uid,
            key,
            message,
            within,
        }
    }
}
