//! Another program that keeps a database file locked.

use std::path::PathBuf;

use anyhow::Result;
use sqlx::{Connection as _, Executor as _, SqliteConnection, sqlite::SqliteConnectOptions};

/// Locks the file, until this future is dropped.
pub(super) async fn keep_locked(path: PathBuf) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    connection.execute("BEGIN IMMEDIATE").await?;
    std::future::pending().await
}
