//! A node as its lease and its marks in the store describe it.

use distlock_core::HolderInfo;
use serde::{Deserialize, Serialize};

use crate::model::ident::{Boot, NodeId};

/// What a node writes beside its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeMeta {
    pub(crate) addr: String,
    pub(crate) state: NodeState,
    /// Where its clients connect, for people who look at the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<String>,
    /// Its policy, so that others notice when theirs is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Its incarnation, where that is not the lease's token: the store had forgotten the lease, and
    /// the node has taken it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<Boot>,
}

/// What a lease says of its node: the incarnation, and the rest where it can be read.
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
    /// It does.
    Up,
    /// It is about to stop.
    Draining,
}

/// A node, its incarnation and where it listens for its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub boot: Boot,
    /// Its address, as it advertised it.
    pub addr: String,
}

/// What a draining node writes. It counts for that incarnation alone.
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
    /// Its address, as it advertised it.
    pub addr: String,
    /// Where its clients connect, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<String>,
    /// Whether it takes logins.
    pub state: NodeState,
    /// Its policy, if it said so. Nodes of one store need the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// How long its lease lasts unless it is renewed, in milliseconds, where the store can tell.
    pub lease_remaining_ms: Option<u64>,
}
