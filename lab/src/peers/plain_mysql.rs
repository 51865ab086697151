//! The plain ways on MySQL and MariaDB.

use std::time::Duration;

use sqlx::{Executor as _, MySql, MySqlPool, mysql::MySqlPoolOptions, pool::PoolConnection};

use crate::peers::plain::PlainDatabase;

/// The server's code (SQLSTATE) for a transaction that the server rolled back.
const DEADLOCK: &str = "40001";

impl PlainDatabase for MySql {
    const CREATE: &'static str = "CREATE TABLE IF NOT EXISTS plain_lock \
         (lock_name VARBINARY(255) PRIMARY KEY, holder_id BIGINT NOT NULL)";
    const TAKE: &'static str = "INSERT INTO plain_lock (lock_name, holder_id) VALUES (?, ?)";
    const FREE: &'static str = "DELETE FROM plain_lock WHERE lock_name = ? AND holder_id = ?";
    const LOCK: &'static str = "SELECT GET_LOCK(?, 60)";
    const UNLOCK: &'static str = "SELECT RELEASE_LOCK(?)";

    /// Opens a pool with the isolation level READ COMMITTED. At the default level, callers of
    /// different names deadlock.
    async fn pool(url: &str, connections: u32) -> Result<MySqlPool, sqlx::Error> {
        MySqlPoolOptions::new()
            .max_connections(connections)
            // distlock does not test a connection before each use either. The test would be one
            // more request for each statement.
            .test_before_acquire(false)
            .acquire_timeout(Duration::from_secs(60))
            .after_connect(|connection, _| {
                Box::pin(async move {
                    let level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
                    connection.execute(level).await.map(drop)
                })
            })
            .connect(url)
            .await
    }

    async fn run(pool: &MySqlPool, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(statement).execute(pool).await.map(drop)
    }

    async fn change(
        pool: &MySqlPool,
        statement: &'static str,
        name: &str,
        holder: i64,
    ) -> Result<u64, sqlx::Error> {
        let query = sqlx::query(statement).bind(name.to_owned()).bind(holder);
        query.execute(pool).await.map(|done| done.rows_affected())
    }

    async fn call_named_lock(
        connection: &mut PoolConnection<Self>,
        statement: &'static str,
        name: &str,
    ) -> Result<(), sqlx::Error> {
        let query = sqlx::query_scalar::<_, Option<i64>>(statement).bind(name.to_owned());
        match query.fetch_one(&mut **connection).await? {
            Some(1) => Ok(()),
            _ => Err(sqlx::Error::RowNotFound),
        }
    }

    fn was_rolled_back(error: &sqlx::Error) -> bool {
        let error = error.as_database_error();
        error.is_some_and(|error| error.code().as_deref() == Some(DEADLOCK))
    }
}
