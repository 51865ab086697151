//! Fencing in a MySQL or MariaDB transaction.

use distlock_core::{Fence, FenceError};
use sqlx::{MySqlConnection, Row as _};

use crate::{
    fence::{initial_state, raised_state},
    statement_error::{Access, StatementError},
};

/// Creates the table that [`admit`] uses, if the table is absent. Run this statement once, with
/// your own migrations.
pub const CREATE_TABLE: &str = "
CREATE TABLE IF NOT EXISTS distributed_fence (
    resource VARBINARY(255) NOT NULL PRIMARY KEY,
    state    TEXT           NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";

/// Inserts the row, or updates it without a change. The transaction then holds the row's lock
/// before the fence state is read, at every isolation level.
const TOUCH: &str = "
INSERT INTO distributed_fence (resource, state) VALUES (?, ?) ON DUPLICATE KEY UPDATE state = \
    state";

const READ: &str = "SELECT state FROM distributed_fence WHERE resource = ? FOR UPDATE";

const WRITE: &str = "UPDATE distributed_fence SET state = ? WHERE resource = ?";

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
    connection: &mut MySqlConnection,
    resource: &str,
    fence: &Fence,
) -> Result<(), FenceError> {
    sqlx::query(TOUCH)
        .bind(resource.as_bytes())
        .bind(initial_state()?)
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    let row = sqlx::query(READ)
        .bind(resource.as_bytes())
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    // The state is read as bytes, because the driver reports text with a binary collation as binary
    // data.
    let state: Vec<u8> = row.try_get_unchecked(0).map_err(failed)?;
    let raised = raised_state(resource, &String::from_utf8_lossy(&state), fence)?;
    sqlx::query(WRITE)
        .bind(raised)
        .bind(resource.as_bytes())
        .execute(connection)
        .await
        .map(drop)
        .map_err(failed)
}

fn failed(error: sqlx::Error) -> FenceError {
    FenceError::Failed(
        StatementError::mysql(error, Access::Write)
            .into_error()
            .on("mysql"),
    )
}
