//! The controls by name: the store of each control, its faults, and the belief of its users.
//!
//! The traits that a control implements, so that the lab's workers can use it.
//!
//! Opens a control for one process, and starts the servers of a run.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{hash_mod, redlock, rslock, session, set_nx, watchdog, zookeeper};
use crate::chaos::{
    nemesis::FaultKind,
    stores::{RunningStore, StoreKind},
};

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
    /// Five Redis servers: plain Redlock.
    Redlock,
    /// Five Redis servers: the crate rslock.
    Rslock,
    /// Redis servers of which each has the names with one remainder of a hash.
    HashMod,
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
    /// the servers of a quorum.
    pub(crate) const fn store(self) -> StoreKind {
        match self {
            Self::SetNxDel | Self::SetNxCompare | Self::Watchdog => StoreKind::Redis,
            Self::Redlock | Self::Rslock => StoreKind::Quorum,
            Self::HashMod => StoreKind::Ring,
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
            // Servers are away when the lock is granted, and another server later loses its data.
            Self::Redlock => &[
                FaultKind::LoseMinority,
                FaultKind::WipeServer,
                FaultKind::ForgetAll,
            ],
            // As above. And a failed extension deletes the key, so the lock is lost.
            Self::Rslock => &[
                FaultKind::LoseMinority,
                FaultKind::WipeServer,
                FaultKind::ForgetAll,
                FaultKind::EndConnections,
                FaultKind::LoseAnswer,
            ],
            // A name gets another server, which does not know its holder.
            Self::HashMod => &[FaultKind::ChangeMembers],
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
                "Redlock as Redis' documentation describes it, over five servers, believed for \
                 the validity that it computes. Two servers at a time are away now and then. A \
                 server that restarts without its data, or deletes them, has forgotten its vote, \
                 and votes again at once."
            }
            Self::Rslock => {
                "The crate `rslock` 0.10 over five servers, as its readme shows it, believed for \
                 its documented `validity_time`. A server that has forgotten its vote votes again \
                 at once. An extension that has no answer deletes the key on all servers, while \
                 the lock from before is still believed."
            }
            Self::HashMod => {
                "Names are spread over Redis servers by `hash(name) % n`. Each is locked at its \
                 server by `SET key value NX PX ttl`, believed for the TTL from its sending, and \
                 deleted if it still has the holder's value. Every attempt reads the list of the \
                 servers first. After a change of the list most names belong to a server that \
                 does not know their holders."
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

/// The lock of another library in one process.
#[async_trait]
pub(in crate::chaos) trait ControlLock: Send + Sync {
    /// Asks for the lock once. A lock that can wait by itself waits for `wait`. `None` means that
    /// the lock was not granted or that the request failed; users ask again in both cases.
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Option<Box<dyn ControlHold>>;
}

/// A lock that was granted.
#[async_trait]
pub(in crate::chaos) trait ControlHold: Send + Sync {
    /// Tells whether the documentation of the control lets its user believe that the lock is still
    /// held. After the first `false`, every later answer is `false` as well.
    fn is_believed(&self) -> bool;

    /// Asks for more time, if the documentation of the control shows how.
    async fn extend(&mut self, _ttl: Duration) {}

    /// Releases the lock. Users release at the end of their work even if they no longer believe
    /// that they hold the lock.
    async fn release(self: Box<Self>);
}

/// Converts a time to whole milliseconds, the unit of the servers.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Starts the servers of a control. `settable_clock` means that the run may put a clock forward.
/// The function blocks.
pub(super) fn start_store(
    control: Control,
    folder: &Path,
    settable_clock: bool,
) -> Result<RunningStore> {
    match control {
        Control::Redlock | Control::Rslock => {
            RunningStore::start_independent_servers(settable_clock)
        }
        _ => RunningStore::start(control.store(), folder, settable_clock),
    }
}

/// Opens the lock for one process. The lock connects when it is used.
pub(in crate::chaos) fn open(control: Control, url: &str) -> Result<Arc<dyn ControlLock>> {
    let urls = || url.split(',').collect::<Vec<_>>();
    Ok(match control {
        Control::SetNxDel => Arc::new(set_nx::SetNx::new(url, false)?),
        Control::SetNxCompare => Arc::new(set_nx::SetNx::new(url, true)?),
        Control::Watchdog => Arc::new(watchdog::Watchdog::new(url)?),
        Control::Redlock => Arc::new(redlock::Redlock::new(&urls())?),
        Control::Rslock => Arc::new(rslock::Rslock::new(&urls())),
        Control::HashMod => Arc::new(hash_mod::HashMod::new(url)?),
        Control::GetLock => Arc::new(session::GetLock::new(url)?),
        Control::AdvisoryLock => Arc::new(session::AdvisoryLock::new(url)?),
        Control::ZookeeperClient => Arc::new(zookeeper::ZooKeeperRecipe::new(url)?),
    })
}
