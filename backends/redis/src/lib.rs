//! Redis and Valkey behind the distlock contract: fencing tokens, wake-ups by the server's pushes,
//! and batched requests.
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
//! | `sentinels`, `cluster` | the choice of the primary; the server of each slot |
//! | `routing` | finding the primary, sending requests, following redirects |
//! | [`own_commands`] | connections for a caller's own commands |
//! | [`fence`] | the check of fencing tokens, for the caller's own data in Redis |
//! | `doctor`, `error` | health, and the meaning of each refusal |
//!
//! # Guarantees
//! - One script grants a lock and writes its token, `max(counter + 1, server time in
//!   microseconds)`. Tokens rise while the counter is kept. If the counter was lost, they rise as
//!   long as the server's clock is not behind by more than the time since the last grant.
//! - Only the owner of a lock renews, releases or hands it over; the check of the owner and the
//!   change are one step.
//! - Replication is asynchronous, so a failover may lose the latest locks. The old holder learns of
//!   the loss at its next renewal ([`HistoryChanged`](distlock_core::LossReason::HistoryChanged)).
//!   A fenced resource refuses the old holder before that, if the servers' clocks agree. If the
//!   clock of the new primary is behind that of the old one, tokens of the new primary may be
//!   lower. Then the resource refuses the new holder.
//! - With Sentinel, a primary is used only while a majority of the sentinels names it. No lease
//!   lasts longer than its TTL, counted from the first question of that round. So after a failover,
//!   two leases of one lock are valid together for at most one TTL.
//! - Leases run on the server's clock. If that clock is stepped forward by more than a lease, the
//!   next holder gets the lock while the previous one still trusts its lease. Then only the token
//!   tells the two apart.
//! - Waiting costs almost no requests, because the server pushes changes of a lock. In addition,
//!   each process asks once in ten seconds.
//!
//! # Required rights
//! A user with only these rights can do everything except read the settings that `doctor` checks:
//!
//! ```text
#![doc = include_str!("acl.txt")]
//! ```
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
pub mod own_commands;
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
/// The locks and the records share one connection to each primary. A connection closes when both
/// are closed or dropped.
#[derive(Clone, Debug)]
pub struct Redis {
    lock: Arc<RedisLock>,
    records: Arc<RedisRecords>,
}

impl Redis {
    /// Connects to every primary. A cluster opens if at least one of its primaries serves. Locks of
    /// the others are refused as [`Unavailable`](distlock_core::ErrorKind::Unavailable) until their
    /// primaries serve again.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a wrong option, file or
    /// database, and for a URL that names the wrong kind of server;
    /// [`AccessDenied`](distlock_core::ErrorKind::AccessDenied) for credentials that are missing,
    /// refused or not sufficient; [`Unavailable`](distlock_core::ErrorKind::Unavailable) when the
    /// primary, or every primary of a cluster, cannot be reached within the connect time-out or
    /// cannot serve now.
    ///
    /// # Cancel safety
    /// Safe: connections that were already made are closed.
    pub async fn open(config: RedisConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        // The future is boxed, because the driver's futures for connecting are large and would
        // enlarge the caller's future.
        let store = Box::pin(Store::open(config, clock, 2))
            .await
            .map_err(|error| error.on(BACKEND).during("open"))?;
        let capabilities = lock::capabilities(store.survives_restart());
        Ok(Self {
            lock: Arc::new(RedisLock::new(Arc::clone(&store), capabilities)),
            records: Arc::new(RedisRecords::new(store)),
        })
    }

    /// Returns the locks of the store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// Returns the records of the store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }
}
