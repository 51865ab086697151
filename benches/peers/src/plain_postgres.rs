//! The plain ways on Postgres: a row is the lock, which one INSERT takes and one DELETE frees; and the server's own advisory
//! locks, which write nothing and end with the connection.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use distlock_report::{Counters, Subject};
use sqlx::{
    PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgPoolOptions, PgQueryResult},
};

const CREATE: &str =
    "CREATE TABLE IF NOT EXISTS plain_lock (lock_name TEXT PRIMARY KEY, holder_id BIGINT NOT NULL)";
const TAKE: &str = "INSERT INTO plain_lock (lock_name, holder_id) VALUES ($1, $2)";
const FREE: &str = "DELETE FROM plain_lock WHERE lock_name = $1 AND holder_id = $2";

const LOCK: &str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";

/// How often a waiting caller asks again; the plain way has nothing that would wake it.
const POLL: Duration = Duration::from_millis(5);

/// Rows, with no lease, no token and no loss notice.
#[derive(Debug)]
pub(crate) struct PlainPostgres {
    pool: PgPool,
    next_holder: AtomicU64,
    statements: AtomicU64,
}

/// Advisory locks: each keeps a connection for as long as it is held or waited for.
#[derive(Debug)]
pub(crate) struct Advisory {
    pool: PgPool,
    statements: AtomicU64,
}

async fn pool(url: &str, connections: u32) -> Result<PgPool, sqlx::Error> {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(60))
        .connect(url)
        .await
}

impl PlainPostgres {
    /// Creates the table. READ COMMITTED is what a server is set to unless told otherwise.
    pub(crate) async fn create(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        let pool = pool(url, connections).await?;
        sqlx::query(CREATE).execute(&pool).await?;
        Ok(Self {
            pool,
            next_holder: AtomicU64::new(0),
            statements: AtomicU64::new(0),
        })
    }

    async fn execute(
        &self,
        statement: &'static str,
        name: &str,
        holder: i64,
    ) -> Result<PgQueryResult, sqlx::Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query(statement).bind(name.to_owned()).bind(holder);
        query.execute(&self.pool).await
    }
}

impl Subject for PlainPostgres {
    type Held = (String, i64);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let holder = self
            .next_holder
            .fetch_add(1, Ordering::Relaxed)
            .cast_signed();
        loop {
            match self.execute(TAKE, name, holder).await {
                Ok(_) => return Ok((name.to_owned(), holder)),
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => poll().await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn release(&self, (name, holder): Self::Held) -> Result<(), sqlx::Error> {
        match self.execute(FREE, &name, holder).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(sqlx::Error::RowNotFound),
        }
    }

    fn counters(&self) -> Counters {
        counted(&self.statements)
    }
}

impl Advisory {
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        Ok(Self {
            pool: pool(url, connections).await?,
            statements: AtomicU64::new(0),
        })
    }
}

impl Subject for Advisory {
    type Held = (String, PoolConnection<Postgres>);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        self.statements.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query(LOCK).bind(name.to_owned());
        query.execute(&mut *connection).await?;
        Ok((name.to_owned(), connection))
    }

    async fn release(&self, (name, mut connection): Self::Held) -> Result<(), sqlx::Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query(UNLOCK).bind(name);
        query.execute(&mut *connection).await.map(drop)
    }

    fn counters(&self) -> Counters {
        counted(&self.statements)
    }
}

fn counted(statements: &AtomicU64) -> Counters {
    let statements = Some(statements.load(Ordering::Relaxed));
    Counters {
        operations: statements,
        statements,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the plain way polls in real time, and that is what is measured"
)]
async fn poll() {
    tokio::time::sleep(POLL).await;
}
