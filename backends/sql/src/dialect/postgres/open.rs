//! The public type of this dialect: a Postgres database as a store of locks and records.

use std::sync::Arc;

use distlock_core::{Clock, DistLock, Records, Result};

use super::dialect::PostgresDialect;
use crate::{
    config::ServerConfig,
    migrate::TablesStatus,
    opened_store::{OpenedStore, during},
};

/// A Postgres database.
///
/// Its locks and its records share a few connections ([`ServerConfig::pool_size`]), which close
/// when both are closed or dropped. None of them is ever the caller's.
#[derive(Clone, Debug)]
pub struct Postgres(OpenedStore<PostgresDialect>);

impl Postgres {
    /// Connects. Creates the tables where they are absent, unless [`ServerConfig::migrate`] is
    /// false. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an option, database or table that cannot be right, with the
    /// command that helps; [`ErrorKind::AccessDenied`] when the server refuses the user or our TLS
    /// certificate; [`ErrorKind::Unavailable`] when the server does not answer, offers no TLS where
    /// TLS was asked for, offers no TLS that can be trusted, or is a standby.
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

    /// The number of statements that this store has sent so far, with all its handles.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// How many times statements were sent again. The server broke them off in favour of other
    /// transactions (deadlock, serialization failure), or the connection was lost.
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

    /// Brings the tables of a database up to date, and creates them where they are absent. The
    /// answer holds the version before and the applied migrations.
    ///
    /// # Errors
    ///
    /// As [`Postgres::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: all migrations are applied in one transaction.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<PostgresDialect, _>("migrate", PostgresDialect::migrate(config, clock).await)
    }

    /// Reads the state of a database's tables, and the migrations that [`Postgres::migrate`] would
    /// apply. Changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Postgres::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: it only reads.
    pub async fn status(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<PostgresDialect, _>("migrate", PostgresDialect::status(config, clock).await)
    }
}
