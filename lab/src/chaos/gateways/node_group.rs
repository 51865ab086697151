//! The nodes of a run: started, stopped, killed and replaced, with lines of their own to the store
//! and in front of what other nodes reach them by.

use std::{
    env,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock_harness::{FaultProxy, Process, Signal, eventually_async, free_port};
use distlock_kickout::NodeId;
use fastrand::Rng;
use serde_json::Value;
use tokio::task::block_in_place;

use super::node::NodeSettings;
use crate::chaos::stores::RunningStore;

/// A node that has not come up by then never does: it waits for its predecessor's lease, and the
/// store may be away.
const START: Duration = Duration::from_secs(60);
/// A process that was killed is gone by then.
const GONE: Duration = Duration::from_secs(30);

/// Where a node can be reached.
#[derive(Clone, Debug)]
pub(super) struct NodeAddress {
    pub(super) name: String,
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// Where the nodes can be reached that have come up, as clients know it.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeAddresses(Arc<Mutex<Vec<NodeAddress>>>);

impl NodeAddresses {
    pub(super) fn any(&self, rng: &mut Rng) -> Option<NodeAddress> {
        let all = self.all();
        (!all.is_empty()).then(|| all[rng.usize(..all.len())].clone())
    }

    pub(super) fn all(&self) -> Vec<NodeAddress> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }

    fn forget(&self, name: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| it.name != name);
    }

    fn add(&self, address: NodeAddress) {
        self.forget(&address.name);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(address);
    }
}

/// One node.
#[derive(Debug)]
pub(super) struct NodeProcess {
    settings: NodeSettings,
    process: Option<Process>,
    is_up: bool,
    /// In front of what other nodes reach it by.
    pub(super) peers: FaultProxy,
    /// Between it and each server of the store.
    pub(super) store: Vec<FaultProxy>,
}

impl NodeProcess {
    pub(super) fn id(&self) -> Result<NodeId> {
        Ok(NodeId::new(&self.settings.node)?)
    }

    pub(super) const fn is_up(&self) -> bool {
        self.is_up
    }

    /// # Errors
    /// When it does not run.
    pub(super) fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("a node")?.signal(which)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct NodeGroup {
    pub(super) nodes: Vec<NodeProcess>,
    pub(super) addresses: NodeAddresses,
    program: PathBuf,
    /// The output of processes that have ended.
    past: Vec<String>,
    /// Nodes that ended although nobody killed them, and what they said.
    pub(super) crashes: Vec<String>,
}

impl NodeGroup {
    /// Starts so many nodes as `like` has it, and waits until they are up.
    pub(super) async fn start(
        nodes: u32,
        like: &NodeSettings,
        running_store: &RunningStore,
    ) -> Result<Self> {
        let mut group = Self {
            nodes: Vec::new(),
            addresses: NodeAddresses::default(),
            program: env::current_exe().context("this program")?,
            past: Vec::new(),
            crashes: Vec::new(),
        };
        for number in 1..=nodes {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let peers = FaultProxy::start(address).await?;
            let mut store = Vec::new();
            for server in running_store.addresses() {
                store.push(FaultProxy::start(server).await?);
            }
            let settings = NodeSettings {
                node: format!("n{number}"),
                number,
                url: running_store.url_through(&store),
                peer_listen: address.to_string(),
                peer_advertise: peers.address().to_string(),
                ..like.clone()
            };
            group.nodes.push(NodeProcess {
                settings,
                process: None,
                is_up: false,
                peers,
                store,
            });
        }
        for at in 0..group.nodes.len() {
            group.start_process(at)?;
        }
        group.wait_until_up().await?;
        Ok(group)
    }

    /// Starts the process of a node that has none. It is up later.
    pub(super) fn start_process(&mut self, at: usize) -> Result<()> {
        let (name, value) = self.nodes[at].settings.variable()?;
        let process = Process::spawn(Command::new(&self.program).env(name, value))?;
        self.nodes[at].process = Some(process);
        Ok(())
    }

    /// Ends the process of a node as a crash does. It is gone when this returns.
    pub(super) fn kill(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        self.addresses.forget(&node.settings.node);
        node.is_up = false;
        let mut process = node.process.take().context("a node")?;
        process.signal(Signal::KILL)?;
        block_in_place(|| process.wait(GONE))?;
        self.past.push(process.output());
        Ok(())
    }

    /// Adds nodes that have come up to the roster. Records a node that crashed, and restarts it.
    pub(super) fn replace_crashed(&mut self) -> Result<()> {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let Some(process) = &mut node.process else {
                continue;
            };
            if !process.is_running()? {
                let said = process.output();
                let words = said.lines().filter(|line| !line.starts_with('{'));
                let words: Vec<_> = words.take(6).collect();
                self.crashes
                    .push(format!("{}: {}", node.settings.node, words.join(" | ")));
                self.kill(at)?;
                self.start_process(at)?;
                continue;
            }
            if !node.is_up
                && let Some(address) = announced(&node.settings.node, &process.output())
            {
                node.is_up = true;
                self.addresses.add(address);
            }
        }
        Ok(())
    }

    /// Waits until all of them are up.
    pub(super) async fn wait_until_up(&mut self) -> Result<()> {
        let group = Mutex::new(self);
        eventually_async("the nodes are up", START, async || {
            let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
            group.replace_crashed().ok()?;
            group.nodes.iter().all(NodeProcess::is_up).then_some(())
        })
        .await
    }

    /// Everything that the processes of all nodes have said, process by process.
    pub(super) fn said(&self) -> Vec<String> {
        let running = self.nodes.iter().filter_map(|it| it.process.as_ref());
        let running = running.map(Process::output);
        self.past.iter().cloned().chain(running).collect()
    }
}

/// Where a node says that it listens.
fn announced(name: &str, output: &str) -> Option<NodeAddress> {
    let ready = output
        .lines()
        .find(|line| line.starts_with(r#"{"event":"ready""#))?;
    let ready: Value = serde_json::from_str(ready).ok()?;
    let address = |key: &str| ready[key].as_str()?.parse().ok();
    Some(NodeAddress {
        name: name.to_owned(),
        listen: address("listen")?,
        admin: address("admin_listen")?,
    })
}
