//! A node, as its lease, its drain mark and the roster in the store describe it.

use std::collections::{BTreeMap, BTreeSet};

use distlock_core::{Error, ErrorKind, HolderInfo, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::ident::{Boot, NodeId};

/// The text that a node writes beside its lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeMeta {
    pub(crate) addr: String,
    /// The node's address for clients. For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<String>,
    /// The node's policy, so that another node can log a difference.
    pub(crate) policy: String,
    /// The node's incarnation, if it differs from the lease's token. The two differ after the store
    /// lost the lease and the node took the lease again.
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
    /// The node takes logins.
    Up,
    /// The node takes no further login and is about to stop.
    Draining,
}

/// A node, its incarnation and its address for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub boot: Boot,
    /// The node's address for peers, as the node advertises it.
    pub addr: String,
}

/// The mark of a draining node. A mark of another incarnation is ignored.
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
    /// The incarnation of the node.
    pub boot: Boot,
    /// The node's address for peers, as the node advertises it.
    pub addr: String,
    /// The node's address for clients, if the node advertises one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<String>,
    /// Whether the node takes logins.
    pub state: NodeState,
    /// The node's policy. All nodes of one store need the same policy.
    pub policy: String,
    /// Time until the node's lease ends without a renewal, in milliseconds, if the store can tell.
    pub lease_remaining_ms: Option<u64>,
    /// Why the node that answers cannot call this one; absent if it can. Takeovers between the two
    /// are then late, and messages are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

/// The incarnations that are alive, or may have left records behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// Format of the record.
    v: u8,
    /// Id of this roster; `None` without a record. A new record gets a new id, so a node notices
    /// that the store was emptied.
    pub(crate) id: Option<Uuid>,
    pub(crate) nodes: BTreeMap<NodeId, BTreeSet<Boot>>,
}

/// Format of the roster; a reader refuses any other.
const FORMAT: u8 = 1;

impl Default for Roster {
    fn default() -> Self {
        Self {
            v: FORMAT,
            id: None,
            nodes: BTreeMap::new(),
        }
    }
}

impl Roster {
    /// Returns the roster if its format is known.
    pub(crate) fn check_format(self) -> Result<Self> {
        if self.v == FORMAT {
            return Ok(self);
        }
        let says = format!(
            "the roster of nodes has format {}, this version knows {FORMAT}",
            self.v
        );
        Err(Error::new(ErrorKind::Corrupt, says))
    }

    /// Adds an incarnation. Returns true if it was missing.
    pub(crate) fn add(&mut self, node: &NodeId, boot: Boot) -> bool {
        self.nodes.entry(node.clone()).or_default().insert(boot)
    }

    /// Removes an incarnation. Returns true if it was there.
    pub(crate) fn remove(&mut self, node: &NodeId, boot: Boot) -> bool {
        let Some(boots) = self.nodes.get_mut(node) else {
            return false;
        };
        let was = boots.remove(&boot);
        if boots.is_empty() {
            self.nodes.remove(node);
        }
        was
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The names of all nodes on the roster.
    pub(crate) fn into_node_names(self) -> BTreeSet<NodeId> {
        self.nodes.into_keys().collect()
    }
}
