//! The kinds of faults, and the stores to which each applies.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::stores::StoreKind;

/// One way to break a store or its users.
///
/// Slow disks and full disks are missing, because they need rights over the machine (a device or a
/// file system for the run). A limit on file sizes cannot replace a full disk: Redis ends at that
/// limit.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// SIGSTOP of a worker, and SIGCONT later
    StopWorker,
    /// SIGSTOP of a worker between a grant and its first use
    StopAtGrant,
    /// SIGKILL of a worker, and the start of another one
    KillWorker,
    /// An administrator force-releases a lock
    ForceRelease,
    /// Another program keeps the database file locked
    LockFile,
    /// A worker's connections are reset, and new ones are refused
    CutConnections,
    /// The worker's ends of its connections are reset; the server's ends stay open and silent
    ForsakeWorker,
    /// Requests and replies of a worker arrive late
    SlowConnections,
    /// No request of a worker arrives
    StopRequests,
    /// No reply to a worker arrives
    StopReplies,
    /// Connections stay open, and every byte is lost
    BlackHole,
    /// One request happens, and its answer is lost
    LoseAnswer,
    /// SIGSTOP of a server
    StopServer,
    /// SIGKILL of a server, and a restart on the data that it kept
    KillServer,
    /// SIGKILL of a server, and a restart at once without its data: its history is lost
    WipeServer,
    /// An administrator ends every connection
    EndConnections,
    /// The server forgets loaded scripts
    ForgetScripts,
    /// A server deletes all data: its history is lost
    ForgetAll,
    /// Requests and replies of a worker arrive a few bytes at a time
    Trickle,
    /// One direction of a worker's connections is closed, and the other one stays open
    HalfClose,
    /// A worker's connections are reset, and each new one reaches the server twice
    DuplicateConnect,
    /// An administrator deletes a lock's key, row or node
    DeleteByHand,
    /// An administrator ends a session of a worker
    ExpireSession,
    /// The servers may use no more memory than they use now
    FillMemory,
    /// A server's clock jumps forward, and stays ahead; the clock of a quorum's member is repaired
    StepClock,
    /// Another server becomes the primary by command, or the primary is killed
    Failover,
    /// The primary is cut off from its replica and its sentinels, and still answers its clients
    DeposePrimary,
    /// SIGKILL of the leader, and a restart
    KillLeader,
    /// The leader loses its followers without noticing it, and still answers its clients
    DeposeLeader,
    /// A minority of a quorum is away: each server killed, stopped, silent or slow
    LoseMinority,
    /// For a moment a majority of a quorum is away: each server killed, stopped, silent or slow
    LoseMajority,
    /// A lock server is stopped in order, and starts again: no lock is lost
    RestartServer,
    /// SIGKILL of a lock server, and a restart at once
    CrashServer,
    /// A lock server is killed, and gets an older copy of its state, which it refuses
    RollBackState,
    /// An administrator deletes the record that lists the holders of a shared lock
    DeleteHolders,
    /// An administrator adds a member to a ring, or removes one
    ChangeMembers,
    /// The same, while a worker is stopped or does not hear of it: it keeps its old view
    KeepOldView,
}

impl FaultKind {
    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Tells whether this kind of fault takes one server of a quorum away, or makes it forget.
    pub(super) const fn costs_one_server(self) -> bool {
        matches!(
            self,
            Self::StopServer
                | Self::KillServer
                | Self::WipeServer
                | Self::ForgetAll
                | Self::StepClock
        )
    }

    /// Tells whether this kind of fault applies to this kind of store.
    pub(crate) const fn applies_to(self, store: StoreKind) -> bool {
        match self {
            Self::StopWorker | Self::StopAtGrant | Self::KillWorker => true,
            // No other process can reach the store.
            Self::ForceRelease | Self::DeleteHolders => !matches!(store, StoreKind::Memory),
            // A lock that is deleted on all members of a quorum or of a ring takes along the token
            // that one of them was raised to, as no loss of a member does.
            Self::DeleteByHand => !matches!(
                store,
                StoreKind::Memory
                    | StoreKind::Quorum
                    | StoreKind::Ring
                    | StoreKind::LockServer
                    | StoreKind::Agents
            ),
            Self::ChangeMembers | Self::KeepOldView => matches!(store, StoreKind::Ring),
            Self::RestartServer | Self::CrashServer => {
                matches!(store, StoreKind::LockServer | StoreKind::Agents)
            }
            Self::RollBackState => matches!(store, StoreKind::LockServer),
            Self::LoseMinority | Self::LoseMajority => matches!(store, StoreKind::Quorum),
            Self::LockFile => matches!(store, StoreKind::Sqlite),
            Self::EndConnections => !matches!(
                store,
                StoreKind::Memory
                    | StoreKind::Sqlite
                    | StoreKind::Zookeeper
                    | StoreKind::LockServer
                    | StoreKind::Agents
            ),
            Self::ForgetScripts | Self::FillMemory => matches!(
                store,
                StoreKind::Redis
                    | StoreKind::RedisSentinel
                    | StoreKind::RedisCluster
                    | StoreKind::Quorum
                    | StoreKind::Ring
            ),
            // A member of a ring that forgets its locks has lost them, as a single server has.
            Self::ForgetAll => matches!(
                store,
                StoreKind::Redis
                    | StoreKind::RedisSentinel
                    | StoreKind::RedisCluster
                    | StoreKind::Quorum
            ),
            Self::WipeServer => matches!(store, StoreKind::Redis | StoreKind::Quorum),
            Self::StopServer | Self::KillServer => {
                !matches!(store, StoreKind::Memory | StoreKind::Sqlite)
            }
            Self::ExpireSession | Self::KillLeader | Self::DeposeLeader => {
                matches!(store, StoreKind::Zookeeper)
            }
            // The other stores of a campaign run with the machine's clock.
            Self::StepClock => matches!(
                store,
                StoreKind::Mariadb | StoreKind::Mysql | StoreKind::Postgres | StoreKind::Quorum
            ),
            Self::Failover => store.announces_addresses(),
            Self::DeposePrimary => matches!(store, StoreKind::RedisSentinel),
            // These faults need a proxy between a worker and the servers.
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
                !matches!(store, StoreKind::Memory | StoreKind::Sqlite)
                    && !store.announces_addresses()
            }
        }
    }
}
