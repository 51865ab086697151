//! Reads rows by their names.

use std::collections::HashMap;

use distlock_core::{LockName, Result};
use sqlx::PgConnection;

use super::{context::StoreContext, rows};
use crate::{
    dialect::LockRow,
    statement_error::{Access, StatementError},
};

/// Reads the rows of these names on a connection.
pub(super) async fn read_rows(
    connection: &mut PgConnection,
    context: &StoreContext,
    names: Vec<String>,
) -> Result<HashMap<LockName, Result<LockRow>>, StatementError> {
    context.common.counters.count("read_rows");
    let rows = sqlx::query(context.statements.look.text())
        .bind(names)
        .fetch_all(connection)
        .await
        .map_err(|error| StatementError::postgres(error, Access::Read))?;
    let hint_id = context.common.wait_group.hint_id();
    rows.iter()
        .map(|row| rows::lock(row, hint_id).map_err(StatementError::corrupt))
        .collect()
}
