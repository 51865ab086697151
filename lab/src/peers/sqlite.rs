//! SQLite: the plain way beside distlock. In the plain way a row is the lock: one INSERT takes it,
//! and one DELETE frees it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::SystemClock;
use distlock_report::{Arm, Counters, Options, Report, Subject, Workload};
use distlock_sql::{Sqlite, SqliteConfig};
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteQueryResult,
        SqliteSynchronous,
    },
};
use tokio::sync::Mutex;

use crate::peers::{
    plain::{pause_before_poll, statement_counters},
    target::measure_beside,
};

/// Measures the arms, each with a file of its own in `folder`. `pool` is the number of connections
/// of a further plain arm.
pub(crate) async fn run(
    workload: Workload,
    options: Options,
    pool: Option<u32>,
    folder: &Path,
) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let plain = PlainSqlite::create(&folder.join("plain.db"), 1).await?;
    let mut arms = vec![Arm::new("sqlite-plain", plain)];
    if let Some(connections) = pool {
        let pooled = PlainSqlite::create(&folder.join("pool.db"), connections).await?;
        arms.push(Arm::new(format!("sqlite-plain-pool-{connections}"), pooled));
    }
    let store = open(&folder.join("ours.db")).await?;
    measure_beside(arms, "distlock-sqlite", store.lock(), workload, &options).await
}

/// Opens distlock's store on a file by its own type, which counts the statements that the store
/// sends.
pub(crate) async fn open(file: &Path) -> distlock_core::Result<Sqlite> {
    Sqlite::open(SqliteConfig::new(file), Arc::new(SystemClock)).await
}

const CREATE: &str = "CREATE TABLE plain_lock (
    lock_name TEXT PRIMARY KEY,
    holder_id BLOB NOT NULL
) WITHOUT ROWID";
const TAKE: &str = "INSERT INTO plain_lock (lock_name, holder_id) VALUES (?, ?)";
const FREE: &str = "DELETE FROM plain_lock WHERE lock_name = ? AND holder_id = ?";

/// The plain way. Its locks have no lease, no fencing token and no report of a loss.
#[derive(Debug)]
pub(crate) struct PlainSqlite {
    connections: Connections,
    next_holder: AtomicU64,
    statements: AtomicU64,
}

#[derive(Debug)]
enum Connections {
    /// One connection, which serves one caller at a time.
    One(Mutex<SqliteConnection>),
    /// A pool. SQLite lets only one connection write at a time.
    Pool(SqlitePool),
}

impl PlainSqlite {
    /// Creates the file and its table. If `connections` is 1, all callers share one connection.
    /// Otherwise the callers use a pool of `connections` connections.
    pub(crate) async fn create(file: &Path, connections: u32) -> anyhow::Result<Self> {
        // The settings are as durable as the settings of distlock, whose grants must survive a
        // power cut.
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .disable_statement_logging();
        let mut first = options.connect().await?;
        sqlx::query(CREATE).execute(&mut first).await?;
        let connections = if connections == 1 {
            Connections::One(Mutex::new(first))
        } else {
            first.close().await?;
            Connections::Pool(
                SqlitePoolOptions::new()
                    .max_connections(connections)
                    .min_connections(connections)
                    .acquire_timeout(Duration::from_secs(60))
                    .connect_with(options)
                    .await?,
            )
        };
        Ok(Self {
            connections,
            next_holder: AtomicU64::new(0),
            statements: AtomicU64::new(0),
        })
    }

    /// Sends and counts a statement.
    async fn execute(
        &self,
        statement: &'static str,
        name: &str,
        holder: [u8; 16],
    ) -> Result<SqliteQueryResult, sqlx::Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query(statement).bind(name).bind(holder.to_vec());
        match &self.connections {
            Connections::One(connection) => query.execute(&mut *connection.lock().await).await,
            Connections::Pool(pool) => query.execute(pool).await,
        }
    }
}

impl Subject for PlainSqlite {
    type Held = (String, [u8; 16]);
    type Error = sqlx::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, sqlx::Error> {
        let mut holder = [0; 16];
        let number = self.next_holder.fetch_add(1, Ordering::Relaxed);
        holder[..8].copy_from_slice(&number.to_le_bytes());
        loop {
            match self.execute(TAKE, name, holder).await {
                Ok(_) => return Ok((name.to_owned(), holder)),
                Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                    pause_before_poll().await;
                }
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
        statement_counters(&self.statements)
    }
}
