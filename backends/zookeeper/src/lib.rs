//! ZooKeeper ensembles behind the distlock contract: each lock has a queue of ephemeral nodes, with
//! node names that other lock recipes also understand.
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
//! | `doctor` | health: the servers, their limits, the settings that weaken a guarantee |
//! | `queue` | requests on one lock's queue: enter, list, grant, delete, undo, inspect |
//! | `session` | one session: connection, keep-alive, the proof that it is alive, its I/O thread |
//! | `nodes` | state, data and order of contenders' nodes, without any request to the ensemble |
//! | `names`, `config`, `error` | paths; options; errors |
//! | [`fence`] | changes of the caller's own data that only the latest holder can make |
//!
//! # Guarantees
//! Waiters are served in the order in which they entered the queue, across processes. The fencing
//! token is the transaction that created the holder's node (`czxid`). The token rises over all
//! locks of the ensemble, and every client reads the same token for a node.
//!
//! A holder trusts its lock for as long as a chain of three requests proves that the leader, with a
//! quorum, keeps the session. By the holder's own clock, that is until nine tenths of the session
//! timeout after the first request was sent, and at most until two thirds after the third one, a
//! committed write. The source of `session/liveness.rs` explains why fewer requests are not enough.
//! So an answer of a leader that was deposed and does not know it proves nothing. Reads of records
//! and of locks of other clients follow a committed write as well.
//!
//! The second request is sent one tick of the servers after the answer to the first. So one request
//! of the session must pass the leader in each period. A write serves for that if one is needed
//! anyway; otherwise the session sends a `sync`. A period is an eighth of this time: nine tenths of
//! the session timeout, less one tick. After a standstill of the process the next grant waits for a
//! tick. By default the servers grant no session shorter than two ticks; the locks of such a
//! session get leases of less than a third of its timeout.
//!
//! A session without answers is given up after 55 % of its timeout, and nothing more is sent on it.
//! So the next holder gets the lock at most 5/3 of the session timeout and one tick after the last
//! answer, even if the servers still receive requests of the session.
//!
//! When another client removes a node, the node's holder or waiter is notified at once, and so is
//! the contender behind.
//!
//! Inside a process, the next contender gets the lock as soon as the holder before it releases,
//! while the ensemble still deletes the earlier node. Both nodes belong to one session, and all
//! other contenders are behind both. Until the ensemble has deleted the earlier node, other clients
//! see the earlier holder.
//!
//! The servers put a time on each write and do not report the present time. So records have no
//! ages, and a lock over records (`kv+URL`) is refused.
//!
//! All locks and records of one [`ZooKeeper`] and all its handles share one session. Each
//! [`ZooKeeper::open`] begins another session, so a process should open one store and share it.
//! When the session is lost, all its locks are lost; the next request uses a new session.
//!
//! This backend calculates with the session timeout that the ensemble granted when the session
//! began. On a reconnect a server may grant a shorter timeout, and the client library does not
//! report that. So `maxSessionTimeout` must not be lowered below the timeouts of present sessions.
//! Health measures the session timeout that each server grants.
//!
//! # Features
//! `tls`: TLS by rustls. `sasl`: SASL with DIGEST-MD5. Neither feature is on by default.
//! ZooKeeper's own digest authentication is always available.

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
    /// has granted a session within the `connect_timeout` (the error names the state of each
    /// server, such as unreachable or without a quorum);
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

    /// Returns the locks of this store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// Returns the records of this store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }
}
