//! Fencing in a SQLite transaction.

use distlock_core::{Fence, FenceError};
use sqlx::SqliteConnection;

use crate::{
    fence::{initial_state, raised_state},
    statement_error::{Access, StatementError},
};

/// Creates the table that [`admit`] uses, if the table is absent. Run this statement once, with
/// your own migrations.
pub const CREATE_TABLE: &str = "
CREATE TABLE IF NOT EXISTS distributed_fence (
    resource TEXT NOT NULL PRIMARY KEY,
    state    TEXT NOT NULL
) STRICT";

/// Inserts the row, or updates it without a change. The transaction then holds the file's write
/// lock before the fence state is read.
const READ: &str = "
INSERT INTO distributed_fence (resource, state) VALUES (?1, ?2)
ON CONFLICT (resource) DO UPDATE SET state = state
RETURNING state";

const WRITE: &str = "UPDATE distributed_fence SET state = ?2 WHERE resource = ?1";

/// Admits the latest holder to `resource` and raises the fence state, or refuses and changes
/// nothing. See [`fence`](crate::fence).
///
/// All statements run on `connection`, in the transaction that is open there. The raised state is
/// valid once that transaction is committed. After a refusal, roll back.
///
/// # Errors
///
/// [`FenceError::Refused`] for an earlier holder; [`FenceError::Failed`] when the table cannot be
/// used, with [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt) when its content cannot be
/// read.
///
/// # Cancel safety
///
/// Dropping the future may leave the state raised inside the open transaction: roll back.
pub async fn admit(
    connection: &mut SqliteConnection,
    resource: &str,
    fence: &Fence,
) -> Result<(), FenceError> {
    let rows: Vec<(String,)> = sqlx::query_as(READ)
        .bind(resource.to_owned())
        .bind(initial_state()?)
        // All rows are fetched, because SQLite completes the statement only after the last row.
        .fetch_all(&mut *connection)
        .await
        .map_err(failed)?;
    let state = rows.into_iter().next().map(|(state,)| state);
    let raised = raised_state(resource, &state.unwrap_or_default(), fence)?;
    sqlx::query(WRITE)
        .bind(resource.to_owned())
        .bind(raised)
        .execute(connection)
        .await
        .map(drop)
        .map_err(failed)
}

fn failed(error: sqlx::Error) -> FenceError {
    FenceError::Failed(
        StatementError::sqlite(error, Access::Write)
            .into_error()
            .on("sqlite"),
    )
}
