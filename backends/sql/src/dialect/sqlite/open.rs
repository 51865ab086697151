//! The public type of this dialect: a SQLite file as a store of locks and records.

use std::sync::Arc;

use distlock_backend_kit::Migrated;
use distlock_core::{Clock, DistLock, Records, Result};

use super::{dialect::SqliteDialect, options::SqliteConfig};
use crate::{
    migrate::migrated,
    opened_store::{OpenedStore, during},
};

/// An opened SQLite file.
///
/// The locks and the records share three connections: for batches, for hints and queue entries, and
/// for reads. The connections close when both the locks and the records are closed or dropped. A
/// health check opens its own connection. Any number of processes of one host may open the same
/// file.
#[derive(Clone, Debug)]
pub struct Sqlite(OpenedStore<SqliteDialect>);

impl Sqlite {
    /// Opens the file. Creates an absent file (readable only by its owner) and absent tables,
    /// unless [`SqliteConfig::migrate`] is false. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong option, path or file: a folder, no database, on a
    /// network file system, or with tables of another version. After this error, nothing was
    /// changed. [`ErrorKind::AccessDenied`] for a file or folder that this process must not read
    /// and write. [`ErrorKind::Unavailable`] when other processes keep the file busy.
    ///
    /// # Cancel safety
    ///
    /// Safe: a created file and created tables stay, and the next call uses them.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
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

    /// The number of statements that this store and all handles reopened from it have sent so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// Removes the rows that have been idle for longer than [`SqliteConfig::reap_after`], and
    /// returns the number of removed rows. A background task does the same four times in each
    /// `reap_after`.
    ///
    /// # Errors
    ///
    /// Failures of the store. Rows that were removed before a failure stay removed.
    ///
    /// # Cancel safety
    ///
    /// Safe: each page is removed as a whole or not at all.
    pub async fn reap(&self) -> Result<u64> {
        self.0.reap().await
    }

    /// Creates an absent file and absent tables. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// The same errors as [`Sqlite::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: all tables are created in one transaction.
    pub async fn migrate(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Migrated> {
        let created = SqliteDialect::migrate(config, clock).await;
        during::<SqliteDialect, _>("migrate", created).map(migrated)
    }
}
