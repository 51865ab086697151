//! The kinds of faults of gateways, and the stores to which each applies.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::stores::StoreKind;

/// One kind of fault in gateways.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeFaultKind {
    /// SIGSTOP of a node, and SIGCONT later
    StopNode,
    /// SIGKILL of a node, and a restart under the same name
    KillNode,
    /// Connections of other nodes to a node are refused
    CutPeers,
    /// Requests of other nodes to a node are lost
    BlackHolePeers,
    /// Requests of other nodes to a node arrive late
    SlowPeers,
    /// A node answers another node, and the answer is lost
    LosePeerAnswer,
    /// A node's connections to the store are reset, and new ones are refused
    CutStore,
    /// No byte between a node and the store arrives
    BlackHoleStore,
    /// A node's requests to the store, and the answers, arrive late
    SlowStore,
    /// One request of a node happens, and its answer is lost
    LoseStoreAnswer,
    /// A node reaches neither the store nor other nodes, only its clients
    Isolate,
    /// SIGSTOP of a server of the store
    StopServer,
    /// SIGKILL of a server of the store, and a restart on the data that it kept
    KillServer,
    /// Another program keeps the database file locked
    LockFile,
}

impl NodeFaultKind {
    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Tells whether this kind of fault applies to nodes over this kind of store.
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
