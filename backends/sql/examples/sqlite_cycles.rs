//! Measures cycles of acquire and release on SQLite: the cycles a second of 64 callers on different
//! names, and the median time of one caller. The comparison is a plain INSERT and DELETE on one
//! connection with the same settings.
//!
//! ```sh
//! cargo run --release -p distlock-sql --features sqlite --example sqlite_cycles \
//!     -- [SECONDS] [FOLDER]
//! ```

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement: it prints, and real time is what it measures"
)]

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::{
    AcquireRequest, Attempt, DistLock, HolderLabel, Lease, LockName, OwnerId, SystemClock, Ttl,
};
use distlock_sql::{Sqlite, SqliteConfig};
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::sync::Mutex;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const CALLERS: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(3.0), |text| text.parse())?;
    let folder = match arguments.next() {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let time = Duration::from_secs_f64(seconds);
    // The rounds are interleaved, so that a slow phase of the disk slows both sides.
    for round in 1..=3 {
        let (plain_median, our_median) = alone(folder.path(), time).await?;
        println!(
            "{round}: 1 caller: plain p50 {plain_median:?}, distlock p50 {our_median:?} ({:.2} \
                times plain)",
            our_median.as_secs_f64() / plain_median.as_secs_f64()
        );
        let plain_many = plain(folder.path(), time).await?;
        let our_many = batched(folder.path(), time).await?;
        println!(
            "{round}: {CALLERS} callers: plain {plain_many:.0} cycles/s, distlock {our_many:.0} \
                cycles/s ({:.1} times plain)",
            our_many / plain_many
        );
    }
    Ok(())
}

/// The median times of one caller: for plain cycles, and for cycles of distlock.
async fn alone(folder: &Path, time: Duration) -> Result<(Duration, Duration), Failure> {
    let connection = connect(folder).await?;
    let store = open(folder).await?;
    let lock = store.lock();
    let until = Instant::now() + time;
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        // The order is random. The file system sometimes commits its journal, and with a fixed
        // order that commit could always delay the same side.
        if fastrand::bool() {
            plain.push(plain_cycle(&connection, "alone").await?);
        } else {
            ours.push(our_cycle(&*lock, "alone").await?);
        }
    }
    close(&store).await;
    Ok((median(plain), median(ours)))
}

/// Cycles a second of many callers, one INSERT and one DELETE each, through one connection.
async fn plain(folder: &Path, time: Duration) -> Result<f64, Failure> {
    let connection = Arc::new(connect(folder).await?);
    let until = Instant::now() + time;
    let tasks = (0..CALLERS).map(|caller| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            let mut cycles = 0;
            while Instant::now() < until {
                plain_cycle(&connection, &format!("bench:{caller}")).await?;
                cycles += 1;
            }
            Ok(cycles)
        })
    });
    rate(tasks.collect(), time).await
}

/// Cycles a second of many callers, one acquire and one release each.
async fn batched(folder: &Path, time: Duration) -> Result<f64, Failure> {
    let store = open(folder).await?;
    let until = Instant::now() + time;
    let tasks = (0..CALLERS).map(|caller| {
        let lock = store.lock();
        tokio::spawn(async move {
            let mut cycles = 0;
            while Instant::now() < until {
                our_cycle(&*lock, &format!("bench:{caller}")).await?;
                cycles += 1;
            }
            Ok(cycles)
        })
    });
    let rate = rate(tasks.collect(), time).await;
    close(&store).await;
    rate
}

async fn plain_cycle(
    connection: &Mutex<SqliteConnection>,
    name: &str,
) -> Result<Duration, Failure> {
    let started = Instant::now();
    let inserted = sqlx::query("INSERT INTO plain VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(name.to_owned())
        .bind("holder")
        .bind(1_000_000_i64)
        .execute(&mut *connection.lock().await)
        .await?;
    assert_eq!(inserted.rows_affected(), 1);
    sqlx::query("DELETE FROM plain WHERE lock_name = ? AND holder = ?")
        .bind(name.to_owned())
        .bind("holder")
        .execute(&mut *connection.lock().await)
        .await?;
    Ok(started.elapsed())
}

async fn our_cycle(lock: &dyn DistLock, name: &str) -> Result<Duration, Failure> {
    let started = Instant::now();
    let owner = OwnerId::new();
    let request = AcquireRequest::new(
        LockName::new(name)?,
        owner,
        Ttl::from_millis(10_000)?,
        HolderLabel::new("holder")?,
    );
    let Attempt::Acquired(grant) = lock.try_acquire(&request).await? else {
        return Err("busy, though nobody else wants it".into());
    };
    lock.release(&Lease::new(request.name, owner, Some(grant.token)))
        .await?;
    Ok(started.elapsed())
}

async fn connect(folder: &Path) -> Result<Mutex<SqliteConnection>, Failure> {
    let mut connection = SqliteConnectOptions::new()
        .filename(folder.join("plain.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS plain (lock_name TEXT PRIMARY KEY, holder TEXT NOT NULL, \
            expires_at INTEGER NOT NULL)",
    )
    .execute(&mut connection)
    .await?;
    Ok(Mutex::new(connection))
}

async fn open(folder: &Path) -> Result<Sqlite, Failure> {
    let config = SqliteConfig::new(folder.join("distlock.db"));
    Ok(Sqlite::open(config, Arc::new(SystemClock)).await?)
}

async fn close(store: &Sqlite) {
    store.lock().close().await;
    store.records().close().await;
}

async fn rate(
    tasks: Vec<tokio::task::JoinHandle<Result<u32, Failure>>>,
    time: Duration,
) -> Result<f64, Failure> {
    let mut cycles = 0;
    for task in tasks {
        cycles += task.await??;
    }
    Ok(f64::from(cycles) / time.as_secs_f64())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
