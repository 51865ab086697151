//! Another program that uses the database file: it keeps it locked, or changes it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, SqliteConnection, sqlite::SqliteConnectOptions,
};

/// Locks the file, until this future is dropped.
pub(super) async fn keep_locked(path: PathBuf) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    connection.execute("BEGIN IMMEDIATE").await?;
    std::future::pending().await
}

/// How long another program may keep the file locked meanwhile.
const BUSY: Duration = Duration::from_secs(10);

/// Runs a statement.
pub(super) async fn run(path: &Path, statement: &str) -> Result<()> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
    statement.execute(&mut connection).await?;
    Ok(())
}
