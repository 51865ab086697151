//! Reads rows by their names.

use distlock_core::{LockName, Result};
use sqlx::SqliteConnection;

use super::{
    context::{ClockReadings, StoreContext},
    parameters::json,
    rows,
};
use crate::{
    dialect::LockRow,
    statement_error::{Access, StatementError},
};

/// Reads the rows of these names on a connection.
pub(super) async fn read_rows(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    names: &[&LockName],
    now: ClockReadings,
) -> Result<Vec<(LockName, Result<LockRow>)>, StatementError> {
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    context.common.counters.count("read_rows");
    let rows = sqlx::query(context.statements.look.text())
        .bind(json(&names))
        .fetch_all(connection)
        .await
        .map_err(|error| StatementError::sqlite(error, Access::Read))?;
    rows.iter()
        .map(|row| rows::lock(row, context, now).map_err(StatementError::corrupt))
        .collect()
}
