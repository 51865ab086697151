//! What the page shows at one moment.

use distlock_core::{LockInfo, Result};
use distlock_kickout::{Boot, NodeId};
use serde::{Deserialize, Serialize};

use super::Page;

/// Locks and nodes that are listed; more are only counted on a page that says so.
pub(super) const MOST: u32 = 100;

pub(super) struct Snapshot {
    pub(super) node: NodeId,
    pub(super) boot: Option<Boot>,
    pub(super) lease_ms: u128,
    pub(super) sessions: usize,
    pub(super) under_way: usize,
    /// Other nodes and this one; or why the store did not tell.
    pub(super) nodes: Result<Vec<Node>>,
    /// The accounts' locks that are held or waited for.
    pub(super) locks: Result<Vec<LockInfo>>,
}

pub(super) struct Node {
    pub(super) name: String,
    pub(super) boot: u64,
    pub(super) meta: Meta,
    pub(super) expires_ms: Option<u128>,
}

/// What a node writes beside its lease.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Meta {
    pub(super) addr: String,
    pub(super) state: String,
    pub(super) front: Option<String>,
}

/// Where a browser finds a node.
#[derive(Serialize)]
pub(super) struct FrontOf {
    node: String,
    front: String,
}

impl Snapshot {
    pub(super) async fn take(page: &Page) -> Self {
        let (nodes, locks) = tokio::join!(
            page.locker.list_page("node/", None, MOST),
            page.locker.list_page("user/", None, MOST),
        );
        Self {
            node: page.kick.node().clone(),
            boot: page.kick.boot(),
            lease_ms: page.kick.lease_remaining().as_millis(),
            sessions: page.kick.sessions(),
            under_way: page.kick.logins_under_way(),
            nodes: nodes.map(|nodes| nodes.into_iter().filter_map(Node::of).collect()),
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
            .filter(|node| node.meta.state == "up")
            .filter_map(|node| {
                Some(FrontOf {
                    node: node.name.clone(),
                    front: node.meta.front.clone()?,
                })
            })
            .collect()
    }
}

impl Node {
    fn of(info: LockInfo) -> Option<Self> {
        let name = info.name.as_str().strip_prefix("node/")?.to_owned();
        let holder = info.held?;
        Some(Self {
            name,
            boot: holder.token?.get(),
            meta: serde_json::from_str(holder.meta.as_deref().unwrap_or("{}")).unwrap_or_default(),
            expires_ms: holder.expires_in.map(|left| left.as_millis()),
        })
    }
}
