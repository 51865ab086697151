//! One structured event for each transition, so that a checker can replay a run.
//!
//! An event never influences the flow.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{
    ident::{Boot, Class, Device, Generation, NodeId, SessionId, SessionKey, Uid},
    notice::Code,
    record::{Revocation, Slot},
};

/// An event of a node. A field that does not apply is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Number of the event; each node counts from 1.
    pub seq: u64,
    /// Wall clock of the node in milliseconds since 1970. For display only.
    pub at_ms: u64,
    /// Time since the machine booted, in microseconds. This time orders the events of all nodes on
    /// one machine.
    pub clock_us: u64,
    /// The node that emits the event.
    pub node: NodeId,
    /// The incarnation of the node that emits the event.
    pub boot: Boot,
    /// The transition that the event reports.
    pub event: Transition,
    /// The account that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// The session that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The node that the session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_node: Option<NodeId>,
    /// The incarnation of that node which the session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_boot: Option<Boot>,
    /// The session's slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The session's generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#gen: Option<Generation>,
    /// The highest generation that a kick may end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gen_max: Option<Generation>,
    /// The fencing token of the account's lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The session's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The session's class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The device that took over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_device: Option<Device>,
    /// The generation that took over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_gen: Option<Generation>,
    /// Id of the kick, the same on both nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kick_id: Option<Uuid>,
    /// The other node of a kick or a delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<NodeId>,
    /// The reason why the session ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The sender's name for the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Microseconds from the write that decided a takeover until its kick was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
    /// The outcome, in a word or a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// The transitions of a node, a session and a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Transition {
    /// The node took its lease.
    NodeUp,
    /// The node lost its lease and ended every session.
    NodeFenced,
    /// The node released its lease.
    NodeDown,
    /// The node refuses further logins and ends its sessions. The `result` "over" means that the
    /// drain has ended and the node takes logins again.
    NodeDraining,
    /// The login was granted: the account's record names this session.
    Granted,
    /// The account's record no longer names this session: a newer login replaced it, or an
    /// administrator ended it. After a login, the event follows the event of its grant.
    Revoked,
    /// A revocation left the account's record, because its session is known to have ended.
    Settled,
    /// The session is active, and its client gets the confirmation.
    Admitted,
    /// A login was refused for a temporary reason. The client may try again.
    Busy,
    /// A login was denied.
    Denied,
    /// A newer login replaced this one before this one was confirmed.
    Overtaken,
    /// A login did not write its decision: its lock was lost, or the record had changed since the
    /// read. `result` has the reason.
    WriteGivenUp,
    /// A kick was sent to another node; `result` is the answer.
    KickSent,
    /// A kick arrived from another node; `result` is this node's answer.
    KickReceived,
    /// A session was superseded; its client gets a notice.
    Superseded,
    /// The notice was written to the session's connection.
    Told,
    /// The session's client did not leave within the grace period, and its connection was cut.
    Cut,
    /// The account's record no longer names this session, because the session logged out.
    Deleted,
    /// A session ended.
    Closed,
    /// A delete was for a session that the account's record does not name. Nothing was changed.
    StaleDeleteRefused,
    /// A kick was for a session that is older than the account's session on this node. Nothing was
    /// changed.
    StaleKickRefused,
    /// A session that the store had lost was written again.
    Registered,
    /// The sweep removed a session of a dead incarnation from the account's record.
    SlotSwept,
    /// A message reached a session.
    Delivered,
    /// A message reached no session.
    Undelivered,
    /// A message that reached no session is stored until its account logs in.
    Stored,
    /// The account was banned.
    Banned,
    /// The account's ban was lifted, or has ended.
    Unbanned,
}

impl Event {
    /// Sets the fields that identify a session, which may belong to any node.
    pub(crate) fn set_session(&mut self, key: &SessionKey) {
        self.session = Some(key.session);
        self.session_node = Some(key.node.clone());
        self.session_boot = Some(key.boot);
    }

    /// Sets the fields of a revoked session, and of the login or kick that revoked it.
    pub(crate) fn set_revocation(&mut self, uid: &Uid, revocation: &Revocation) {
        self.uid = Some(uid.clone());
        self.set_session(&revocation.key);
        self.gen_max = Some(revocation.gen_max);
        self.code = Some(revocation.code);
        self.by_device.clone_from(&revocation.by_device);
        self.by_gen = revocation.by_gen;
        self.kick_id = Some(revocation.kick_id);
    }
}
