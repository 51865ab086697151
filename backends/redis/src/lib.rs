//! Redis and Valkey behind the distlock contract: fenced, pushed, batched.
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
//! | module | what it does |
//! |---|---|
//! | `config` | options, checked once |
//! | `names`, `value`, `release_cache` | from names to keys, what stands under them, and what stands there of ours |
//! | `scripts/` | the steps that must happen at once, in Lua |
//! | `op`, `request`, `store` | operations, how they become a request, the batches they travel in |
//! | `lock`, `wait` | [`DistLock`]: operations, and the server's wake-ups |
//! | `records` | [`Records`]: versioned values |
//! | `connection`, `node`, `topology`, `sentinels`, `cluster`, `exchange` | one server, sentinels, a cluster's slots: finding the primary, asking it, asking again |
//! | `server_epoch`, `history` | which history a server is in, and what a lock was lost to when the server forgot it |
//! | [`fence`] | the other half, for data of the caller's: changes that only the latest holder can make |
//! | `doctor`, `error` | health, and what each refusal means |
//!
//! # Guarantees
//! - A lock is granted by one script that also writes its token, `max(counter + 1, server time in microseconds)`. Tokens
//!   rise while the counter is kept, and when it was lost as long as the server's clock is not behind by more than the time
//!   since the last grant.
//! - Nobody but its owner renews, releases or hands over a lock; the comparison and the change are one step.
//! - Replication is asynchronous: a failover may forget the latest locks. The old holder is told at its next renewal
//!   ([`HistoryChanged`](distlock_core::LossReason::HistoryChanged)), and a fenced resource refuses it before that, if the
//!   clocks of the servers agree: behind the old one's, the new primary's tokens may be lower, and the new holder is refused.
//! - With Sentinel a primary is used only while a majority of the sentinels names it, and no lease
//!   is believed for longer than its TTL from the first question that found one: after a failover
//!   two may be valid for one TTL at the most.
//! - Leases live on the server's clock: when it is stepped forward by more than a lease, the next holder is let in while the
//!   one before still believes, and only the token tells them apart.
//! - Waiting sends next to nothing: the server tells when a lock changes. Each process asks once in ten seconds all the same.
//!
//! # What the server must permit
//! A user with no more than this can do everything except read the settings that `doctor` looks at:
//!
//! ```text
#![doc = include_str!("acl.txt")]
//! ```
//!
//! Valkey 9 and Redis 8.4 can compare a value and delete it without a script: add `+delifeq` or `+delex` there.
//!
//! # Features
//! `tls`: TLS through rustls with the aws-lc provider.

mod cluster;
mod config;
mod connection;
mod doctor;
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

pub use config::{Endpoint, RedisConfig, Secret, Tls, Topology};

/// An opened Redis store.
///
/// Its locks and its records share one connection to each primary, which closes when both are closed or dropped.
#[derive(Clone, Debug)]
pub struct Redis {
    store: Arc<Store>,
    lock: Arc<RedisLock>,
    records: Arc<RedisRecords>,
}

impl Redis {
    /// Connects to every primary. A cluster opens while one of its primaries serves; locks of those
    /// that cannot be reached are refused as [`Unavailable`](distlock_core::ErrorKind::Unavailable)
    /// until they come back.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for options, files or a database that cannot be right, and
    /// for a URL that names the wrong kind of server; [`AccessDenied`](distlock_core::ErrorKind::AccessDenied) for
    /// credentials that are missing, refused or permit too little;
    /// [`Unavailable`](distlock_core::ErrorKind::Unavailable) when the primary, or each of a
    /// cluster, cannot be reached within the connect timeout, or cannot serve now.
    ///
    /// # Cancel safety
    /// Safe: connections that were made are closed.
    pub async fn open(config: RedisConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        // The driver's ways to connect are large; whoever opens a store need not carry them.
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

    /// How many commands this store has sent to its servers so far, with all its handles.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.store.access().router.connector.command_count().sent()
    }
}
