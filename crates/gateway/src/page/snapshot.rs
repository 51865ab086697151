//! The data of the page at one moment.

use std::{collections::BTreeMap, time::Duration};

use distlock_core::{LockInfo, Result};
use distlock_kickout::{Boot, NodeAddress, NodeId, NodeInfo, NodeState};
use futures_util::future::join_all;
use serde::Serialize;

use super::PageContext;
use crate::takeovers::{NodeReport, Takeover, merge_takeovers};

/// Most locks and nodes on the page. A longer list ends with a note.
pub(super) const MAX_SHOWN: usize = 100;

pub(super) struct Snapshot {
    pub(super) node: NodeId,
    pub(super) boot: Option<Boot>,
    pub(super) state: NodeState,
    pub(super) lease_left: Duration,
    /// A lease with less time than this is marked: its renewal is late.
    pub(super) low_lease: Duration,
    /// The time until the first certificate of this node expires, in seconds, negative afterwards.
    pub(super) certificate_left: Option<f64>,
    pub(super) revocations: usize,
    pub(super) under_way: usize,
    /// All nodes, or the error of the store.
    pub(super) nodes: Result<Vec<NodeInfo>>,
    /// The locks, held or waited for, of accounts with a login in progress on this node.
    pub(super) locks: Result<Vec<LockInfo>>,
    /// The takeovers of all nodes that answer, newest first.
    pub(super) takeovers: Vec<Takeover>,
    /// The report of each node that was asked, this one included, or the reason why it is missing.
    pub(super) reports: BTreeMap<NodeId, Report>,
}

/// The report of a node, or the reason why it is missing.
pub(super) type Report = std::result::Result<NodeReport, String>;

/// A node, and its sessions if they are known, for the lists of the page.
#[derive(Serialize)]
pub(super) struct NodeSessions<'a> {
    node: &'a NodeId,
    sessions: Option<u64>,
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
        let mut reports = collect_reports(page, nodes.as_deref().unwrap_or_default()).await;
        let seen = reports.values_mut().flatten();
        let seen = seen.flat_map(|report| std::mem::take(&mut report.takeovers));
        Self {
            takeovers: merge_takeovers(seen.collect()),
            reports,
            node: page.kick.node().clone(),
            boot: page.kick.boot(),
            state: page.kick.state(),
            lease_left: page.kick.lease_remaining(),
            low_lease: page.node_lease / 3,
            certificate_left: page.tls.seconds_left(),
            revocations: page.kick.revocations_pending(),
            under_way: page.kick.logins_under_way(),
            nodes,
            locks: locks.map(|mut locks| {
                locks.retain(|it| it.held.is_some() || it.waiters.unwrap_or_default() > 0);
                locks
            }),
        }
    }

    /// The sessions on a node, unless the node did not answer.
    pub(super) fn sessions_on(&self, node: &NodeId) -> Option<u64> {
        let report = self.reports.get(node)?.as_ref().ok()?;
        Some(report.sessions)
    }

    /// The sessions on the nodes that answered, and whether these are all nodes.
    pub(super) fn sessions_in_all(&self) -> (u64, bool) {
        let known = self.reports.values().flatten().map(|it| it.sessions).sum();
        let all =
            |nodes: &Vec<NodeInfo>| nodes.iter().all(|it| self.sessions_on(&it.node).is_some());
        (known, self.nodes.as_ref().is_ok_and(all))
    }

    /// Every node with its sessions.
    pub(super) fn node_sessions(&self) -> Vec<NodeSessions<'_>> {
        let nodes = self.nodes.as_deref().unwrap_or_default().iter();
        nodes
            .map(|it| NodeSessions {
                node: &it.node,
                sessions: self.sessions_on(&it.node),
            })
            .collect()
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

/// The report of this node, and the reports of the other nodes, each of which is asked.
async fn collect_reports(page: &PageContext, nodes: &[NodeInfo]) -> BTreeMap<NodeId, Report> {
    let others = nodes.iter().filter(|it| it.node != *page.kick.node());
    let asked = others.take(MAX_SHOWN).map(async |node| {
        let address = NodeAddress {
            node: node.node.clone(),
            boot: node.boot,
            addr: node.addr.clone(),
        };
        let report = page.peers.report(&address).await;
        (node.node.clone(), report.map_err(|error| error.to_string()))
    });
    let mut reports = BTreeMap::from_iter(join_all(asked).await);
    reports.insert(page.kick.node().clone(), Ok(page.recent.report()));
    reports
}
