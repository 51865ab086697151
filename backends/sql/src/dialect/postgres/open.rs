//! The public type of this dialect: a Postgres database as a store of locks and records.

use std::sync::Arc;

use distlock_backend_kit::Migrated;
use distlock_core::{Clock, DistLock, Records, Result};

use super::dialect::PostgresDialect;
use crate::{
    config::ServerConfig,
    migrate::migrated,
    opened_store::{OpenedStore, during},
};

/// A Postgres database.
///
/// The locks and the records share a few connections ([`ServerConfig::pool_size`]). The connections
/// close when both the locks and the records are closed or dropped. The caller's own transactions
/// never use these connections.
#[derive(Clone, Debug)]
pub struct Postgres(OpenedStore<PostgresDialect>);

impl Postgres {
    /// Connects. Creates absent tables, unless [`ServerConfig::migrate`] is false. Never changes
    /// tables that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong option, for a database that does not exist, and for
    /// tables that are absent or of another form; the error names the command that helps.
    /// [`ErrorKind::AccessDenied`] when the server refuses the user or the client's TLS
    /// certificate. [`ErrorKind::Unavailable`] when the server does not answer or is a standby, and
    /// when the options demand TLS but the server offers no TLS or has a certificate that is not
    /// trusted.
    ///
    /// # Cancel safety
    ///
    /// Safe: created tables stay, and the next call uses them.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    pub async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        OpenedStore::new(PostgresDialect::open(config, clock).await).map(Self)
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

    /// The number of statements that this store and all handles reopened from it have sent so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// The number of statements that were sent again. Either the server stopped the first send for
    /// another transaction (deadlock, serialization failure), or the connection was lost.
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
    /// The same errors as [`Postgres::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: all tables are created in one transaction.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Migrated> {
        let created = PostgresDialect::migrate(config, clock).await;
        during::<PostgresDialect, _>("migrate", created).map(migrated)
    }
}
