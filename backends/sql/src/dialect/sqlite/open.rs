//! The public type of this dialect: a SQLite file as a store of locks and records.

use std::sync::Arc;

use distlock_core::{Clock, DistLock, Records, Result};

use super::{dialect::SqliteDialect, options::SqliteConfig};
use crate::{
    migrate::TablesStatus,
    opened_store::{OpenedStore, during},
};

/// An opened SQLite file.
///
/// Its locks and its records share two connections, one that writes and one that reads, which close
/// when both are closed or dropped. A health check has a connection of its own. Any number of
/// processes of one host may open the same file.
#[derive(Clone, Debug)]
pub struct Sqlite(OpenedStore<SqliteDialect>);

impl Sqlite {
    /// Opens the file. Creates it, readable by its owner only, and its tables where they are
    /// absent, unless [`SqliteConfig::migrate`] is false. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an option, path or file that cannot be right (a folder, not
    /// a database, not writable, on a network file system, tables of another version); then nothing
    /// was changed. [`ErrorKind::Unavailable`] when other processes keep the file busy.
    ///
    /// # Cancel safety
    ///
    /// Safe: a created file and created tables stay, and the next call uses them.
    ///
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    pub async fn open(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        OpenedStore::new(SqliteDialect::open(config, clock).await).map(Self)
    }

    /// The locks of this file.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        self.0.lock()
    }

    /// The records of this file.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        self.0.records()
    }

    /// The number of statements that this process has sent to the file so far, with all its
    /// handles.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// Removes rows that are idle for longer than [`SqliteConfig::reap_after`] now, and returns
    /// their number. This also happens by itself, a few times in that period.
    ///
    /// # Errors
    ///
    /// Failures of the store; rows that were removed until then stay removed.
    ///
    /// # Cancel safety
    ///
    /// Safe: each page is removed as a whole or not at all.
    pub async fn reap(&self) -> Result<u64> {
        self.0.reap().await
    }

    /// Brings the tables of a file up to date, and creates the file and the tables where they are
    /// absent. The answer holds the version before and the applied migrations.
    ///
    /// # Errors
    ///
    /// As [`Sqlite::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: all migrations are applied in one transaction.
    pub async fn migrate(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<SqliteDialect, _>("migrate", SqliteDialect::migrate(config, clock).await)
    }

    /// Reads the state of a file's tables, and the migrations that [`Sqlite::migrate`] would apply.
    /// Changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Sqlite::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn status(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<SqliteDialect, _>("migrate", SqliteDialect::status(config, clock).await)
    }
}
