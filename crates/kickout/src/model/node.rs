//! A node, as its lease and its drain mark in the store describe it.

use distlock_core::HolderInfo;
use serde::{Deserialize, Serialize};

use crate::model::ident::{Boot, NodeId};

/// The text that a node writes beside its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeMeta {
    pub(crate) addr: String,
    pub(crate) state: NodeState,
    /// Its address for clients. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<String>,
    /// Its policy, so that another node notices a different one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Its incarnation, if it differs from the lease's token. It differs after the store lost the
    /// lease and the node took it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<Boot>,
}

/// Reads the lease of a node: its incarnation, and the text beside the lease if it is readable.
pub(crate) fn read_lease(holder: &HolderInfo) -> (Option<Boot>, Option<NodeMeta>) {
    let meta = holder.meta.as_deref().map(serde_json::from_str::<NodeMeta>);
    let meta = meta.and_then(Result::ok);
    let named = meta.as_ref().and_then(|meta| meta.boot);
    let token = holder.token.map(|token| Boot::new(token.get()));
    (named.or(token), meta)
}

/// Whether a node takes logins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// It takes logins.
    Up,
    /// It takes no further login and is about to stop.
    Draining,
}

/// A node, its incarnation and its address for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub boot: Boot,
    /// Its address, as it advertises it.
    pub addr: String,
}

/// The mark of a draining node. It counts for this incarnation alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DrainMark {
    pub(crate) boot: Boot,
}

/// A node that holds its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub boot: Boot,
    /// Its address, as it advertises it.
    pub addr: String,
    /// Its address for clients, if it advertises one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<String>,
    /// Whether it takes logins.
    pub state: NodeState,
    /// Its policy, if it advertises one. All nodes of one store need the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Time until its lease ends without a renewal, in milliseconds, if the store can tell.
    pub lease_remaining_ms: Option<u64>,
}
