//! The public type of this dialect: a MySQL or MariaDB database as a store of locks and records.

use std::sync::Arc;

use distlock_backend_kit::Migrated;
use distlock_core::{Clock, DistLock, Records, Result};

use super::dialect::MySqlDialect;
use crate::{
    config::ServerConfig,
    migrate::migrated,
    opened_store::{OpenedStore, during},
};

/// An opened MySQL or MariaDB database.
///
/// The locks and the records share a few connections ([`ServerConfig::pool_size`]). The connections
/// close when both the locks and the records are closed or dropped. The caller's own transactions
/// never use these connections.
#[derive(Clone, Debug)]
pub struct MySql(OpenedStore<MySqlDialect>);

impl MySql {
    /// Connects. Creates absent tables, unless [`ServerConfig::migrate`] is false. Never changes
    /// tables that exist.
    ///
    /// [`ServerConfig::product`] is ignored: the server must be MySQL or MariaDB.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong option, for a database that does not exist, and for
    /// tables that are absent or of another version; the error names the command that creates the
    /// tables. [`ErrorKind::AccessDenied`] when the server refuses the user or the
    /// client's TLS certificate. [`ErrorKind::Unsupported`] for a server that is too old.
    /// [`ErrorKind::Unavailable`] when the server cannot be reached within
    /// [`ServerConfig::connect_timeout`], and when the options demand TLS but the server offers no
    /// TLS or has a certificate that is not trusted.
    ///
    /// # Cancel safety
    ///
    /// Safe: created tables stay. If only some of them were created, [`MySql::migrate`] creates the
    /// rest.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    /// [`ErrorKind::Unsupported`]: distlock_core::ErrorKind::Unsupported
    pub async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        OpenedStore::new(MySqlDialect::open(config, clock).await).map(Self)
    }

    /// The locks of this database.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        self.0.lock()
    }

    /// The records of this database.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        self.0.records()
    }

    /// The number of requests that this store and all handles reopened from it have sent so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// The number of statements that were sent again. Either the server stopped the first send for
    /// another transaction (a deadlock, or a row that another transaction had locked for too long),
    /// or the connection was lost.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.0.retries()
    }

    /// Removes the rows that have been idle for longer than [`ServerConfig::reap_after`], and
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

    /// Creates absent tables. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// The same errors as [`MySql::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call completes the migration.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Migrated> {
        let created = MySqlDialect::migrate(config, clock).await;
        during::<MySqlDialect, _>("migrate", created).map(migrated)
    }
}
