//! SQLite: the plain way beside distlock.

use std::{path::Path, sync::Arc};

use distlock_core::SystemClock;
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};
use distlock_sql::{Sqlite, SqliteConfig};

use crate::peers::plain_sqlite::PlainSqlite;

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
    let subject = LockerSubject::new(store.lock());
    let locker = subject.locker().clone();
    locker.ready().await?;
    arms.push(Arm::new("distlock-sqlite", subject));
    let report = measure(&arms, workload, &options).await?;
    locker.close().await;
    Ok(report)
}

/// Opens distlock's store on a file by its own type, which counts the statements that the store
/// sends.
pub(crate) async fn open(file: &Path) -> distlock_core::Result<Sqlite> {
    Sqlite::open(SqliteConfig::new(file), Arc::new(SystemClock)).await
}
