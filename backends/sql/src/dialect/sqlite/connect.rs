//! Connects to the file with the settings that the promises of the locks need, and sends the
//! statements that set the file up.

use std::path::Path;

use distlock_core::{Error, path_excerpt};
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteSynchronous},
};

use super::{context::StoreContext, errors::sqlite_code};
use crate::statement_error::{Access, StatementError};

/// `SQLITE_BUSY`
const SQLITE_BUSY: i32 = 5;

/// Opens a connection with the settings that the promises of the locks need.
pub(super) async fn connect(context: &StoreContext) -> Result<SqliteConnection, SetUpError> {
    SqliteConnectOptions::new()
        .filename(&context.path)
        .create_if_missing(false)
        .busy_timeout(context.config.busy_timeout)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(false)
        .pragma("trusted_schema", "OFF")
        .pragma("temp_store", "MEMORY")
        // The number counts pages. Until the write-ahead log is overwritten from its start for the
        // first time, every commit makes the log longer. A file system syncs a longer file more
        // slowly than a write in place. The default of 1000 pages makes this phase long.
        .pragma("wal_autocheckpoint", "256")
        // The buffer must have room for all result rows of a batch. Otherwise SQLite's thread waits
        // for the reader of the rows in the middle of a transaction.
        .row_buffer_size(4096)
        .thread_name(|id| format!("distlock-sql-{id}"))
        // The driver would only warn of slow statements, and those have waited for another process.
        .disable_statement_logging()
        .connect()
        .await
        .map_err(|error| SetUpError::of(error, context))
}

pub(super) async fn run(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    script: impl sqlx::SqlSafeStr,
) -> Result<(), SetUpError> {
    context.common.counters.count("open");
    sqlx::raw_sql(script)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| SetUpError::of(error, context))
}

/// Sends a statement and returns its first row. A result without a row is an error.
pub(super) async fn query<T>(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    sql: impl sqlx::SqlSafeStr,
) -> Result<T, SetUpError>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
{
    let row = query_optional(connection, context, sql).await?;
    row.ok_or_else(|| SetUpError::of(sqlx::Error::RowNotFound, context))
}

/// Sends a statement and returns its first row, if there is one.
pub(super) async fn query_optional<T>(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    sql: impl sqlx::SqlSafeStr,
) -> Result<Option<T>, SetUpError>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
{
    context.common.counters.count("open");
    let rows = sqlx::query(sql)
        .fetch_all(connection)
        .await
        .map_err(|error| SetUpError::of(error, context))?;
    let row = rows.first().map(T::from_row).transpose();
    row.map_err(|error| SetUpError::of(error, context))
}

/// The failure of setting the file up.
pub(super) enum SetUpError {
    /// Another process is setting the file up or writing: another try may succeed.
    Busy(StatementError),
    Wrong(Error),
}

impl SetUpError {
    pub(super) fn of(error: sqlx::Error, context: &StoreContext) -> Self {
        let code = sqlite_code(&error);
        let failed = StatementError::sqlite(error, Access::Read);
        if code.is_some_and(|code| code & 0xff == SQLITE_BUSY) {
            return Self::Busy(failed);
        }
        Self::Wrong(named(failed.into_error(), &context.path))
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Busy(failed) => failed.into_error(),
            Self::Wrong(error) => error,
        }
    }
}

impl From<Error> for SetUpError {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

/// Names the file in the error.
pub(super) fn named(error: Error, path: &Path) -> Error {
    Error::new(error.kind(), path_excerpt(path)).caused_by(error)
}
