//! The public type of this dialect: a MySQL or MariaDB database as a store of locks and records.

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
/// Its locks and its records share a few connections ([`ServerConfig::pool_size`]), which close
/// when both are closed or dropped. The connections serve nothing else: a transaction of the
/// caller's is never touched.
#[derive(Clone, Debug)]
pub struct MySql(OpenedStore<MySqlDialect>);

impl MySql {
    /// Connects. Creates the tables where they are absent, unless [`ServerConfig::migrate`] is
    /// false. Never changes tables that exist.
    ///
    /// The server is taken for MySQL or MariaDB, even if [`ServerConfig::product`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong option, for a database that does not exist, and for
    /// tables that are absent or of another version, with the command that creates or upgrades
    /// them; [`ErrorKind::AccessDenied`] when the server refuses the user or our TLS certificate;
    /// [`ErrorKind::Unsupported`] for a server that is too old; [`ErrorKind::Unavailable`] when the
    /// server cannot be reached within [`ServerConfig::connect_timeout`], or offers no TLS where
    /// TLS was asked for, or no TLS that can be trusted.
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

    /// The number of round trips that this process has made to these tables so far, with all its
    /// handles.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// How many times statements were sent again. The server broke them off in favour of other
    /// transactions (deadlock, a row that another transaction had locked for too long), or the
    /// connection was lost.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.0.retries()
    }

    /// Removes rows that are idle for longer than [`ServerConfig::reap_after`] now, and returns
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

    /// Brings the tables up to date, and creates them where they are absent. The answer holds the
    /// version before and the applied migrations.
    ///
    /// # Errors
    ///
    /// As [`MySql::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it can be repeated.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<MySqlDialect, _>("migrate", MySqlDialect::migrate(config, clock).await)
    }

    /// Reads the state of the tables, and the migrations that [`MySql::migrate`] would apply.
    /// Changes nothing.
    ///
    /// # Errors
    ///
    /// As [`MySql::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn status(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<MySqlDialect, _>("migrate", MySqlDialect::status(config, clock).await)
    }
}
