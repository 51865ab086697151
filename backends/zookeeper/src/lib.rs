//! ZooKeeper ensembles behind the distlock contract: a queue of ephemeral nodes per lock, in the
//! form that other recipes know.
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
//! Imports go only downwards in this table.
//!
//! | module | content |
//! |---|---|
//! | `lock`, `wait` | [`DistLock`]: the operations, and a contender that waits |
//! | `records` | [`Records`]: versioned values |
//! | `store` | an open store: its threads, one session after the other, the handles of its users |
//! | `doctor` | health: the servers, their limits, the settings that weaken a promise |
//! | `queue` | requests on one lock's queue: enter, list, grant, delete, undo, inspect |
//! | `session` | one session: connection, keep-alive, the proof that it is alive, its I/O thread |
//! | `nodes` | state, data and order of contenders' nodes, without any request |
//! | `names`, `config`, `error`, `sync` | paths; options; errors; mutexes |
//! | [`fence`] | changes of the caller's own data that only the latest holder can make |
//!
//! # Guarantees
//! Waiters are served in the order in which they entered the queue, across processes. The fencing
//! token is the transaction that created the holder's node (`czxid`). It rises over all locks of
//! the ensemble, and every client reads the same token for a node.
//!
//! A holder trusts its lock for as long as a chain of three requests proves that the leader, with a
//! quorum, keeps the session. By the holder's own clock, that is nine tenths of the session timeout
//! after the first request was sent, and at most two thirds after the last one, a committed write.
//! The source of `session/liveness.rs` says why fewer requests are not enough. So an answer of a
//! leader that was deposed and does not know it proves nothing. Reads of records and of others'
//! locks follow a committed write as well.
//!
//! The second request is sent a tick of the servers after the answer to the first. So one request
//! of the session passes the leader in each period: a write that was needed anyway, or else a
//! `sync`. A period is an eighth of the time that is left when a tick is taken from nine tenths of
//! the session timeout. After a standstill of the process the next grant waits for a tick. A
//! session of two ticks is the shortest that servers allow by default; its locks get leases of less
//! than a third of it.
//!
//! A session without answers is given up after 55 % of its timeout, and nothing more is sent for
//! it. So the next holder gets the lock at most 5/3 of the session timeout and one tick after the
//! last answer, even if requests still arrive at the servers.
//!
//! When another client removes a node, its holder and the contenders behind it are told at once.
//!
//! Inside a process, the next contender gets the lock as soon as its predecessor lets go, while the
//! ensemble still deletes the predecessor's node. Both nodes belong to one session, and all other
//! contenders stay behind both. Until that deletion has arrived, other clients see the predecessor
//! as the holder.
//!
//! The servers stamp writes and do not tell the present time. So records have no ages, and
//! a lock over records (`kv+URL`) cannot stand on them.
//!
//! All locks and records of one [`ZooKeeper`] and all its handles share one session, and each
//! [`ZooKeeper::open`] begins another one: a process has one session when it opens one store and
//! shares it. When the session is lost, all its locks are lost; the next request uses a new
//! session.
//!
//! This backend counts with the session timeout that the ensemble granted when the session began.
//! On a reconnect a server may grant a shorter one, and the client library does not report it. So
//! `maxSessionTimeout` must not be lowered below the timeouts of present sessions. Health measures
//! which session timeout each server grants.
//!
//! # Features
//! `tls`: TLS by rustls. `sasl`: SASL with DIGEST-MD5. Neither feature is on by default;
//! ZooKeeper's own digest authentication is always there.

mod config;
mod doctor;
mod driver;
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

pub use config::{AclPolicy, Credentials, Mechanism, TlsFiles, ZooKeeperConfig};
pub use distlock_backend_kit::Secret;
pub use driver::ZooKeeperDriver;

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
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for an option out of
    /// its range; [`ErrorKind::Unavailable`](distlock_core::ErrorKind::Unavailable) when no server
    /// has given a session within the `connect_timeout`, with the answer of each server:
    /// unreachable, no quorum, read-only;
    /// [`ErrorKind::AccessDenied`](distlock_core::ErrorKind::AccessDenied) when the credentials are
    /// refused or may not write under the root.
    ///
    /// # Cancel safety
    /// Safe: when the future is dropped, a session that is being opened is closed.
    pub async fn open(config: ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let handle = store::StoreHandle::open(config, clock).await?;
        let (session, _) = handle.session_and_deadline().await?;
        let records = Arc::new(records::RecordStore::new(handle.another_handle()));
        let lock = Arc::new(lock::Locks::new(handle, &session));
        Ok(Self { lock, records })
    }

    /// The locks of this store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// The records of this store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }
}
