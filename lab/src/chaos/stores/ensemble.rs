//! ZooKeeper, whose followers reach the leader through lines that can be cut on one side.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use distlock_harness::{
    FaultProxy, eventually,
    servers::zookeeper::{Ports, Setup, ZooKeeper},
};
use tokio::runtime::Handle;

use super::leader::{How, Unseat, Unseated};

const SERVERS: usize = 3;
/// An election on a busy machine.
const START: Duration = Duration::from_secs(60);
/// Ticks of 250 ms for which a leader that its followers have left goes on answering: longer than
/// an election and the session of a client last together.
const SYNC_LIMIT: &str = "syncLimit=32";

/// An ensemble, and the lines between its servers.
#[derive(Debug)]
pub(super) struct Ensemble {
    pub(super) servers: ZooKeeper,
    lines: Vec<Line>,
}

/// From one server to the port of another one where its followers connect.
#[derive(Debug)]
struct Line {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

impl Ensemble {
    /// Starts it. Blocks, on a thread that may.
    pub(super) fn start() -> Result<Self> {
        let ports = (0..SERVERS).map(|_| Ports::pick());
        let ports: Vec<_> = ports.collect::<Result<_>>()?;
        let mut lines = Vec::new();
        for from in 0..SERVERS {
            for to in (0..SERVERS).filter(|to| *to != from) {
                let address = (Ipv4Addr::LOCALHOST, ports[to].quorum).into();
                let proxy = Handle::current().block_on(FaultProxy::start(address))?;
                lines.push(Line { from, to, proxy });
            }
        }
        let detours = lines.iter();
        let detours = detours.map(|it| (it.from, it.to, it.proxy.address().port()));
        let servers = ZooKeeper::start_with(&Setup {
            servers: SERVERS,
            detours: detours.collect(),
            ports: Some(ports),
            settings: vec![SYNC_LIMIT.into()],
            ..Setup::default()
        })?;
        let ensemble = Self { servers, lines };
        // A server that comes late may make the others elect once more.
        eventually("all follow", START, || ensemble.is_settled())?;
        Ok(ensemble)
    }

    pub(super) fn unseat(&mut self, how: Unseat) -> Result<Option<Unseated>> {
        let at = self.servers.leader()?;
        let how = match how {
            Unseat::CutOff => {
                // Its followers' ends are closed and its own stay silent, so it does not notice. No
                // follower gets back to it.
                for line in self.lines.iter().filter(|it| it.to == at) {
                    line.proxy.forsake_clients();
                    line.proxy.refuse();
                }
                How::CutOff
            }
            Unseat::FailOver | Unseat::Kill => {
                self.servers.kill(at);
                How::Killed
            }
        };
        let next = (at + 1) % SERVERS;
        Ok(Some(Unseated { at, next, how }))
    }

    pub(super) fn is_replaced(&self, Unseated { at, .. }: Unseated) -> bool {
        let mut others = (0..SERVERS).filter(|it| *it != at);
        others.any(|it| self.servers.mode(it).as_deref() == Some("leader"))
    }

    pub(super) fn take_part_again(&mut self, Unseated { at, how, .. }: Unseated) -> Result<()> {
        match how {
            How::Killed => self.servers.restart(at),
            How::CutOff => {
                for line in self.lines.iter().filter(|it| it.to == at) {
                    line.proxy.pass();
                }
                Ok(())
            }
            How::Asked => Ok(()),
        }
    }

    /// Whether one leads and all others follow.
    pub(super) fn is_settled(&self) -> bool {
        self.servers.leader().is_ok() && self.servers.followers().len() == SERVERS - 1
    }

    /// The nodes of those who stand in line for a lock, the holder's first.
    pub(super) fn line_for(&self, container: &str) -> Result<Vec<String>> {
        let mut nodes = self.servers.children(container).context("a lock's nodes")?;
        // They end with their place in line.
        nodes.sort_unstable_by_key(|it| it.rsplit('-').next().map(str::to_owned));
        Ok(nodes
            .into_iter()
            .map(|it| format!("{container}/{it}"))
            .collect())
    }
}
