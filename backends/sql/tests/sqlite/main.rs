//! Tests on a real SQLite file in a temporary folder.

#![expect(
    clippy::disallowed_methods,
    reason = "the tests wait for real processes and files"
)]

mod busy;
#[path = "../common/mod.rs"]
mod common;
mod fence;
mod histories;
mod lock;
mod open;
mod reaper;
mod records;
mod schema;
mod stalls;
mod store_queue;
#[path = "../common/store_queue.rs"]
mod store_queue_cases;
mod transaction;
mod wait;
#[cfg(target_os = "linux")]
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{a_hand_over_takes_one_statement, lease};
use distlock_core::{
    AcquireRequest, Attempt, Clock, DistLock, Grant, HolderInfo, Lease, LockName, ManualClock,
    OwnerId, SystemClock, Ttl,
};
use distlock_sql::{Sqlite, SqliteConfig};
use sqlx::{AssertSqlSafe, ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// The path of a SQLite file in a new temporary folder. The file does not exist at first.
struct Place {
    _folder: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            path: folder.path().join("locks.db"),
            _folder: folder,
        }
    }

    fn config(&self) -> SqliteConfig {
        SqliteConfig::new(&self.path)
    }

    async fn open(&self) -> Sqlite {
        self.open_at(Arc::new(SystemClock)).await
    }

    async fn open_at(&self, clock: Arc<dyn Clock>) -> Sqlite {
        Sqlite::open(self.config(), clock).await.unwrap()
    }

    /// A connection of the test itself, in the place of another program's connection.
    async fn raw(&self) -> SqliteConnection {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .connect()
            .await
            .unwrap()
    }

    /// Marks all rows as written in another boot of the machine.
    async fn reboot(&self) {
        self.sql("UPDATE distributed_record SET boot_id = randomblob(16)")
            .await;
        self.sql("UPDATE distributed_lock SET boot_id = randomblob(16)")
            .await;
    }

    /// Sends a statement on the test's own connection.
    async fn sql(&self, sql: &str) {
        let mut raw = self.raw().await;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut raw)
            .await
            .unwrap();
    }
}

fn manual() -> (ManualClock, Arc<dyn Clock>) {
    let clock = ManualClock::new();
    (clock.clone(), Arc::new(clock))
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn request(text: &str) -> AcquireRequest {
    common::request(text, Duration::from_secs(10))
}

async fn take(lock: &Arc<dyn DistLock>, request: &AcquireRequest) -> Grant {
    common::take(&**lock, request).await
}

async fn refused(lock: &Arc<dyn DistLock>, request: &AcquireRequest) -> HolderInfo {
    match lock.try_acquire(request).await.unwrap() {
        Attempt::Acquired(grant) => panic!("granted: {grant:?}"),
        Attempt::Busy(holder) => holder.expect("who holds it"),
    }
}

async fn close(store: &Sqlite) {
    store.lock().close().await;
    store.records().close().await;
}

/// Waits for a condition, with a generous time limit.
async fn until<F: AsyncFnMut() -> bool>(what: &str, mut condition: F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// Runs two futures on one task; `one` is polled first.
async fn both<A: Future, B: Future>(one: A, two: B) -> (A::Output, B::Output) {
    tokio::join!(biased; one, two)
}

/// Runs futures on one task, so that all are submitted before the first answer.
async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures
        .into_iter()
        .map(|future| (Box::pin(future), None))
        .collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
