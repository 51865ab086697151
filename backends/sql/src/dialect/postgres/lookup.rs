//! Reading rows by their names.

use std::collections::HashMap;

use distlock_core::{LockName, Result};
use sqlx::PgConnection;

use super::{context::Shared, rows};
use crate::error::{Access, Failed};

/// Reads the rows of these names on a connection.
pub(super) async fn look(
    connection: &mut PgConnection,
    shared: &Shared,
    names: Vec<String>,
) -> Result<HashMap<LockName, Result<rows::Look>>, Failed> {
    shared.tally.count("look");
    let rows = sqlx::query(shared.statements.look.text())
        .bind(names)
        .fetch_all(connection)
        .await
        .map_err(|error| Failed::postgres(error, Access::Read))?;
    let mark = shared.group.mark();
    rows.iter()
        .map(|row| rows::lock(row, mark).map_err(Failed::corrupt))
        .collect()
}
