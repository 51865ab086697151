//! The two plain ways on a database server. In the first way, a row is the lock: one INSERT takes
//! the lock, and one DELETE frees the lock. The second way uses the server's own named locks, which
//! write nothing and end with the connection.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use distlock_report::{Counters, Subject};
use sqlx::{
    Database, Executor as _, MySql, MySqlPool, PgPool, Pool, Postgres, mysql::MySqlPoolOptions,
    pool::PoolConnection, postgres::PgPoolOptions,
};

/// The pause of a waiting caller between two polls. The plain way has no notification.
const POLL: Duration = Duration::from_millis(5);

/// The statements of the plain ways in one dialect. Each statement has the lock's name as a
/// parameter. `TAKE` and `FREE` also have a holder as a parameter.
pub(crate) trait PlainDatabase: Database {
    /// Creates the table.
    const CREATE: &'static str;
    /// Inserts the row of a lock.
    const TAKE: &'static str;
    /// Deletes the row of a lock.
    const FREE: &'static str;
    /// Takes one of the server's named locks.
    const LOCK: &'static str;
    /// Frees one of the server's named locks.
    const UNLOCK: &'static str;

    /// Opens a pool of at most this many connections.
    fn pool(
        url: &str,
        connections: u32,
    ) -> impl Future<Output = Result<Pool<Self>, sqlx::Error>> + Send;

    /// Runs a statement without parameters.
    fn run(
        pool: &Pool<Self>,
        statement: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Sends `TAKE` or `FREE`, and returns the number of changed rows.
    fn change(
        pool: &Pool<Self>,
        statement: &'static str,
        name: &str,
        holder: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Sends `LOCK` or `UNLOCK`.
    fn call_named_lock(
        connection: &mut PoolConnection<Self>,
        statement: &'static str,
        name: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Tells whether the error means that the server rolled the transaction back. The caller then
    /// sends the statement again.
    fn was_rolled_back(error: &sqlx::Error) -> bool;
}

/// The arm with rows as locks. These locks have no lease, no fencing token and no report of a loss.
#[derive(Debug)]
pub(crate) struct RowLocks<D: PlainDatabase> {
    pool: Pool<D>,
    next_holder: AtomicU64,
    statements: AtomicU64,
}

/// The arm with the server's named locks. A caller occupies a connection while the caller holds a
/// lock or waits for a lock.
#[derive(Debug)]
pub(crate) struct NamedLocks<D: PlainDatabase> {
    pool: Pool<D>,
    statements: AtomicU64,
}

impl<D: PlainDatabase> RowLocks<D> {
    /// Creates the table.
    pub(crate) async fn create(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        let pool = D::pool(url, connections).await?;
        D::run(&pool, D::CREATE).await?;
        Ok(Self {
            pool,
            next_holder: AtomicU64::new(0),
            statements: AtomicU64::new(0),
        })
    }

    async fn change(
        &self,
        statement: &'static str,
        name: &str,
        holder: i64,
    ) -> Result<u64, sqlx::Error> {
        loop {
            self.statements.fetch_add(1, Ordering::Relaxed);
            match D::change(&self.pool, statement, name, holder).await {
                Err(error) if D::was_rolled_back(&error) => {}
                done => return done,
            }
        }
    }
}

impl<D: PlainDatabase> Subject for RowLocks<D> {
    type Held = (String, i64);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let holder = self
            .next_holder
            .fetch_add(1, Ordering::Relaxed)
            .cast_signed();
        loop {
            match self.change(D::TAKE, name, holder).await {
                Ok(_) => return Ok((name.to_owned(), holder)),
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                    pause_before_poll().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn release(&self, (name, holder): Self::Held) -> Result<(), sqlx::Error> {
        match self.change(D::FREE, &name, holder).await? {
            1 => Ok(()),
            _ => Err(sqlx::Error::RowNotFound),
        }
    }

    fn counters(&self) -> Counters {
        statement_counters(&self.statements)
    }
}

impl<D: PlainDatabase> NamedLocks<D> {
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        Ok(Self {
            pool: D::pool(url, connections).await?,
            statements: AtomicU64::new(0),
        })
    }
}

impl<D: PlainDatabase> Subject for NamedLocks<D> {
    type Held = (String, PoolConnection<D>);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        self.statements.fetch_add(1, Ordering::Relaxed);
        D::call_named_lock(&mut connection, D::LOCK, name).await?;
        Ok((name.to_owned(), connection))
    }

    async fn release(&self, (name, mut connection): Self::Held) -> Result<(), sqlx::Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        D::call_named_lock(&mut connection, D::UNLOCK, &name).await
    }

    fn counters(&self) -> Counters {
        statement_counters(&self.statements)
    }
}

/// Returns the counters of a plain way, in which each operation is one statement.
pub(crate) fn statement_counters(statements: &AtomicU64) -> Counters {
    let statements = Some(statements.load(Ordering::Relaxed));
    Counters {
        operations: statements,
        statements,
        ..Counters::default()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the plain way polls in real time, and that is what is measured"
)]
pub(crate) async fn pause_before_poll() {
    tokio::time::sleep(POLL).await;
}

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
