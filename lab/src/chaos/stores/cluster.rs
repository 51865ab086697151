//! A Redis cluster of three shards, each with a replica.
//!
//! The servers tell clients the addresses of all servers, and replicas use the same addresses. So
//! no proxy can stand in front of a server for one client alone. For the same reason a primary
//! cannot be cut off from the other servers while clients still reach the primary, because the
//! servers use connections of their own. The nearest fault is a primary that is stopped while a
//! replica replaces it (`stop-server`).

use anyhow::{Context as _, Result};
use distlock_harness::servers::redis::{RedisCluster, RedisServer};

use super::leader::{FormerLeader, LeaderRemoval, RemovedBy};

/// Number of shards.
const SHARDS: usize = 3;

/// The cluster, while it runs.
#[derive(Debug)]
pub(super) struct ClusterStore(RedisCluster);

impl ClusterStore {
    pub(super) fn start() -> Result<Self> {
        RedisCluster::start(SHARDS, 1).map(Self)
    }

    pub(super) fn url(&self) -> String {
        self.0.url()
    }

    pub(super) fn nodes(&self) -> &[RedisServer] {
        &self.0.nodes
    }

    pub(super) fn node_mut(&mut self, at: usize) -> &mut RedisServer {
        &mut self.0.nodes[at]
    }

    /// Tells whether a server is a primary.
    pub(super) fn leads(&self, at: usize) -> bool {
        info_is(&self.0.nodes[at], "role", "master")
    }

    /// Removes the primary of a random shard. `None` means that the shard has no replica or refuses
    /// the failover.
    pub(super) fn remove_leader(
        &mut self,
        how: LeaderRemoval,
        pick: usize,
    ) -> Result<Option<FormerLeader>> {
        let primaries: Vec<_> = (0..self.0.nodes.len())
            .filter(|at| self.leads(*at))
            .collect();
        let at = primaries[pick % primaries.len()];
        let Some(next) = self.replica_of(at)? else {
            return Ok(None);
        };
        // FORCE does not wait until the replica has caught up. TAKEOVER asks no other primary.
        // Redis documents no bound on the overlap after TAKEOVER, so the lab applies the bound of
        // the other two commands. The fourth choice kills the primary.
        let asks: &[&[&str]] = &[&[], &["FORCE"], &["TAKEOVER"]];
        let how = match (how, asks.get(pick / SHARDS % (asks.len() + 1))) {
            (LeaderRemoval::FailOver, Some(ask)) => {
                let ask = [&["CLUSTER", "FAILOVER"], *ask].concat();
                if self.0.nodes[next].command(&ask)? != "OK" {
                    return Ok(None);
                }
                RemovedBy::Command
            }
            _ => {
                self.node_mut(at).kill();
                RemovedBy::Killed
            }
        };
        Ok(Some(FormerLeader { at, next, how }))
    }

    /// Returns the index of a primary's replica.
    fn replica_of(&self, primary: usize) -> Result<Option<usize>> {
        // The field reads `slave0:ip=127.0.0.1,port=40000,state=online,..`.
        let line = self.0.nodes[primary]
            .info("slave0")
            .context("its replica")?;
        let port = line.split(',').find_map(|it| it.strip_prefix("port="));
        let port: u16 = port.context("a port")?.parse()?;
        Ok(self.0.nodes.iter().position(|it| it.port() == port))
    }

    /// Tells whether the former primary's replica is a primary now.
    pub(super) fn is_replaced(&self, FormerLeader { next, .. }: FormerLeader) -> bool {
        self.leads(next)
    }

    /// Restarts a killed server. A server that was replaced by an ordered failover rejoins by
    /// itself.
    pub(super) fn rejoin(&mut self, FormerLeader { at, how, .. }: FormerLeader) -> Result<()> {
        match how {
            RemovedBy::Killed => self.node_mut(at).restart(),
            RemovedBy::Command | RemovedBy::CutOff => Ok(()),
        }
    }

    /// Tells whether every server sees all slots served and all servers present, and each shard has
    /// a replica.
    pub(super) fn is_settled(&self) -> bool {
        let nodes = &self.0.nodes;
        let primaries = nodes
            .iter()
            .filter(|it| info_is(it, "role", "master"))
            .count();
        primaries == SHARDS && nodes.iter().all(|it| self.sees_all(it))
    }

    /// Tells whether a server sees all slots served and all servers present, and has its replica or
    /// its primary.
    fn sees_all(&self, node: &RedisServer) -> bool {
        let says = |about: &str| node.command(&["CLUSTER", about]).unwrap_or_default();
        let info = says("INFO");
        let links = says("NODES");
        info.contains("cluster_state:ok")
            && info.contains("cluster_slots_ok:16384")
            && links.lines().count() == self.0.nodes.len()
            && !links.contains("fail")
            && (info_is(node, "master_link_status", "up") || info_is(node, "connected_slaves", "1"))
    }
}

/// Tells whether a field of `INFO` has this value.
fn info_is(server: &RedisServer, field: &str, value: &str) -> bool {
    server.info(field).is_ok_and(|it| it == value)
}
