//! A ZooKeeper ensemble. Its followers reach the leader through proxies that can close one end of a
//! connection.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use distlock_harness::{
    FaultProxy, eventually,
    servers::zookeeper::{Ports, Setup, ZooKeeper},
};
use tokio::runtime::Handle;

use super::leader::{FormerLeader, LeaderRemoval, RemovedBy};

/// Number of servers.
const SERVERS: usize = 3;
/// Time-out for an election on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of ticks of 250 ms for which a leader without followers still answers. That time is
/// longer than an election and a client's session together.
const SYNC_LIMIT: &str = "syncLimit=32";

/// An ensemble, with the proxies between its servers.
#[derive(Debug)]
pub(super) struct EnsembleStore {
    pub(super) servers: ZooKeeper,
    links: Vec<PeerLink>,
}

/// The connection from one server to the quorum port of another server.
#[derive(Debug)]
struct PeerLink {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

impl EnsembleStore {
    /// Starts the ensemble. The function blocks, so it needs a thread that may block.
    pub(super) fn start() -> Result<Self> {
        let ports = (0..SERVERS).map(|_| Ports::pick());
        let ports: Vec<_> = ports.collect::<Result<_>>()?;
        let mut links = Vec::new();
        for from in 0..SERVERS {
            for to in (0..SERVERS).filter(|to| *to != from) {
                let address = (Ipv4Addr::LOCALHOST, ports[to].quorum).into();
                let proxy = Handle::current().block_on(FaultProxy::start(address))?;
                links.push(PeerLink { from, to, proxy });
            }
        }
        let detours = links.iter();
        let detours = detours.map(|it| (it.from, it.to, it.proxy.address().port()));
        let servers = ZooKeeper::start_with(&Setup {
            servers: SERVERS,
            detours: detours.collect(),
            ports: Some(ports),
            settings: vec![SYNC_LIMIT.into()],
            ..Setup::default()
        })?;
        let ensemble = Self { servers, links };
        // A server that starts late may cause another election.
        eventually("all follow", START_TIMEOUT, || ensemble.is_settled())?;
        Ok(ensemble)
    }

    /// Cuts the leader off from its followers, or kills it.
    pub(super) fn remove_leader(&mut self, how: LeaderRemoval) -> Result<Option<FormerLeader>> {
        let at = self.servers.leader()?;
        let how = match how {
            LeaderRemoval::CutOff => {
                // The followers' ends are closed, and the leader's ends stay open and silent, so
                // the leader does not notice. The proxies refuse new connections, so no follower
                // can connect again.
                for link in self.links.iter().filter(|it| it.to == at) {
                    link.proxy.forsake_clients();
                    link.proxy.refuse();
                }
                RemovedBy::CutOff
            }
            LeaderRemoval::FailOver | LeaderRemoval::Kill => {
                self.servers.kill(at);
                RemovedBy::Killed
            }
        };
        let next = (at + 1) % SERVERS;
        Ok(Some(FormerLeader { at, next, how }))
    }

    /// Tells whether another server leads.
    pub(super) fn is_replaced(&self, FormerLeader { at, .. }: FormerLeader) -> bool {
        let mut others = (0..SERVERS).filter(|it| *it != at);
        others.any(|it| self.servers.mode(it).as_deref() == Some("leader"))
    }

    /// Restarts a killed leader, or connects a cut-off leader with the other servers again.
    pub(super) fn rejoin(&mut self, FormerLeader { at, how, .. }: FormerLeader) -> Result<()> {
        match how {
            RemovedBy::Killed => self.servers.restart(at),
            RemovedBy::CutOff => {
                for link in self.links.iter().filter(|it| it.to == at) {
                    link.proxy.pass();
                }
                Ok(())
            }
            RemovedBy::Command => Ok(()),
        }
    }

    /// Tells whether one server leads and all others follow.
    pub(super) fn is_settled(&self) -> bool {
        self.servers.leader().is_ok() && self.servers.followers().len() == SERVERS - 1
    }

    /// Returns the nodes in the store queue of a lock, the holder's node first.
    pub(super) fn queue_of(&self, container: &str) -> Result<Vec<String>> {
        let mut nodes = self.servers.children(container).context("a lock's nodes")?;
        // Each node name ends with its place in the queue.
        nodes.sort_unstable_by_key(|it| it.rsplit('-').next().map(str::to_owned));
        Ok(nodes
            .into_iter()
            .map(|it| format!("{container}/{it}"))
            .collect())
    }
}
