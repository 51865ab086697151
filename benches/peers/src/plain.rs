//! The plain ways on a database server. In one, a row is the lock: one INSERT takes it and one
//! DELETE frees it. In the other, the server's own named locks write nothing and end with the
//! connection.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use distlock_report::{Counters, Subject};
use sqlx::{Database, Pool, pool::PoolConnection};

/// Pause of a waiting caller between two polls. The plain way has no notification.
const POLL: Duration = Duration::from_millis(5);

/// A server for the plain ways. Each statement takes a name, and those about rows also a holder.
pub(crate) trait Plain: Database {
    /// Creates the table.
    const CREATE: &'static str;
    const TAKE: &'static str;
    const FREE: &'static str;
    /// Takes one of the server's own locks.
    const LOCK: &'static str;
    const UNLOCK: &'static str;

    fn pool(
        url: &str,
        connections: u32,
    ) -> impl Future<Output = Result<Pool<Self>, sqlx::Error>> + Send;

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

    /// Takes or frees one of the server's own locks.
    fn call(
        connection: &mut PoolConnection<Self>,
        statement: &'static str,
        name: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether the server rolled the transaction back. That is no answer, and the statement is sent
    /// again.
    fn took_back(error: &sqlx::Error) -> bool;
}

/// Rows as locks, without lease, fencing token and loss notice.
#[derive(Debug)]
pub(crate) struct Rows<D: Plain> {
    pool: Pool<D>,
    next_holder: AtomicU64,
    statements: AtomicU64,
}

/// The server's own locks. Each one occupies a connection while it is held or waited for.
#[derive(Debug)]
pub(crate) struct Named<D: Plain> {
    pool: Pool<D>,
    statements: AtomicU64,
}

impl<D: Plain> Rows<D> {
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
                Err(error) if D::took_back(&error) => {}
                done => return done,
            }
        }
    }
}

impl<D: Plain> Subject for Rows<D> {
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
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => poll().await,
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
        counted(&self.statements)
    }
}

impl<D: Plain> Named<D> {
    pub(crate) async fn connect(url: &str, connections: u32) -> Result<Self, sqlx::Error> {
        Ok(Self {
            pool: D::pool(url, connections).await?,
            statements: AtomicU64::new(0),
        })
    }
}

impl<D: Plain> Subject for Named<D> {
    type Held = (String, PoolConnection<D>);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        self.statements.fetch_add(1, Ordering::Relaxed);
        D::call(&mut connection, D::LOCK, name).await?;
        Ok((name.to_owned(), connection))
    }

    async fn release(&self, (name, mut connection): Self::Held) -> Result<(), sqlx::Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        D::call(&mut connection, D::UNLOCK, &name).await
    }

    fn counters(&self) -> Counters {
        counted(&self.statements)
    }
}

/// Each operation of a plain way is one statement.
pub(crate) fn counted(statements: &AtomicU64) -> Counters {
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
pub(crate) async fn poll() {
    tokio::time::sleep(POLL).await;
}
