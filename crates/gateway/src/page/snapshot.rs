//! The data of the page at one moment.

use std::time::Duration;

use distlock_core::{LockInfo, Result};
use distlock_kickout::{Boot, NodeAddress, NodeId, NodeInfo, NodeState};
use futures_util::future::join_all;
use serde::Serialize;

use super::PageContext;
use crate::takeovers::{Takeover, merge_takeovers};

/// Most locks and nodes on the page. A longer list ends with a note.
pub(super) const MAX_SHOWN: usize = 100;

pub(super) struct Snapshot {
    pub(super) node: NodeId,
    pub(super) boot: Option<Boot>,
    pub(super) state: NodeState,
    pub(super) lease_left: Duration,
    /// A lease with less time than this is marked: its renewal is late.
    pub(super) low_lease: Duration,
    pub(super) revocations: usize,
    pub(super) sessions: usize,
    pub(super) under_way: usize,
    /// All nodes, or the error of the store.
    pub(super) nodes: Result<Vec<NodeInfo>>,
    /// The locks, held or waited for, of accounts with a login in progress on this node.
    pub(super) locks: Result<Vec<LockInfo>>,
    /// The takeovers of all nodes that answer, newest first.
    pub(super) takeovers: Vec<Takeover>,
    /// The nodes whose takeovers are missing, each with the reason.
    pub(super) unreachable: Vec<(NodeId, String)>,
}

/// The address of a node for a browser.
#[derive(Serialize)]
pub(super) struct NodeFront {
    node: NodeId,
    front: String,
}

impl Snapshot {
    pub(super) async fn take(page: &PageContext) -> Self {
        let (nodes, locks) = tokio::join!(page.kick.nodes(), page.kick.locks_under_way(MAX_SHOWN));
        let (takeovers, unreachable) =
            collect_takeovers(page, nodes.as_deref().unwrap_or_default()).await;
        Self {
            takeovers,
            unreachable,
            node: page.kick.node().clone(),
            boot: page.kick.boot(),
            state: page.kick.state(),
            lease_left: page.kick.lease_remaining(),
            low_lease: page.node_lease / 3,
            revocations: page.kick.revocations_pending(),
            sessions: page.kick.sessions(),
            under_way: page.kick.logins_under_way(),
            nodes,
            locks: locks.map(|mut locks| {
                locks.retain(|it| it.held.is_some() || it.waiters.unwrap_or_default() > 0);
                locks
            }),
        }
    }

    /// The nodes that take logins and announce an address.
    pub(super) fn node_fronts(&self) -> Vec<NodeFront> {
        let nodes = self.nodes.as_deref().unwrap_or_default();
        nodes
            .iter()
            .filter(|node| node.state == NodeState::Up)
            .filter_map(|node| {
                Some(NodeFront {
                    node: node.node.clone(),
                    front: node.front.clone()?,
                })
            })
            .collect()
    }
}

/// The takeovers that this node and the other nodes saw, and the nodes that do not answer.
async fn collect_takeovers(
    page: &PageContext,
    nodes: &[NodeInfo],
) -> (Vec<Takeover>, Vec<(NodeId, String)>) {
    let others = nodes.iter().filter(|it| it.node != *page.kick.node());
    let asked = others.take(MAX_SHOWN).map(async |node| {
        let address = NodeAddress {
            node: node.node.clone(),
            boot: node.boot,
            addr: node.addr.clone(),
        };
        let answer = page.peers.takeovers(&address).await;
        answer.map_err(|error| (node.node.clone(), error.to_string()))
    });
    let mut seen = page.recent.read_newest();
    let mut unreachable = Vec::new();
    for answer in join_all(asked).await {
        match answer {
            Ok(takeovers) => seen.extend(takeovers),
            Err(node) => unreachable.push(node),
        }
    }
    (merge_takeovers(seen), unreachable)
}
