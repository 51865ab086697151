//! The plain ways on Postgres.

use std::time::Duration;

use sqlx::{PgPool, Postgres, pool::PoolConnection, postgres::PgPoolOptions};

use crate::peers::plain::PlainDatabase;

impl PlainDatabase for Postgres {
    const CREATE: &'static str = "CREATE TABLE IF NOT EXISTS plain_lock \
         (lock_name TEXT PRIMARY KEY, holder_id BIGINT NOT NULL)";
    const TAKE: &'static str = "INSERT INTO plain_lock (lock_name, holder_id) VALUES ($1, $2)";
    const FREE: &'static str = "DELETE FROM plain_lock WHERE lock_name = $1 AND holder_id = $2";
    const LOCK: &'static str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
    const UNLOCK: &'static str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

    /// Opens a pool with the isolation level READ COMMITTED, which is the default of a server.
    async fn pool(url: &str, connections: u32) -> Result<PgPool, sqlx::Error> {
        PgPoolOptions::new()
            .max_connections(connections)
            // distlock does not test a connection before each use either. The test would be one
            // more request for each statement.
            .test_before_acquire(false)
            .acquire_timeout(Duration::from_secs(60))
            .connect(url)
            .await
    }

    async fn run(pool: &PgPool, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(statement).execute(pool).await.map(drop)
    }

    async fn change(
        pool: &PgPool,
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
        let query = sqlx::query(statement).bind(name.to_owned());
        query.execute(&mut **connection).await.map(drop)
    }

    /// Always returns false: these statements do not deadlock, so the server does not roll them
    /// back.
    fn was_rolled_back(_: &sqlx::Error) -> bool {
        false
    }
}
