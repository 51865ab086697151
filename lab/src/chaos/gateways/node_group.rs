//! The nodes of a run: starts, stops, kills and replaces them. Each node has its own proxies to the
//! store, and one proxy in front of its peer port.

use std::{env, net::SocketAddr, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock_core::sync::Mutex;
use distlock_harness::{FaultProxy, Process, Signal, eventually_async, free_port};
use distlock_kickout::NodeId;
use fastrand::Rng;
use serde_json::Value;
use tokio::task::block_in_place;

use super::node::NodeSettings;
use crate::chaos::stores::RunningStore;

/// Time-out for the start of a node, which may wait for the lease of its earlier process or for a
/// broken store.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for the end of a killed process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The addresses of one node.
#[derive(Clone, Debug)]
pub(super) struct NodeAddress {
    pub(super) name: String,
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
}

/// The addresses of all nodes that have started, as clients know them.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeAddresses(Arc<Mutex<Vec<NodeAddress>>>);

impl NodeAddresses {
    /// Returns a random node. `None` means that no node is up.
    pub(super) fn random(&self, rng: &mut Rng) -> Option<NodeAddress> {
        let all = self.all();
        (!all.is_empty()).then(|| all[rng.usize(..all.len())].clone())
    }

    /// Returns all nodes that are up.
    pub(super) fn all(&self) -> Vec<NodeAddress> {
        let all = self.0.lock();
        all.clone()
    }

    /// Removes a node that was killed.
    fn forget(&self, name: &str) {
        let mut all = self.0.lock();
        all.retain(|it| it.name != name);
    }

    /// Adds a node, or replaces its earlier addresses.
    fn add(&self, address: NodeAddress) {
        self.forget(&address.name);
        let mut all = self.0.lock();
        all.push(address);
    }
}

/// The process of one node, with its proxies.
#[derive(Debug)]
pub(super) struct NodeProcess {
    settings: NodeSettings,
    process: Option<Process>,
    is_up: bool,
    /// The proxy in front of the node's peer port.
    pub(super) peers: FaultProxy,
    /// The proxies between the node and each server of the store.
    pub(super) store: Vec<FaultProxy>,
}

impl NodeProcess {
    /// Returns the name of the node, as the gateway knows it.
    pub(super) fn id(&self) -> Result<NodeId> {
        Ok(NodeId::new(&self.settings.node)?)
    }

    /// Tells whether the node has a process that has printed its addresses.
    pub(super) const fn is_up(&self) -> bool {
        self.is_up
    }

    /// # Errors
    /// Returns an error if the node has no process.
    pub(super) fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("a node")?.signal(which)
    }
}

/// All nodes of one run.
#[derive(Debug)]
pub(super) struct NodeGroup {
    pub(super) nodes: Vec<NodeProcess>,
    pub(super) addresses: NodeAddresses,
    program: PathBuf,
    /// The output of processes that have ended.
    earlier_outputs: Vec<String>,
    /// Nodes that ended although the nemesis did not kill them, with the end of their output.
    pub(super) crashes: Vec<String>,
}

impl NodeGroup {
    /// Starts `nodes` nodes with the settings `template`, and waits until all of them are up.
    pub(super) async fn start(
        nodes: u32,
        template: &NodeSettings,
        running_store: &RunningStore,
    ) -> Result<Self> {
        let mut group = Self {
            nodes: Vec::new(),
            addresses: NodeAddresses::default(),
            program: env::current_exe().context("this program")?,
            earlier_outputs: Vec::new(),
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
                records_url: running_store.records_url(),
                peer_listen: address.to_string(),
                peer_advertise: peers.address().to_string(),
                ..template.clone()
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

    /// Starts the process of a node that has none. The node is up later.
    pub(super) fn start_process(&mut self, at: usize) -> Result<()> {
        let (name, value) = self.nodes[at].settings.environment_variable()?;
        let process = Process::spawn(Command::new(&self.program).env(name, value))?;
        self.nodes[at].process = Some(process);
        Ok(())
    }

    /// Kills the process of a node with SIGKILL, and waits until the process has ended.
    pub(super) fn kill(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        self.addresses.forget(&node.settings.node);
        node.is_up = false;
        let mut process = node.process.take().context("a node")?;
        process.signal(Signal::KILL)?;
        block_in_place(|| process.wait(EXIT_TIMEOUT))?;
        self.earlier_outputs.push(process.output());
        Ok(())
    }

    /// Adds nodes that have started to the known addresses. Records each crashed node, and restarts
    /// that node.
    pub(super) fn update_processes(&mut self) -> Result<()> {
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
                && let Some(address) = read_ready_line(&node.settings.node, &process.output())
            {
                node.is_up = true;
                self.addresses.add(address);
            }
        }
        Ok(())
    }

    /// Waits until all nodes are up.
    pub(super) async fn wait_until_up(&mut self) -> Result<()> {
        let group = Mutex::new(self);
        eventually_async("the nodes are up", START_TIMEOUT, async || {
            let mut group = group.lock();
            group.update_processes().ok()?;
            group.nodes.iter().all(NodeProcess::is_up).then_some(())
        })
        .await
    }

    /// Returns the output of all processes of all nodes, process by process.
    pub(super) fn output(&self) -> Vec<String> {
        let running = self.nodes.iter().filter_map(|it| it.process.as_ref());
        let running = running.map(Process::output);
        self.earlier_outputs
            .iter()
            .cloned()
            .chain(running)
            .collect()
    }
}

/// Reads the addresses that a node prints when it is ready.
fn read_ready_line(name: &str, output: &str) -> Option<NodeAddress> {
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
