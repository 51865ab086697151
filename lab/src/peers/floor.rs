//! The lower bound of a hand-over in a store that writes each grant to the disk. Several tasks
//! update one row on one connection, one task after the other.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use distlock_report::{Counters, Subject};
use sqlx::{Connection, MySqlConnection, PgConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

const CREATE: &str = "CREATE TABLE IF NOT EXISTS floor (id INT PRIMARY KEY, steps BIGINT NOT NULL)";
const EMPTY: &str = "DELETE FROM floor";
const FILL: &str = "INSERT INTO floor (id, steps) VALUES (1, 0)";
const STEP: &str = "UPDATE floor SET steps = steps + 1 WHERE id = 1";

/// A connection that can run these statements.
pub(crate) trait Database: Connection + Send + 'static {
    /// Runs a statement.
    fn run(
        &mut self,
        statement: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl Database for MySqlConnection {
    async fn run(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(statement).execute(self).await.map(drop)
    }
}

impl Database for PgConnection {
    async fn run(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::query(statement).execute(self).await.map(drop)
    }
}

/// The arm of the lower bound: an acquire updates the row, and a release sends nothing. A mutex
/// admits one task of this process at a time. Other processes are not excluded.
#[derive(Debug)]
pub(crate) struct Floor<C> {
    connection: Arc<Mutex<C>>,
    statements: AtomicU64,
}

impl<C: Database> Floor<C> {
    /// Connects and creates the row.
    pub(crate) async fn create(url: &str) -> Result<Self, sqlx::Error> {
        let mut connection = C::connect(url).await?;
        create_row(&mut connection).await?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            statements: AtomicU64::new(0),
        })
    }
}

/// Creates the table with its one row.
pub(crate) async fn create_row(connection: &mut impl Database) -> Result<(), sqlx::Error> {
    for statement in [CREATE, EMPTY, FILL] {
        connection.run(statement).await?;
    }
    Ok(())
}

/// Updates the row. The update is on the disk when the function returns.
pub(crate) async fn update_row(connection: &mut impl Database) -> Result<(), sqlx::Error> {
    connection.run(STEP).await
}

impl<C: Database> Subject for Floor<C> {
    type Held = OwnedMutexGuard<C>;
    type Error = sqlx::Error;

    async fn acquire(&self, _: &str) -> Result<Self::Held, sqlx::Error> {
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        self.statements.fetch_add(1, Ordering::Relaxed);
        update_row(&mut *connection).await?;
        Ok(connection)
    }

    async fn release(&self, _: Self::Held) -> Result<(), sqlx::Error> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        let statements = Some(self.statements.load(Ordering::Relaxed));
        Counters {
            operations: statements,
            statements,
            ..Counters::default()
        }
    }
}
