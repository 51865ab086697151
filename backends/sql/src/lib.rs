//! Locks and records in SQL tables: each lock name has one row of `distributed_lock`, and a
//! conditional statement changes the rows of a batch.
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> distlock_core::Result<()> {
//! use std::sync::Arc;
//!
//! use distlock_core::{Locker, SystemClock};
//! use distlock_sql::{Sqlite, SqliteConfig};
//!
//! let config = SqliteConfig::new("/var/lib/app/locks.db");
//! let store = Sqlite::open(config, Arc::new(SystemClock)).await?;
//! let locker = Locker::new(store.lock());
//! let guard = locker.lock("order:42").acquire().await?;
//! # Ok(()) }
//! ```
//!
//! # Map
//!
//! | module | purpose |
//! |---|---|
//! | `config` | options that several dialects share, checked once |
//! | `network` | connects to one of the servers of a URL, at one of its addresses |
//! | `sql_store`, `store` | a store and its handles: batches, tasks, close |
//! | `driver` | the driver of database servers |
//! | `resend` | operations that are sent twice because an answer never came |
//! | `lock` | [`DistLock`](distlock_core::DistLock): locks |
//! | `contender`, `wait`, `wait_tasks` | contenders, and one poller per process for all of them |
//! | `records` | [`Records`](distlock_core::Records): versioned values |
//! | `counters`, `singleton_task` | requests for metrics, and background tasks that are replaced |
//! | `reaper` | removes rows that nobody has used for `reap_after` |
//! | `doctor` | health |
//! | `tables` | the version and the form of the tables |
//! | `fence` | checks fencing tokens in the caller's own transaction |
//! | `statement_error` | the meaning of a driver's error |
//! | `dialect` | one folder for each database: statements, tables, errors, doctor |
//!
//! # Guarantees
//!
//! A lock is granted by one conditional statement, so that at most one owner holds a name. Its
//! token rises with every grant, also after release, expiry and reaping.
//!
//! SQLite: the end of a lease is a time of the host's boot-time clock, together with the boot's id.
//! So a stepped wall clock or a reboot cannot grant a lock twice. Commits are synced to disk.
//!
//! Postgres: the end of a lease is a time of the server's clock. Sessions are set to READ
//! COMMITTED. The server answers a grant only after the commit is on the disk. The server answers a
//! release earlier; the commit of the next grant writes the release to the disk as well. A row that
//! another transaction keeps locked delays only the callers that need this row. No setting of
//! Postgres stops the clock of the leases (`clock_timestamp()`) or changes its time zone. If an
//! administrator steps that clock forward by more than the length of a lease, the store grants the
//! lock to the next holder while the previous holder still counts on its lease. Then only the
//! fencing token tells the two holders apart. A pooler between client and server must be in session
//! mode; a pooler in transaction mode is refused.
//!
//! MySQL (8.0.19 or later) and MariaDB (10.6 or later): the same as Postgres, with one exception.
//! Only an administrator can set when a commit is written to the disk; `distlock doctor` shows the
//! setting. MySQL accepts a password that is not in its cache only over TLS or a Unix socket: a
//! plain connection would need RSA, and this crate contains no RSA.
//!
//! # Features
//!
//! `sqlite`: the SQLite dialect, with SQLite itself built in. `postgres`, `mysql`: the dialects of
//! these servers. `tls`: TLS to the servers, through rustls. No feature is on by default.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres")),
    allow(
        dead_code,
        unused_imports,
        reason = "each dialect uses some of what they share"
    )
)]

mod config;
mod contender;
mod counters;
mod dialect;
mod doctor;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod driver;
pub mod fence;
mod lock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod network;
mod reaper;
mod records;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod resend;
mod rows;
mod singleton_task;
mod sql_store;
mod statement_error;
mod store;
mod tables;
mod wait;
mod wait_tasks;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use config::{Product, ServerConfig, ServerHost, SslMode};
#[cfg(feature = "mysql")]
pub use dialect::mysql::MySql;
#[cfg(feature = "postgres")]
pub use dialect::postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use dialect::sqlite::{Sqlite, SqliteConfig, SqliteDriver};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use distlock_backend_kit::Secret;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use driver::ServerDriver;
pub use sql_store::SqlStore;
