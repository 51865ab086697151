//! The plain ways on MySQL and MariaDB: a row is the lock, which one INSERT takes and one DELETE frees; and the server's own
//! named locks, which write nothing and end with the connection.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use distlock_report::{Counters, Subject};
use sqlx::{
    Executor as _, MySql, MySqlPool,
    mysql::{MySqlPoolOptions, MySqlQueryResult},
    pool::PoolConnection,
};

const CREATE: &str = "CREATE TABLE IF NOT EXISTS plain_lock \
     (lock_name VARBINARY(255) PRIMARY KEY, holder_id BIGINT NOT NULL)";
const TAKE: &str = "INSERT INTO plain_lock (lock_name, holder_id) VALUES (?, ?)";
const FREE: &str = "DELETE FROM plain_lock WHERE lock_name = ? AND holder_id = ?";

const LOCK: &str = "SELECT GET_LOCK(?, 60)";
const UNLOCK: &str = "DO RELEASE_LOCK(?)";

/// How often a waiting caller asks again; the plain way has nothing that would wake it.
const POLL: Duration = Duration::from_millis(5);

/// What the server says when it took a transaction back, which is no answer: the statement is sent again.
const DEADLOCK: &str = "40001";

/// Rows, with no lease, no token and no loss notice.
#[derive(Debug)]
pub(crate) struct PlainMySql {
    pool: MySqlPool,
    next_holder: AtomicU64,
    statements: AtomicU64,
}

/// Named locks: each keeps a connection for as long as it is held or waited for.
#[derive(Debug)]
pub(crate) struct Named {
    pool: MySqlPool,
    statements: AtomicU64,
}

/// At READ COMMITTED: at the default level, callers of different names deadlock.
async fn pool(url: &str, connections: u32) -> Result<MySqlPool, sqlx::Error> {
    MySqlPoolOptions::new()
        .max_connections(connections)
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

impl PlainMySql {
    /// Creates the table.
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
    ) -> Result<MySqlQueryResult, sqlx::Error> {
        loop {
            self.statements.fetch_add(1, Ordering::Relaxed);
            let query = sqlx::query(statement).bind(name.to_owned()).bind(holder);
            match query.execute(&self.pool).await {
                Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(DEADLOCK) => {}
                done => return done,
            }
        }
    }
}

impl Subject for PlainMySql {
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

impl Named {
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        Ok(Self {
            pool: pool(url, connections).await?,
            statements: AtomicU64::new(0),
        })
    }
}

impl Subject for Named {
    type Held = (String, PoolConnection<MySql>);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        self.statements.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query_scalar::<_, Option<i64>>(LOCK).bind(name.to_owned());
        match query.fetch_one(&mut *connection).await? {
            Some(1) => Ok((name.to_owned(), connection)),
            _ => Err(sqlx::Error::RowNotFound),
        }
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
