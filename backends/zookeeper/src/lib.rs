//! ZooKeeper ensembles behind the distlock contract: a queue of ephemeral nodes per lock, in the form other recipes know.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use std::sync::Arc;
//!
//! use distlock_core::{Locker, SystemClock};
//! use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};
//!
//! let config = ZooKeeperConfig::new(["zk1:2181", "zk2:2181", "zk3:2181"]);
//! let store = ZooKeeper::open(config, Arc::new(SystemClock)).await?;
//! let locker = Locker::new(store.lock());
//! let guard = locker.lock("order:42").acquire().await?;
//! # Ok(()) }
//! ```
//!
//! # Map
//!
//! | module | what it does |
//! |---|---|
//! | `config` | options, checked once |
//! | `ensemble`, `connect` | the backend's own threads, and one session after the other on them |
//! | `pump` | what drives the connection: one of these threads, helped by whoever sends a request |
//! | `session`, `proof` | one session: reconnects, its end; how it is proven to live, and until when |
//! | `names`, `sequence` | where things are in the tree; the order of a queue, also across the counter's wrap-around |
//! | `recipe` | the queue's steps: line up, look who is ahead, leave; what is done when an answer was lost |
//! | `nodes`, `warden` | what became of each node: held, left, removed by others, run out |
//! | `lock`, `wait`, `look`, `holder` | [`DistLock`]: operations, waiting, looking |
//! | `records` | [`Records`]: versioned values |
//! | `doctor`, `limits` | health |
//! | [`fence`] | the other half, for data of the caller's: changes that only the latest holder can make |
//!
//! # Guarantees
//! Those who wait are served in the order in which they lined up, across processes. The fencing
//! token is the transaction that created the holder's node (`czxid`): it rises over all locks of
//! the ensemble, and is the same for everybody who looks. A holder trusts its lock for as long as a
//! chain of three requests proves that the leader, with a quorum, keeps the session, by its own
//! clock: nine tenths of the session timeout after the first of them was sent, and at most two
//! thirds after the last one, a committed write. The source of `proof.rs` says why fewer are not
//! enough. So an answer of a leader that was deposed and does not know it proves nothing. What is
//! read of records and of others' locks follows a committed write as well.
//!
//! The first request is a tick of the servers older than the second. In each eighth of what the
//! session timeout leaves beside a tick, one request of the session passes the leader: a write that
//! was needed anyway, or else a `sync`. After a standstill of the process the next grant waits for
//! a tick. A session of two ticks, the shortest that servers allow unless told otherwise, leaves
//! its locks leases of about a quarter of it.
//!
//! A session that nobody answers for is given up after 55 % of its timeout, and nothing more is
//! sent for it: the next holder comes at most 5/3 of the session timeout and one tick after the
//! last answer, also where requests still arrive.
//!
//! A removed node is noticed at once, by its holder and by those who wait.
//!
//! Inside a process the next one is let through as soon as its predecessor lets go, while the ensemble still deletes the
//! predecessor's node: both belong to one session, and everybody else stays behind both. Until that deletion has arrived,
//! others who look see the predecessor.
//!
//! The servers stamp what is written and do not tell what time it is now, so records have no ages, and
//! [`KvLock`](distlock_core::KvLock) cannot stand on them.
//!
//! A session is shared by all locks and records of one [`ZooKeeper`] and all its handles, and each [`ZooKeeper::open`]
//! begins another one: a process has one session when it opens one store and shares it. When it is lost, all locks are; the
//! next request is served by a new one.
//!
//! How long a session lasts is what the ensemble granted when it began. A reconnect tells the driver of another limit, and
//! the driver tells nobody: `maxSessionTimeout` must not be lowered below what sessions have. Health tries what each server
//! lets a session be.
//!
//! # Features
//! `tls`: TLS by rustls. `sasl`: SASL with DIGEST-MD5. None by default; ZooKeeper's own digest authentication is always there.

mod config;
mod doctor;
mod error;
pub mod fence;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod names;
mod nodes;
mod queue;
mod records;
mod session;
mod store;
mod sync;
mod wait;

use std::sync::Arc;

use distlock_core::{Clock, DistLock, Records, Result};

pub use config::{AclPolicy, Credentials, Mechanism, Secret, TlsFiles, ZooKeeperConfig};

/// An open ZooKeeper store: its locks and its records, on one session.
#[derive(Debug)]
pub struct ZooKeeper {
    lock: Arc<lock::Locks>,
    records: Arc<records::RecordStore>,
}

impl ZooKeeper {
    /// Opens a session.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for an option out of its range;
    /// [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) when no server has given a session within the
    /// `connect_timeout`, with how each of them answered: unreachable, no quorum, read-only;
    /// [`ErrorKind::AccessDenied`](distlock_core::ErrorKind::AccessDenied) when the credentials are refused or may not
    /// write under the root.
    ///
    /// # Cancel safety
    /// Safe: a session that was being opened is closed.
    pub async fn open(config: ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let handle = store::StoreHandle::open(config, clock).await?;
        let (session, _) = handle.session().await?;
        let records = Arc::new(records::RecordStore::new(handle.another()));
        let lock = Arc::new(lock::Locks::new(handle, &session));
        Ok(Self { lock, records })
    }

    /// Its locks.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// Its records.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }
}
