//! The kinds of faults, and the stores that can have each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::stores::StoreKind;

/// One way to break a store or its users.
///
/// There is no slow and no full disk among them: both take rights over the machine (a device or a
/// file system of its own). A limit on the size of files ends Redis instead of filling its disk.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// SIGSTOP of a worker, and SIGCONT later.
    StopWorker,
    /// SIGSTOP of a worker between a grant and its first use.
    StopAtGrant,
    /// SIGKILL of a worker; another one takes its place.
    KillWorker,
    /// A lock is force-released by hand.
    ForceRelease,
    /// Another program keeps the database file locked.
    LockFile,
    /// A worker's connections are reset, and new ones at once.
    #[value(name = "cut-lines")]
    #[serde(rename = "cut-lines")]
    CutConnections,
    /// The worker's ends of its connections are reset; the server's ends stay open and silent.
    ForsakeWorker,
    /// Requests and replies of a worker arrive late.
    #[value(name = "slow-lines")]
    #[serde(rename = "slow-lines")]
    SlowConnections,
    /// Nothing that a worker sends arrives.
    StopRequests,
    /// Nothing that a worker is sent arrives.
    StopReplies,
    /// Connections stand, and every byte is lost.
    BlackHole,
    /// One request happens and its answer is lost.
    LoseAnswer,
    /// SIGSTOP of a server.
    StopServer,
    /// SIGKILL of a server, and a restart on the data it kept.
    KillServer,
    /// SIGKILL of a server, and a restart at once without its data: its history is lost.
    WipeServer,
    /// An administrator ends every connection.
    EndConnections,
    /// The server forgets loaded scripts.
    ForgetScripts,
    /// The server forgets everything: its history is lost.
    ForgetAll,
    /// Requests and replies of a worker arrive a few bytes at a time.
    Trickle,
    /// One direction of a worker's connections is closed, and the other one goes on.
    HalfClose,
    /// A worker's connections are reset, and each new one reaches the server twice.
    DuplicateConnect,
    /// A lock's key, row or node is deleted by hand.
    DeleteByHand,
    /// A session of a worker is ended by hand.
    ExpireSession,
    /// The servers may use no more memory than they do.
    FillMemory,
    /// The server's clock is put forward, and stays so.
    StepClock,
    /// Another server is made the primary, or the primary is killed.
    Failover,
    /// The primary is cut off from its replica and its sentinels, and still answers its clients.
    DeposePrimary,
    /// SIGKILL of the server that leads, and a restart.
    KillLeader,
    /// The leader's followers leave it, and it does not notice and still answers its clients.
    DeposeLeader,
}

impl FaultKind {
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Whether a store of this kind can be broken so.
    pub(crate) const fn applies_to(self, store: StoreKind) -> bool {
        match self {
            Self::StopWorker | Self::StopAtGrant | Self::KillWorker => true,
            // Nobody outside of the process can reach it.
            Self::ForceRelease | Self::DeleteByHand => !matches!(store, StoreKind::Memory),
            Self::LockFile => matches!(store, StoreKind::Sqlite),
            Self::EndConnections => !matches!(
                store,
                StoreKind::Memory | StoreKind::Sqlite | StoreKind::Zookeeper
            ),
            Self::ForgetScripts | Self::ForgetAll | Self::FillMemory => matches!(
                store,
                StoreKind::Redis | StoreKind::RedisSentinel | StoreKind::RedisCluster
            ),
            Self::WipeServer => matches!(store, StoreKind::Redis),
            Self::StopServer | Self::KillServer => {
                !matches!(store, StoreKind::Memory | StoreKind::Sqlite)
            }
            Self::ExpireSession | Self::KillLeader | Self::DeposeLeader => {
                matches!(store, StoreKind::Zookeeper)
            }
            // Redis hangs with the library that does it, see the harness.
            Self::StepClock => matches!(
                store,
                StoreKind::Mariadb | StoreKind::Mysql | StoreKind::Postgres
            ),
            Self::Failover => store.tells_addresses(),
            Self::DeposePrimary => matches!(store, StoreKind::RedisSentinel),
            // Proxies stand between a worker and the servers for these.
            Self::CutConnections
            | Self::ForsakeWorker
            | Self::SlowConnections
            | Self::StopRequests
            | Self::StopReplies
            | Self::BlackHole
            | Self::LoseAnswer
            | Self::Trickle
            | Self::HalfClose
            | Self::DuplicateConnect => {
                !matches!(store, StoreKind::Memory | StoreKind::Sqlite) && !store.tells_addresses()
            }
        }
    }
}
