//! Breaks nodes, their lines and the store at random, drawn from a seed, and heals them again.
//!
//! Each fault becomes a fact of the history, about the node and the time that it really concerns.
//! The checker makes its allowances from these, and from nothing else.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, SystemClock};
use distlock_checker::Fact;
use distlock_harness::{FaultProxy, Signal};
use distlock_kickout::NodeId;
use fastrand::Rng;
use tokio::task::{JoinHandle, block_in_place};

use super::{
    client::Notes,
    group::{Group, Node},
    kinds::NodeBreak,
};
use crate::chaos::{
    file,
    history::{Micros, now},
    stores::{Kind, Stage, Still},
};

/// Something that is broken, and until when.
struct Wound {
    from: Micros,
    until: Micros,
    what: What,
}

enum What {
    Stopped(usize),
    Killed(usize),
    Peers(usize),
    Store(usize),
    Both(usize),
    Still(Still),
    Dead(usize),
    File(JoinHandle<Result<()>>),
}

/// See the module.
pub(super) struct Nemesis {
    rng: Rng,
    kinds: Vec<NodeBreak>,
    /// A node's lease: faults last for less and for more than it.
    lease: Duration,
    notes: Arc<Notes>,
    wounds: Vec<Wound>,
    /// Faults by kind.
    pub(super) faults: BTreeMap<String, u64>,
}

/// Wounds that are open at a time.
const AT_ONCE: usize = 2;
/// Nodes try again after pauses of up to a second, and have to connect first.
const RECONNECT_US: Micros = 1_500_000;

impl Nemesis {
    pub(super) const fn new(
        rng: Rng,
        kinds: Vec<NodeBreak>,
        lease: Duration,
        notes: Arc<Notes>,
    ) -> Self {
        Self {
            rng,
            kinds,
            lease,
            notes,
            wounds: Vec::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Breaks something, or waits a little.
    pub(super) async fn step(&mut self, group: &mut Group, stage: &mut Stage) -> Result<()> {
        self.heal(group, stage, now()).await?;
        if self.wounds.len() < AT_ONCE && !self.kinds.is_empty() {
            let kind = self.kinds[self.rng.usize(..self.kinds.len())];
            self.strike(kind, group, stage)?;
        }
        let gap = Duration::from_millis(self.rng.u64(50..1_000));
        SystemClock.sleep(gap).await;
        Ok(())
    }

    fn duration(&mut self) -> Micros {
        let longest = self.lease.mul_f32(match self.rng.u32(..4) {
            0 => 2.0,
            _ => 0.5,
        });
        u64::try_from(longest.mul_f32(self.rng.f32()).as_micros()).unwrap_or_default()
    }

    fn strike(&mut self, kind: NodeBreak, group: &mut Group, stage: &mut Stage) -> Result<()> {
        let (at, any) = (self.rng.usize(..group.nodes.len()), self.rng.usize(..64));
        let (from, mut lasts) = (now(), self.duration());
        let is_whole = group.nodes[at].is_up()
            && !self.wounds.iter().any(|wound| match wound.what {
                What::Stopped(it)
                | What::Killed(it)
                | What::Peers(it)
                | What::Store(it)
                | What::Both(it) => it == at,
                _ => false,
            });
        let store_is_well = !self
            .wounds
            .iter()
            .any(|it| matches!(it.what, What::Still(_) | What::Dead(_) | What::File(_)));
        let delay = Duration::from_micros((lasts / 8).min(300_000));
        let node = &group.nodes[at];
        let what = match kind {
            NodeBreak::StopServer if store_is_well => What::Still(stage.pause(any)?),
            NodeBreak::KillServer if store_is_well => What::Dead(stage.kill(any)),
            NodeBreak::LockFile if store_is_well => {
                let path = stage.file().context("a file")?.to_owned();
                What::File(tokio::spawn(file::keep_locked(path)))
            }
            _ if !is_whole => return Ok(()),
            NodeBreak::StopNode => {
                node.signal(Signal::STOP)?;
                What::Stopped(at)
            }
            NodeBreak::KillNode => {
                let id = node.id()?;
                group.kill(at)?;
                self.notes.fact(Fact::Killed {
                    node: id,
                    at_us: now(),
                });
                What::Killed(at)
            }
            NodeBreak::CutPeers
            | NodeBreak::BlackHolePeers
            | NodeBreak::SlowPeers
            | NodeBreak::LosePeerAnswer => {
                match kind {
                    NodeBreak::CutPeers => node.peers.refuse(),
                    NodeBreak::BlackHolePeers => node.peers.black_hole(),
                    NodeBreak::SlowPeers => node.peers.delay(delay),
                    _ => node.peers.swallow_one_reply(),
                }
                What::Peers(at)
            }
            NodeBreak::CutStore
            | NodeBreak::BlackHoleStore
            | NodeBreak::SlowStore
            | NodeBreak::LoseStoreAnswer => {
                for line in &node.store {
                    match kind {
                        NodeBreak::CutStore => line.refuse(),
                        NodeBreak::BlackHoleStore => line.black_hole(),
                        NodeBreak::SlowStore => line.delay(delay),
                        _ => line.swallow_one_reply(),
                    }
                }
                What::Store(at)
            }
            // Somebody has to be left who takes its sessions over.
            NodeBreak::Isolate if self.wounds.is_empty() => {
                node.peers.black_hole();
                for line in &node.store {
                    line.black_hole();
                }
                // Also for longer than it may go on by itself: its lease, and a look before it.
                lasts *= 2;
                What::Both(at)
            }
            _ => return Ok(()),
        };
        *self.faults.entry(kind.key()).or_default() += 1;
        self.wounds.push(Wound {
            from,
            until: from + lasts,
            what,
        });
        Ok(())
    }

    /// Heals all that should be healed by `by`, and says what it was.
    async fn heal(&mut self, group: &mut Group, stage: &mut Stage, by: Micros) -> Result<()> {
        let (due, open) = std::mem::take(&mut self.wounds)
            .into_iter()
            .partition::<Vec<_>, _>(|wound| wound.until <= by);
        self.wounds = open;
        for wound in due {
            let from = wound.from;
            match wound.what {
                What::Stopped(at) => {
                    let node = &group.nodes[at];
                    node.signal(Signal::CONT)?;
                    let id = node.id()?;
                    self.notes.fact(Fact::Paused {
                        node: id,
                        from_us: from,
                        to_us: now(),
                    });
                    // It may have held the file's lock: then nobody else could write meanwhile.
                    if stage.kind == Kind::Sqlite {
                        self.no_store(None, from);
                    }
                }
                What::Killed(at) => group.begin(at)?,
                What::Peers(at) => self.reach(&group.nodes[at], from)?,
                What::Store(at) => self.connect(&group.nodes[at], from)?,
                What::Both(at) => {
                    self.reach(&group.nodes[at], from)?;
                    self.connect(&group.nodes[at], from)?;
                }
                What::Still(still) => {
                    stage.resume(still)?;
                    self.no_store(None, from);
                }
                What::Dead(at) => {
                    block_in_place(|| stage.revive(at))?;
                    self.no_store(None, from);
                }
                What::File(holding) => {
                    holding.abort();
                    let _ = holding.await;
                    self.no_store(None, from);
                }
            }
        }
        Ok(())
    }

    /// Other nodes reach a node again.
    fn reach(&self, node: &Node, from_us: Micros) -> Result<()> {
        node.peers.pass();
        self.notes.fact(Fact::Unreachable {
            node: node.id()?,
            from_us,
            to_us: now() + RECONNECT_US,
        });
        Ok(())
    }

    /// A node reaches the store again.
    fn connect(&self, node: &Node, from_us: Micros) -> Result<()> {
        node.store.iter().for_each(FaultProxy::pass);
        self.no_store(Some(node.id()?), from_us);
        Ok(())
    }

    /// Heals everything.
    pub(super) async fn heal_all(&mut self, group: &mut Group, stage: &mut Stage) -> Result<()> {
        self.heal(group, stage, Micros::MAX).await
    }

    /// A node, or all of them, could not rely on the store.
    fn no_store(&self, node: Option<NodeId>, from_us: Micros) {
        self.notes.fact(Fact::NoStore {
            node,
            from_us,
            to_us: now() + RECONNECT_US,
        });
    }
}
