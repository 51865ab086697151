//! Controls: locks that people write or install, on the same stores, under the same faults, with
//! the same workers, referee and checker.
//!
//! Each is the genuine recipe, and is judged by what its own users believe. None has a fencing
//! token, so promises about tokens do not apply to it. Each has a twin: distlock on the same kind
//! of store, with the same faults of the same seed.
//!
//! | file | what is in it |
//! |---|---|
//! | `lock` | the traits that a control implements |
//! | `set_nx`, `watchdog`, `redlock`, `rslock` | on Redis, by way of `redis_link` |
//! | `session` | `GET_LOCK`, and the advisory locks of Postgres |
//! | `zookeeper` | the recipe of the crate `zookeeper-client` |
//! | `run` | one run of a control, and of its twin |
//! | `command` | `chaos --controls` |
//! | `figures` | the figures of both |

mod command;
mod figures;
mod lock;
mod redis_link;
mod redlock;
mod rslock;
mod run;
mod session;
mod set_nx;
mod watchdog;
mod zookeeper;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{
    nemesis::Break,
    stores::{Kind, Stage},
};

pub(in crate::chaos) use command::run;
pub(in crate::chaos) use lock::{ControlHold, ControlLock};

/// One control.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Control {
    /// Redis: SET NX PX, and DEL at the end.
    SetNxDel,
    /// Redis: SET NX PX, and DEL if the value is still one's own.
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
    /// Its name on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// The store that its twin uses.
    pub(crate) const fn store(self) -> Kind {
        match self {
            Self::SetNxDel | Self::SetNxCompare | Self::Watchdog | Self::Redlock | Self::Rslock => {
                Kind::Redis
            }
            Self::GetLock => Kind::Mariadb,
            Self::AdvisoryLock => Kind::Postgres,
            Self::ZookeeperClient => Kind::Zookeeper,
        }
    }

    /// Shortest and longest TTL, in milliseconds, also of its twin. Short ones end more often.
    const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::SetNxDel | Self::SetNxCompare | Self::Watchdog => (500, 1_500),
            _ => self.store().ttl_ms(),
        }
    }

    /// The faults under which its weakness shows.
    pub(crate) const fn faults(self) -> &'static [Break] {
        match self {
            // The holder is away for longer than the TTL.
            Self::SetNxDel => &[Break::StopWorker, Break::StopAtGrant],
            // The answer comes late, so the TTL is counted too late.
            Self::SetNxCompare => &[Break::SlowLines, Break::StopReplies],
            // No renewal gets through, and nobody tells.
            Self::Watchdog => &[Break::StopWorker, Break::StopAtGrant, Break::BlackHole],
            // A server is away when the lock is granted, and another one forgets it later.
            Self::Redlock => &[Break::KillServer, Break::WipeServer],
            // An extension fails, and takes the lock away.
            Self::Rslock => &[Break::EndConnections, Break::LoseAnswer],
            // The connection ends, and its user does not notice.
            Self::GetLock | Self::AdvisoryLock => &[Break::EndConnections, Break::CutLines],
            // The session ends at the ensemble before it ends at the client.
            Self::ZookeeperClient => &[Break::StopWorker, Break::BlackHole, Break::StopRequests],
        }
    }

    /// Whether it can be judged under a fault that its store can have.
    const fn can_have(self, fault: Break) -> bool {
        // One of several servers forgets when it is wiped.
        !matches!(
            (self, fault),
            (Self::Redlock | Self::Rslock, Break::ForgetAll)
        )
    }

    /// What its users believe, and why that is wrong now and then.
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

    /// Starts its servers. Blocks.
    fn stage(self, folder: &Path) -> Result<Stage> {
        match self {
            Self::Redlock | Self::Rslock => Stage::independent_redis(SERVERS),
            _ => Stage::start(self.store(), folder, false),
        }
    }

    /// The lock for one process. It connects when it is used.
    pub(in crate::chaos) fn open(self, url: &str) -> Result<Arc<dyn ControlLock>> {
        let urls = || url.split(',').collect::<Vec<_>>();
        Ok(match self {
            Self::SetNxDel => Arc::new(set_nx::SetNx::new(url, false)?),
            Self::SetNxCompare => Arc::new(set_nx::SetNx::new(url, true)?),
            Self::Watchdog => Arc::new(watchdog::Watchdog::new(url)?),
            Self::Redlock => Arc::new(redlock::Redlock::new(&urls())?),
            Self::Rslock => Arc::new(rslock::Rslock::new(&urls())),
            Self::GetLock => Arc::new(session::GetLock::new(url)?),
            Self::AdvisoryLock => Arc::new(session::AdvisoryLock::new(url)?),
            Self::ZookeeperClient => Arc::new(zookeeper::Recipe::new(url)?),
        })
    }
}

/// The servers of a lock that needs a majority of them.
const SERVERS: usize = 3;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
