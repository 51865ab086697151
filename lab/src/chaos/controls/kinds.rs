//! The controls by name: the store of each control, its faults, and the belief of its users.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::{nemesis::FaultKind, stores::StoreKind};

/// One control: a lock of another library, or a recipe that people write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Control {
    /// Redis: SET NX PX, and DEL at the end.
    SetNxDel,
    /// Redis: SET NX PX, and DEL if the value is still the holder's own.
    SetNxCompare,
    /// Redis: a lease that a timer renews, in the manner of Redisson.
    Watchdog,
    /// Three Redis servers: plain Redlock.
    Redlock,
    /// Three Redis servers: the crate rslock.
    Rslock,
    /// MariaDB: GET_LOCK on a connection that is kept.
    GetLock,
    /// Postgres: an advisory lock on a connection that is kept.
    AdvisoryLock,
    /// ZooKeeper: the lock recipe of the crate zookeeper-client.
    ZookeeperClient,
}

impl Control {
    /// Returns the name of the control on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Returns the kind of store of the control and its twin. A control that needs a majority uses
    /// several servers of this kind.
    pub(crate) const fn store(self) -> StoreKind {
        match self {
            Self::SetNxDel | Self::SetNxCompare | Self::Watchdog | Self::Redlock | Self::Rslock => {
                StoreKind::Redis
            }
            Self::GetLock => StoreKind::Mariadb,
            Self::AdvisoryLock => StoreKind::Postgres,
            Self::ZookeeperClient => StoreKind::Zookeeper,
        }
    }

    /// Returns the shortest and longest TTL in milliseconds, for the control and its twin. A short
    /// lease expires more often in a run.
    pub(super) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::SetNxDel | Self::SetNxCompare | Self::Watchdog => (500, 1_500),
            _ => self.store().ttl_ms(),
        }
    }

    /// Returns the faults that show the weakness of the control.
    pub(crate) const fn faults(self) -> &'static [FaultKind] {
        match self {
            // The process of the holder is stopped for longer than the TTL.
            Self::SetNxDel => &[FaultKind::StopWorker, FaultKind::StopAtGrant],
            // The answer arrives late, so the user counts the TTL from too late a moment.
            Self::SetNxCompare => &[FaultKind::SlowConnections, FaultKind::StopReplies],
            // No renewal reaches the server, and the user gets no notice of the failed renewals.
            Self::Watchdog => &[
                FaultKind::StopWorker,
                FaultKind::StopAtGrant,
                FaultKind::BlackHole,
            ],
            // One server is down when the lock is granted, and another server later loses its data.
            Self::Redlock => &[FaultKind::KillServer, FaultKind::WipeServer],
            // A failed extension deletes the key, so the lock is lost.
            Self::Rslock => &[FaultKind::EndConnections, FaultKind::LoseAnswer],
            // The connection ends, and the user does not notice.
            Self::GetLock | Self::AdvisoryLock => {
                &[FaultKind::EndConnections, FaultKind::CutConnections]
            }
            // The ensemble ends the session before the client knows.
            Self::ZookeeperClient => &[
                FaultKind::StopWorker,
                FaultKind::BlackHole,
                FaultKind::StopRequests,
            ],
        }
    }

    /// Tells whether the control can be judged under a fault that its store can have.
    pub(super) const fn can_be_judged_under(self, fault: FaultKind) -> bool {
        // `forget-all` empties all servers at once. `wipe-server` empties one of several servers.
        !matches!(
            (self, fault),
            (Self::Redlock | Self::Rslock, FaultKind::ForgetAll)
        )
    }

    /// Describes the belief of the users, and the case in which that belief is wrong.
    pub(crate) const fn about(self) -> &'static str {
        match self {
            Self::SetNxDel => {
                "`SET key value NX PX ttl`, believed for the TTL from its answer, and `DEL` at the \
                 end. A holder that comes late deletes the key of the next one."
            }
            Self::SetNxCompare => {
                "As `set-nx-del`, but the key is deleted only if it has the holder's value. The \
                 TTL runs from the moment the server sets the key, which is before the answer is \
                 there."
            }
            Self::Watchdog => {
                "A lease that a timer renews at each third, in the manner of Redisson, believed \
                 until it is unlocked. A holder that is stopped or cut off loses the lease and is \
                 not told."
            }
            Self::Redlock => {
                "Redlock as Redis' documentation describes it, over three servers, believed for \
                 the validity that it computes. Servers are away now and then, and the first one, \
                 but no other, restarts without its data: it has forgotten its vote, and votes \
                 again."
            }
            Self::Rslock => {
                "The crate `rslock` 0.10 over three servers, as its readme shows it, believed for \
                 its documented `validity_time`. An extension that has no answer deletes the key \
                 on all servers, while the lock from before is still believed."
            }
            Self::GetLock => {
                "`GET_LOCK` of MariaDB on a connection that is kept, believed until it is \
                 released. The server frees the lock when the connection ends."
            }
            Self::AdvisoryLock => {
                "`pg_try_advisory_lock` on a connection that is kept, believed until it is \
                 released. The server frees the lock when the connection ends."
            }
            Self::ZookeeperClient => {
                "The lock recipe of the crate `zookeeper-client` 0.11, believed until it is \
                 dropped or the client says that its session is over. The ensemble ends a session \
                 before a client that is cut off or stopped can know."
            }
        }
    }
}
