//! The kinds of faults of gateways, and the stores that can have each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::stores::StoreKind;

/// One way to break gateways.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeFaultKind {
    /// SIGSTOP of a node, and SIGCONT later.
    StopNode,
    /// SIGKILL of a node; it comes back under its name.
    KillNode,
    /// Other nodes cannot reach a node.
    CutPeers,
    /// What other nodes ask of a node gets lost on the way.
    BlackHolePeers,
    /// What other nodes ask of a node comes late.
    SlowPeers,
    /// A node answers another one, and the answer is lost.
    LosePeerAnswer,
    /// A node's connections to the store are reset, and new ones at once.
    CutStore,
    /// Nothing that a node and the store say to each other arrives.
    BlackHoleStore,
    /// A node's requests to the store, and its answers, come late.
    SlowStore,
    /// One request of a node happens, and its answer is lost.
    LoseStoreAnswer,
    /// A node is cut off from everything but its clients: the store and the other nodes.
    Isolate,
    /// SIGSTOP of a server of the store.
    StopServer,
    /// SIGKILL of a server of the store, and a restart on the data it kept.
    KillServer,
    /// Another program keeps the database file locked.
    LockFile,
}

impl NodeFaultKind {
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Whether nodes over a store of this kind can be broken so.
    pub(crate) const fn applies_to(self, store: StoreKind) -> bool {
        match self {
            Self::StopNode
            | Self::KillNode
            | Self::CutPeers
            | Self::BlackHolePeers
            | Self::SlowPeers
            | Self::LosePeerAnswer => true,
            Self::LockFile => matches!(store, StoreKind::Sqlite),
            _ => !matches!(store, StoreKind::Memory | StoreKind::Sqlite),
        }
    }
}
