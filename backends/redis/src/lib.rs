//! Redis and Valkey behind the distlock contract: fencing tokens, wake-ups by push, batched
//! requests.
//!
//! ```no_run
//! # async fn example() -> distlock_core::Result<()> {
//! use std::sync::Arc;
//!
//! use distlock_core::{Locker, SystemClock};
//! use distlock_redis::{Redis, RedisConfig};
//!
//! let config = RedisConfig::from_url("redis://127.0.0.1:6379")?;
//! let store = Redis::open(config, Arc::new(SystemClock)).await?;
//! let locker = Locker::new(store.lock());
//! let guard = locker.lock("order:42").acquire().await?;
//! # Ok(()) }
//! ```
//!
//! # Map
//!
//! | module | purpose |
//! |---|---|
//! | `config` | options, checked once |
//! | `format` | keys, and the values under them |
//! | `scripts` | the atomic steps, in Lua |
//! | `operations` | operations, their requests and replies, and the knowledge gained from them |
//! | `store` | one handle: its batches, and whether it is closed |
//! | `lock`, `wait` | [`DistLock`]: operations, contenders, and the server's pushes |
//! | `records` | [`Records`]: versioned values |
//! | `connection` | connections to single servers, and the epoch of each server |
//! | `sentinels`, `cluster` | which server is the primary; which server serves a slot |
//! | `routing` | finding the primary, sending requests, following redirects |
//! | [`fence`] | the checking half of fencing, for the caller's own data in Redis |
//! | `doctor`, `error` | health, and the meaning of each refusal |
//!
//! # Guarantees
//! - One script grants a lock and writes its token, `max(counter + 1, server time in
//!   microseconds)`. Tokens rise while the counter is kept. If the counter was lost, they rise as
//!   long as the server's clock is not behind by more than the time since the last grant.
//! - Only its owner renews, releases or hands over a lock; comparison and change are one step.
//! - Replication is asynchronous: a failover may lose the latest locks. The old holder learns of
//!   that at its next renewal ([`HistoryChanged`](distlock_core::LossReason::HistoryChanged)). A
//!   fenced resource refuses the old holder before that, if the servers' clocks agree: if the new
//!   primary's clock is behind the old one's, its tokens may be lower, and the new holder is
//!   refused.
//! - With Sentinel, a primary is used only while a majority of the sentinels names it, and no lease
//!   lasts longer than its TTL from the first question of that round: after a failover, two leases
//!   of one lock may be valid for one TTL at most.
//! - Leases run on the server's clock. If that clock is stepped forward by more than a lease, the
//!   next holder is let in while the previous one still believes in its lease, and only the token
//!   tells them apart.
//! - Waiting costs almost no requests: the server pushes changes of a lock. In addition, each
//!   process asks once in ten seconds.
//!
//! # Required rights
//! A user with only these rights can do everything except read the settings that `doctor` checks:
//!
//! ```text
#![doc = include_str!("acl.txt")]
//! ```
//!
//! Valkey 9 and Redis 8.4 can compare a value and delete it without a script: add `+delifeq` or
//! `+delex` for that.
//!
//! # Features
//! `tls`: TLS through rustls with the aws-lc provider.

mod cluster;
mod config;
mod connection;
mod doctor;
mod driver;
mod error;
pub mod fence;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod operations;
mod records;
mod routing;
mod scripts;
mod sentinels;
mod store;
mod wait;

use std::sync::Arc;

use distlock_core::{Clock, DistLock, Records, Result};

use crate::{error::BACKEND, lock::RedisLock, records::RedisRecords, store::Store};

pub use config::{Endpoint, RedisConfig, Tls, Topology};
pub use distlock_backend_kit::Secret;
pub use driver::RedisDriver;

/// An opened Redis store.
///
/// Its locks and its records share one connection to each primary. The connection closes when both
/// are closed or dropped.
#[derive(Clone, Debug)]
pub struct Redis {
    store: Arc<Store>,
    lock: Arc<RedisLock>,
    records: Arc<RedisRecords>,
}

impl Redis {
    /// Connects to every primary. A cluster opens while one of its primaries serves; locks of the
    /// others are refused as [`Unavailable`](distlock_core::ErrorKind::Unavailable) until their
    /// primaries come back.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for options, files or a database
    /// that cannot be right, and for a URL that names the wrong kind of server;
    /// [`AccessDenied`](distlock_core::ErrorKind::AccessDenied) for credentials that are missing,
    /// refused or not sufficient; [`Unavailable`](distlock_core::ErrorKind::Unavailable) when the
    /// primary, or every primary of a cluster, cannot be reached within the connect time-out, or
    /// cannot serve now.
    ///
    /// # Cancel safety
    /// Safe: connections that were made are closed.
    pub async fn open(config: RedisConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        // Boxed, because the driver's futures for connecting are large and would enlarge the
        // caller's future.
        let store = Box::pin(Store::open(config, clock, 2))
            .await
            .map_err(|error| error.on(BACKEND).during("open"))?;
        let capabilities = lock::capabilities(store.survives_restart());
        Ok(Self {
            lock: Arc::new(RedisLock::new(Arc::clone(&store), capabilities)),
            records: Arc::new(RedisRecords::new(Arc::clone(&store))),
            store,
        })
    }

    /// The locks of the store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// The records of the store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }

    /// The number of commands that this store has sent to its servers, with all its handles.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.store.access().router.connector.command_count().sent()
    }
}
