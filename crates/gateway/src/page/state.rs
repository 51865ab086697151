//! What the page shows at one moment.

use distlock_core::{LockInfo, Result};
use distlock_kickout::{Boot, NodeId, NodeInfo, NodeState};
use serde::Serialize;

use super::Page;

/// Locks and nodes that are listed; more are only counted on a page that says so.
pub(super) const MOST: usize = 100;

pub(super) struct Snapshot {
    pub(super) node: NodeId,
    pub(super) boot: Option<Boot>,
    pub(super) state: NodeState,
    pub(super) lease_ms: u128,
    pub(super) sessions: usize,
    pub(super) under_way: usize,
    /// Other nodes and this one; or why the store did not tell.
    pub(super) nodes: Result<Vec<NodeInfo>>,
    /// The locks of accounts whose login is under way here, that are held or waited for.
    pub(super) locks: Result<Vec<LockInfo>>,
}

/// Where a browser finds a node.
#[derive(Serialize)]
pub(super) struct FrontOf {
    node: NodeId,
    front: String,
}

impl Snapshot {
    pub(super) async fn take(page: &Page) -> Self {
        let (nodes, locks) = tokio::join!(page.kick.nodes(), page.kick.locks_under_way(MOST),);
        Self {
            node: page.kick.node().clone(),
            boot: page.kick.boot(),
            state: page.kick.state(),
            lease_ms: page.kick.lease_remaining().as_millis(),
            sessions: page.kick.sessions(),
            under_way: page.kick.logins_under_way(),
            nodes,
            locks: locks.map(|mut locks| {
                locks.retain(|it| it.held.is_some() || it.waiters.unwrap_or_default() > 0);
                locks
            }),
        }
    }

    /// The nodes that take logins and say where.
    pub(super) fn fronts(&self) -> Vec<FrontOf> {
        let nodes = self.nodes.as_deref().unwrap_or_default();
        nodes
            .iter()
            .filter(|node| node.state == NodeState::Up)
            .filter_map(|node| {
                Some(FrontOf {
                    node: node.node.clone(),
                    front: node.front.clone()?,
                })
            })
            .collect()
    }
}
