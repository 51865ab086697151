//! Reading rows by their names.

use distlock_core::{LockName, Result};
use sqlx::SqliteConnection;

use super::{
    context::{Now, Shared},
    parameters::json,
    rows,
};
use crate::{
    dialect::LockRow,
    error::{Access, Failed},
};

/// Reads the rows of these names on a connection.
pub(super) async fn look(
    connection: &mut SqliteConnection,
    shared: &Shared,
    names: &[&LockName],
    now: Now,
) -> Result<Vec<(LockName, Result<LockRow>)>, Failed> {
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    shared.tally.count("look");
    let rows = sqlx::query(shared.statements.look.text())
        .bind(json(&names))
        .fetch_all(connection)
        .await
        .map_err(|error| Failed::sqlite(error, Access::Read))?;
    rows.iter()
        .map(|row| rows::lock(row, shared, now).map_err(Failed::corrupt))
        .collect()
}
