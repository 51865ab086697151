//! SQL tables behind the distlock contract: a `distributed_lock` row for each name, one conditional
//! statement for each batch.
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
//! | `opened_store`, `store_handle`, `store` | a store and its handles: batches, tasks, closing |
//! | `operation` | the operations of a batch, their answers, and their undo |
//! | `lock` | [`DistLock`](distlock_core::DistLock): locks |
//! | `wait` | contenders, and one poller per process for all of them |
//! | `records` | [`Records`](distlock_core::Records): versioned values |
//! | `reaper` | removes rows that nobody has used for long |
//! | `doctor`, `migrate` | health, and the versions of the tables |
//! | `schema_check` | compares the required tables with the database's catalogue |
//! | `fence` | the checking half of fencing, for a row in the caller's own transaction |
//! | `statement_error`, `driver_panics` | the meaning of a driver's error |
//! | `dialect` | one folder for each database: statements, tables, errors, doctor |
//!
//! # Guarantees
//!
//! A lock is granted by one conditional statement, so that at most one owner holds a name. Its
//! token rises with every grant, also after release, expiry and reaping.
//!
//! SQLite: leases live on the boot-time clock of the host together with the boot's id, so that
//! neither a stepped wall clock nor a reboot can grant a lock twice. Commits are synced to disk.
//!
//! Postgres: leases live on the server's clock. Sessions are set to READ COMMITTED, and to commits
//! that are on the disk before they are answered. Releases are not waited for: the next grant is
//! waited for, and it carries them to the disk too. A row that somebody else keeps locked delays
//! only the callers that want this row. No setting of Postgres stops the clock of the leases
//! (`clock_timestamp()`) or moves it into another time zone. An administrator who steps it forward
//! by more than a lease lets the next holder in while the previous one still believes in its lease;
//! then only the token tells the two apart. A pooler between client and server must be in session
//! mode; a pooler in transaction mode is refused.
//!
//! MySQL (8.0.19 or later) and MariaDB (10.6 or later): the same, except that only an administrator
//! can set how commits reach the disk: `distlock doctor` shows the setting. MySQL takes a password
//! that it has not seen lately over TLS or a Unix socket only, since the exchange for plain
//! connections needs RSA, which is not built in.
//!
//! # Features
//!
//! `sqlite`: the SQLite dialect, with SQLite itself built in. `postgres`, `mysql`: the servers'
//! dialects. `tls`: TLS to the servers, through rustls. None by default.
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
pub use config::{Product, ServerConfig, SslMode};
#[cfg(feature = "mysql")]
pub use dialect::mysql::{MySql, MySqlDriver};
#[cfg(feature = "postgres")]
pub use dialect::postgres::{Postgres, PostgresDriver};
#[cfg(feature = "sqlite")]
pub use dialect::sqlite::{Sqlite, SqliteConfig, SqliteDriver};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use distlock_backend_kit::Secret;
pub use migrate::{Migration, TablesStatus};
