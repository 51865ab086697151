//! Another program that uses the database file of SQLite: the program locks the file, or changes a
//! row.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, SqliteConnection, sqlite::SqliteConnectOptions,
};

/// Locks the file until this future is dropped.
pub(super) async fn keep_locked(path: PathBuf) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    connection.execute("BEGIN IMMEDIATE").await?;
    std::future::pending().await
}

/// Time-out for a file that another program keeps locked.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one statement.
pub(super) async fn run(path: &Path, statement: &str) -> Result<()> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(LOCKED_TIMEOUT);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
    statement.execute(&mut connection).await?;
    Ok(())
}
