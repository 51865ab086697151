//! SQL tables behind the distlock contract: a `distributed_lock` row per name, one conditional statement per batch.
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> distlock_core::Result<()> {
//! use std::sync::Arc;
//!
//! use distlock_core::{Locker, SystemClock};
//! use distlock_sql::{Sqlite, SqliteConfig};
//!
//! let store = Sqlite::open(SqliteConfig::new("/var/lib/app/locks.db"), Arc::new(SystemClock)).await?;
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
//! | `store` | gathers operations into batches, owns the helpers |
//! | `lock`, `wait` | [`DistLock`](distlock_core::DistLock): operations, and one poller per process for all who wait |
//! | `records` | [`Records`](distlock_core::Records): versioned values |
//! | `reaper` | removes rows nobody has used for long |
//! | `doctor`, `migrate` | health, and the tables' versions |
//! | `shape` | what each table must be, compared with what the catalogue says |
//! | `fence` | the checking half of fencing, for a row in the caller's own transaction |
//! | `dialect` | what differs between databases: statements, connections, error codes |
//!
//! # Guarantees
//! A lock is granted by one conditional statement, so that at most one owner holds a name; its token rises with every grant,
//! also after release, expiry and reaping. SQLite: leases live on the boot-time clock of the host together with the boot's
//! id, so that neither a stepped wall clock nor a reboot can grant a lock twice; commits are synced to disk.
//! Postgres: leases live on the server's clock, sessions are set to READ COMMITTED and to commits that are on the disk before
//! they are answered (releases are not waited for: the next grant is, and takes them along), and a row that somebody else keeps
//! locked holds up nobody but those who want it. No setting of Postgres
//! stops the clock that they live on (`clock_timestamp()`), or moves it into another time zone. Who steps it forward by more
//! than a lease lets the next holder in while the one before still believes, and only the token tells them apart. A pooler in between must be in
//! session mode; one in transaction mode is refused.
//! MySQL (8.0.19 or later) and MariaDB (10.6 or later): the same, except that only an administrator can set how commits reach
//! the disk: `distlock doctor` says how it stands. MySQL takes a password that it has not seen lately over TLS or a Unix
//! socket only, since the exchange for plain connections needs RSA, which is not built in.
//!
//! # Features
//! `sqlite`: the SQLite dialect, with SQLite itself built in. `postgres`, `mysql`: the servers' dialects. `tls`: TLS to the
//! servers, through rustls. None by default.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres")),
    allow(
        dead_code,
        unused_imports,
        reason = "each dialect uses some of what they share"
    )
)]

mod config;
mod counters;
mod dialect;
mod doctor;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod driver_panics;
pub mod fence;
mod lock;
mod migrate;
mod opened_store;
mod operation;
mod reaper;
mod records;
mod schema_check;
mod singleton_task;
mod statement_error;
mod store;
mod store_handle;
mod wait;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use config::{Product, Secret, ServerConfig, SslMode};
#[cfg(feature = "mysql")]
pub use dialect::mysql::MySql;
#[cfg(feature = "postgres")]
pub use dialect::postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use dialect::sqlite::{Sqlite, SqliteConfig};
pub use migrate::{Migration, TablesStatus};
