//! Breaks nodes, their connections and the store at random, drawn from a seed, and heals all faults
//! again.
//!
//! Each fault becomes a fact of the history, with the affected node and the time of the fault. The
//! checker makes its allowances from these facts alone. A fault without a fact would look like a
//! broken invariant.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, SystemClock};
use distlock_checker::Fact;
use distlock_harness::{FaultProxy, Signal};
use distlock_kickout::NodeId;
use fastrand::Rng;
use tokio::task::{JoinHandle, block_in_place};

use super::{
    client::Observations,
    node_group::{NodeGroup, NodeProcess},
    planted_bugs::NodeFaultKind,
};
use crate::chaos::{
    database_file,
    history::{Micros, now},
    stores::{PausedServer, RunningStore, StoreKind},
};

/// A fault that is not healed yet, with its time and the step that ends the fault.
struct ActiveNodeFault {
    from: Micros,
    until: Micros,
    remedy: NodeRemedy,
}

/// The step that ends a fault. The numbers are indices of nodes or of servers of the store.
enum NodeRemedy {
    ResumeNode(usize),
    StartNode(usize),
    RestorePeers(usize),
    RestoreStore(usize),
    RestoreBoth(usize),
    ResumeServer(PausedServer),
    RestartServer(usize),
    UnlockFile(JoinHandle<Result<()>>),
}

/// Injects the faults of one run.
pub(super) struct NodeNemesis {
    rng: Rng,
    kinds: Vec<NodeFaultKind>,
    /// The lease of a node. Some faults are shorter than this lease, and some are longer.
    lease: Duration,
    observations: Arc<Observations>,
    active: Vec<ActiveNodeFault>,
    /// Number of faults by kind.
    pub(super) faults: BTreeMap<String, u64>,
}

/// Largest number of faults that are active at a time.
const MAX_ACTIVE: usize = 2;
/// Time that nodes need to connect again. A node retries after pauses of up to a second.
const RECONNECT_US: Micros = 1_500_000;

impl NodeNemesis {
    pub(super) const fn new(
        rng: Rng,
        kinds: Vec<NodeFaultKind>,
        lease: Duration,
        observations: Arc<Observations>,
    ) -> Self {
        Self {
            rng,
            kinds,
            lease,
            observations,
            active: Vec::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Heals the faults that are due, injects another fault unless too many are active, and waits
    /// for a random time.
    pub(super) async fn step(
        &mut self,
        group: &mut NodeGroup,
        running_store: &mut RunningStore,
    ) -> Result<()> {
        self.heal_due(group, running_store, now()).await?;
        if self.active.len() < MAX_ACTIVE && !self.kinds.is_empty() {
            let kind = self.kinds[self.rng.usize(..self.kinds.len())];
            self.inject(kind, group, running_store)?;
        }
        let gap = Duration::from_millis(self.rng.u64(50..1_000));
        SystemClock.sleep(gap).await;
        Ok(())
    }

    /// Draws the duration of a fault. One fault in four may last longer than the lease of a node.
    fn draw_duration(&mut self) -> Micros {
        let longest = self.lease.mul_f32(match self.rng.u32(..4) {
            0 => 2.0,
            _ => 0.5,
        });
        u64::try_from(longest.mul_f32(self.rng.f32()).as_micros()).unwrap_or_default()
    }

    /// Injects one fault, unless an active fault or a missing node prevents the injection.
    fn inject(
        &mut self,
        kind: NodeFaultKind,
        group: &mut NodeGroup,
        running_store: &mut RunningStore,
    ) -> Result<()> {
        let (at, pick) = (self.rng.usize(..group.nodes.len()), self.rng.usize(..64));
        let (from, mut lasts) = (now(), self.draw_duration());
        let delay = Duration::from_micros((lasts / 8).min(300_000));
        let remedy = match kind {
            NodeFaultKind::StopServer | NodeFaultKind::KillServer | NodeFaultKind::LockFile => {
                self.inject_into_store(kind, pick, running_store)?
            }
            _ => self.inject_into_node(kind, at, delay, group)?,
        };
        let Some(remedy) = remedy else {
            return Ok(());
        };
        if kind == NodeFaultKind::Isolate {
            // Some isolations must last longer than a node continues without its store: until the
            // end of its lease, or until its last check before that end.
            lasts *= 2;
        }
        *self.faults.entry(kind.key()).or_default() += 1;
        self.active.push(ActiveNodeFault {
            from,
            until: from + lasts,
            remedy,
        });
        Ok(())
    }

    /// Breaks the store, unless a fault of the store is active.
    fn inject_into_store(
        &self,
        kind: NodeFaultKind,
        pick: usize,
        running_store: &mut RunningStore,
    ) -> Result<Option<NodeRemedy>> {
        let is_broken = self.active.iter().any(|it| {
            matches!(
                it.remedy,
                NodeRemedy::ResumeServer(_)
                    | NodeRemedy::RestartServer(_)
                    | NodeRemedy::UnlockFile(_)
            )
        });
        if is_broken {
            return Ok(None);
        }
        Ok(Some(match kind {
            NodeFaultKind::StopServer => NodeRemedy::ResumeServer(running_store.pause(pick)?),
            NodeFaultKind::KillServer => NodeRemedy::RestartServer(running_store.kill(pick)),
            _ => {
                let path = running_store.database_path().context("a file")?.to_owned();
                NodeRemedy::UnlockFile(tokio::spawn(database_file::keep_locked(path)))
            }
        }))
    }

    /// Breaks a node or its connections, unless the node is down or has an active fault.
    fn inject_into_node(
        &self,
        kind: NodeFaultKind,
        at: usize,
        delay: Duration,
        group: &mut NodeGroup,
    ) -> Result<Option<NodeRemedy>> {
        if !group.nodes[at].is_up() || self.is_node_faulty(at) {
            return Ok(None);
        }
        let node = &group.nodes[at];
        Ok(Some(match kind {
            NodeFaultKind::StopNode => {
                node.signal(Signal::STOP)?;
                NodeRemedy::ResumeNode(at)
            }
            NodeFaultKind::KillNode => {
                let id = node.id()?;
                group.kill(at)?;
                self.observations.record_fact(Fact::Killed {
                    node: id,
                    at_us: now(),
                });
                NodeRemedy::StartNode(at)
            }
            NodeFaultKind::CutPeers
            | NodeFaultKind::BlackHolePeers
            | NodeFaultKind::SlowPeers
            | NodeFaultKind::LosePeerAnswer => {
                break_connections(kind, &node.peers, delay);
                NodeRemedy::RestorePeers(at)
            }
            NodeFaultKind::CutStore
            | NodeFaultKind::BlackHoleStore
            | NodeFaultKind::SlowStore
            | NodeFaultKind::LoseStoreAnswer => {
                for proxy in &node.store {
                    break_connections(kind, proxy, delay);
                }
                NodeRemedy::RestoreStore(at)
            }
            // The isolated node loses its sessions, so at least one other node must be healthy to
            // take them over.
            NodeFaultKind::Isolate if self.active.is_empty() => {
                node.peers.black_hole();
                for proxy in &node.store {
                    proxy.black_hole();
                }
                NodeRemedy::RestoreBoth(at)
            }
            _ => return Ok(None),
        }))
    }

    /// Tells whether a fault of this node or of its connections is active.
    fn is_node_faulty(&self, at: usize) -> bool {
        self.active
            .iter()
            .any(|active_fault| match active_fault.remedy {
                NodeRemedy::ResumeNode(it)
                | NodeRemedy::StartNode(it)
                | NodeRemedy::RestorePeers(it)
                | NodeRemedy::RestoreStore(it)
                | NodeRemedy::RestoreBoth(it) => it == at,
                _ => false,
            })
    }

    /// Heals all faults whose end is not after `by`, and records a fact about each.
    async fn heal_due(
        &mut self,
        group: &mut NodeGroup,
        running_store: &mut RunningStore,
        by: Micros,
    ) -> Result<()> {
        let (due, open) = std::mem::take(&mut self.active)
            .into_iter()
            .partition::<Vec<_>, _>(|active_fault| active_fault.until <= by);
        self.active = open;
        for active_fault in due {
            let from = active_fault.from;
            match active_fault.remedy {
                NodeRemedy::ResumeNode(at) => {
                    let node = &group.nodes[at];
                    node.signal(Signal::CONT)?;
                    let id = node.id()?;
                    self.observations.record_fact(Fact::Paused {
                        node: id,
                        from_us: from,
                        to_us: now(),
                    });
                    // The stopped node may have held the lock of the database file. Then no other
                    // node could write.
                    if running_store.kind == StoreKind::Sqlite {
                        self.record_store_outage(None, from);
                    }
                }
                NodeRemedy::StartNode(at) => group.start_process(at)?,
                NodeRemedy::RestorePeers(at) => self.restore_peers(&group.nodes[at], from)?,
                NodeRemedy::RestoreStore(at) => self.restore_store(&group.nodes[at], from)?,
                NodeRemedy::RestoreBoth(at) => {
                    self.restore_peers(&group.nodes[at], from)?;
                    self.restore_store(&group.nodes[at], from)?;
                }
                NodeRemedy::ResumeServer(paused) => {
                    running_store.resume(paused)?;
                    self.record_store_outage(None, from);
                }
                NodeRemedy::RestartServer(at) => {
                    block_in_place(|| running_store.restart_server(at))?;
                    self.record_store_outage(None, from);
                }
                NodeRemedy::UnlockFile(holding) => {
                    holding.abort();
                    let _ = holding.await;
                    self.record_store_outage(None, from);
                }
            }
        }
        Ok(())
    }

    /// Lets other nodes reach a node again.
    fn restore_peers(&self, node: &NodeProcess, from_us: Micros) -> Result<()> {
        node.peers.pass();
        self.observations.record_fact(Fact::Unreachable {
            node: node.id()?,
            from_us,
            to_us: now() + RECONNECT_US,
        });
        Ok(())
    }

    /// Lets a node reach the store again.
    fn restore_store(&self, node: &NodeProcess, from_us: Micros) -> Result<()> {
        node.store.iter().for_each(FaultProxy::pass);
        self.record_store_outage(Some(node.id()?), from_us);
        Ok(())
    }

    /// Heals all faults.
    pub(super) async fn heal_all(
        &mut self,
        group: &mut NodeGroup,
        running_store: &mut RunningStore,
    ) -> Result<()> {
        self.heal_due(group, running_store, Micros::MAX).await
    }

    /// Records that a node, or each node, could not rely on the store.
    fn record_store_outage(&self, node: Option<NodeId>, from_us: Micros) {
        self.observations.record_fact(Fact::NoStore {
            node,
            from_us,
            to_us: now() + RECONNECT_US,
        });
    }
}

/// Breaks the connections that pass one proxy.
fn break_connections(kind: NodeFaultKind, proxy: &FaultProxy, delay: Duration) {
    match kind {
        NodeFaultKind::CutPeers | NodeFaultKind::CutStore => proxy.refuse(),
        NodeFaultKind::BlackHolePeers | NodeFaultKind::BlackHoleStore => proxy.black_hole(),
        NodeFaultKind::SlowPeers | NodeFaultKind::SlowStore => proxy.delay(delay),
        _ => proxy.swallow_one_reply(),
    }
}
