//! The way in: a Postgres database as a store of locks and records.

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
/// Its locks and its records share a few connections ([`ServerConfig::pool_size`]), which close when both are closed or
/// dropped. None of them is ever the caller's.
#[derive(Clone, Debug)]
pub struct Postgres(OpenedStore<PostgresDialect>);

impl Postgres {
    /// Connects. Creates the tables where they are absent, unless [`ServerConfig::migrate`] is false. Never changes tables
    /// that are there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an option, database or table that cannot be right, with the command that helps;
    /// [`ErrorKind::AccessDenied`] when the server refuses the user, or us as a client of TLS;
    /// [`ErrorKind::Unavailable`] when it does not answer, offers no TLS where TLS was asked for, or none that can be
    /// trusted, or is a standby.
    ///
    /// # Cancel safety
    /// Safe: what was created stays, and is what the next call needs.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    pub async fn open(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        OpenedStore::new(PostgresDialect::open(config, clock).await).map(Self)
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

    /// How many statements this store has sent so far, with all its handles.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.0.statements()
    }

    /// How many times statements were sent again: because the server broke them off for the sake of other transactions
    /// (deadlock, serialization failure), or because the connection had gone.
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

    /// Brings the tables of a database up to date, creating them where they are absent. The answer says from which version it
    /// went and what was applied.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    ///
    /// # Cancel safety
    /// Safe: all migrations are applied in one transaction.
    pub async fn migrate(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<PostgresDialect, _>("migrate", PostgresDialect::migrate(config, clock).await)
    }

    /// How the tables of a database stand, and what [`Postgres::migrate`] would apply. Changes nothing.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn status(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<TablesStatus> {
        during::<PostgresDialect, _>("migrate", PostgresDialect::status(config, clock).await)
    }
}
