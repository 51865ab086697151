//! Locks that belong to a database connection: `GET_LOCK` of MariaDB and MySQL, and the advisory
//! locks of Postgres.
//!
//! The connection comes from a pool and is kept while the lock is held. The users believe in the
//! lock until they release it: their work uses other connections, so nothing checks this one.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use sqlx::{
    MySql, Pool, Postgres, mysql::MySqlPoolOptions, pool::PoolConnection, postgres::PgPoolOptions,
};

use super::kinds::{ControlHold, ControlLock};

/// Time-out of the pool for a new connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// `GET_LOCK` of MariaDB.
pub(super) struct GetLock(Pool<MySql>);

impl GetLock {
    pub(super) fn new(url: &str) -> Result<Self> {
        let options = MySqlPoolOptions::new().acquire_timeout(CONNECT_TIMEOUT);
        Ok(Self(options.connect_lazy(url)?))
    }
}

#[async_trait]
impl ControlLock for GetLock {
    async fn attempt(
        &self,
        name: &str,
        _ttl: Duration,
        wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let mut connection = self.0.acquire().await.ok()?;
        let asking = sqlx::query_scalar("SELECT CAST(GET_LOCK(?, ?) AS SIGNED)");
        let asking = asking.bind(name).bind(wait.as_secs_f64());
        let granted: Option<i64> = asking.fetch_one(&mut *connection).await.ok()?;
        if granted != Some(1) {
            return None;
        }
        let name = name.to_owned();
        Some(Box::new(MySqlHeld { connection, name }))
    }
}

/// A granted lock, with the connection that holds it.
struct MySqlHeld {
    connection: PoolConnection<MySql>,
    name: String,
}

#[async_trait]
impl ControlHold for MySqlHeld {
    fn is_believed(&self) -> bool {
        true
    }

    async fn release(mut self: Box<Self>) {
        let releasing = sqlx::query("SELECT RELEASE_LOCK(?)").bind(&self.name);
        // If the connection has ended, the server has freed the lock.
        let _ = releasing.execute(&mut *self.connection).await;
    }
}

/// `pg_try_advisory_lock` of Postgres.
pub(super) struct AdvisoryLock(Pool<Postgres>);

impl AdvisoryLock {
    pub(super) fn new(url: &str) -> Result<Self> {
        let options = PgPoolOptions::new().acquire_timeout(CONNECT_TIMEOUT);
        Ok(Self(options.connect_lazy(url)?))
    }
}

#[async_trait]
impl ControlLock for AdvisoryLock {
    async fn attempt(
        &self,
        name: &str,
        _ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let mut connection = self.0.acquire().await.ok()?;
        let asking = sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtext($1))").bind(name);
        let granted: bool = asking.fetch_one(&mut *connection).await.ok()?;
        if !granted {
            return None;
        }
        let name = name.to_owned();
        Some(Box::new(PostgresHeld { connection, name }))
    }
}

/// A granted lock, with the connection that holds it.
struct PostgresHeld {
    connection: PoolConnection<Postgres>,
    name: String,
}

#[async_trait]
impl ControlHold for PostgresHeld {
    fn is_believed(&self) -> bool {
        true
    }

    async fn release(mut self: Box<Self>) {
        let releasing = sqlx::query("SELECT pg_advisory_unlock(hashtext($1))").bind(&self.name);
        // If the connection has ended, the server has freed the lock.
        let _ = releasing.execute(&mut *self.connection).await;
    }
}
