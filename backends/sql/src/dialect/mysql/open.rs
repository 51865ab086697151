//! The way in: a MySQL or MariaDB database as a store of locks and records.

use std::sync::Arc;

use distlock_core::{Clock, DistLock, Records, Result};

use super::dialect::MySqlDialect;
use crate::{
    config::ServerConfig,
    migrate::TablesStatus,
    opened_store::{OpenedStore, during},
};

/// An opened MySQL or MariaDB database.
///
/// Its locks and its records share a few connections ([`ServerConfig::pool_size`]), which close when both are closed or
/// dropped. They are used for nothing else: a transaction of the caller's is never touched.
#[derive(Clone, Debug)]
pub struct MySql(OpenedStore<MySqlDialect>);

impl MySql {
    /// Connects. Creates the tables where they are absent, unless [`ServerConfig::migrate`] is false. Never changes tables
    /// that are there.
    ///
    /// Whatever [`ServerConfig::product`] says, the server is taken for MySQL or MariaDB.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an option that is wrong, a database that is not there, and tables that are absent or
    /// of another version, with the command that creates or upgrades them; [`ErrorKind::AccessDenied`] when the server
    /// refuses the user, or us as a client of TLS; [`ErrorKind::Unsupported`] for a server that is too old;
    /// [`ErrorKind::Unavailable`] when it cannot be reached within [`ServerConfig::connect_timeout`], or offers no TLS
    /// where TLS was asked for, or none that can be trusted.
    ///
    /// # Cancel safety
    /// Safe: what was created stays. Where that is a part of the tables, [`MySql::migrate`] makes the rest.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    /// [`ErrorKind::Unsupported`]: distlock_core::ErrorKind::Unsupported
    pub async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        OpenedStore::new(MySqlDialect::open(config, clock).await).map(Self)
    }

    /// Its locks.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        self.0.lock()
    }

    /// Its records.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        self.0.records()
    }

    /// How many round trips this process has made to these tables so far, with all its handles.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// How many times statements were sent again: because the server broke them off for the sake of other transactions
    /// (deadlock, a row that somebody else had locked for too long), or because the connection had gone.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.0.retries()
    }

    /// Removes rows that are idle for longer than [`ServerConfig::reap_after`] now, and says how many. This also happens by
    /// itself, a few times in that period.
    ///
    /// # Errors
    /// Failures of the store; what was removed until then stays removed.
    ///
    /// # Cancel safety
    /// Safe: each page is removed as a whole or not at all.
    pub async fn reap(&self) -> Result<u64> {
        self.0.reap().await
    }

    /// Brings the tables up to date, creating them where they are absent. The answer says from which version it went and what
    /// was applied.
    ///
    /// # Errors
    /// As [`MySql::open`].
    ///
    /// # Cancel safety
    /// Safe: it can be repeated.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<MySqlDialect, _>("migrate", MySqlDialect::migrate(config, clock).await)
    }

    /// How the tables stand, and what [`MySql::migrate`] would apply. Changes nothing.
    ///
    /// # Errors
    /// As [`MySql::open`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn status(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<MySqlDialect, _>("migrate", MySqlDialect::status(config, clock).await)
    }
}
