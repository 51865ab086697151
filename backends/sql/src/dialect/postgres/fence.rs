//! Fencing in a Postgres transaction.

use distlock_core::{Fence, FenceError};
use sqlx::PgConnection;

use crate::{
    fence::{initial_state, raised_state},
    statement_error::{Access, StatementError},
};

/// Creates the table that [`admit`] uses, if the table is absent. Run this statement once, with
/// your own migrations.
pub const CREATE_TABLE: &str = "
CREATE TABLE IF NOT EXISTS distributed_fence (
    resource text COLLATE \"C\" NOT NULL PRIMARY KEY,
    state    text NOT NULL
)";

/// Inserts the row, or updates it without a change. The transaction then holds the row's lock
/// before the fence state is read.
const READ: &str = "
INSERT INTO distributed_fence AS f (resource, state) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET state = f.state
RETURNING state";

const WRITE: &str = "UPDATE distributed_fence SET state = $2 WHERE resource = $1";

/// [`FenceGuard::SQL_CONDITION`](distlock_core::FenceGuard::SQL_CONDITION) with numbered parameters
/// for Postgres. `token` is the number of the token's parameter, `owner` the number of the owner's
/// parameter. The same statement can also write these two parameters to the row.
///
/// ```
/// # use distlock_sql as distlock;
/// let condition = distlock::fence::postgres::sql_condition(3, 4);
/// let pay = format!(
///     "UPDATE account SET balance = $1, fence_token = $3, fence_owner = $4
///      WHERE id = $2 AND {condition}"
/// );
/// assert!(pay.ends_with("AND (fence_token < $3 OR (fence_token = $3 AND fence_owner = $4))"));
/// ```
#[must_use]
pub fn sql_condition(token: u16, owner: u16) -> String {
    format!("(fence_token < ${token} OR (fence_token = ${token} AND fence_owner = ${owner}))")
}

/// Admits the latest holder to `resource` and raises the fence state, or refuses and changes
/// nothing. See [`fence`](crate::fence).
///
/// All statements run on `connection`, in the transaction that is open there. The raised state is
/// valid once that transaction is committed. After a refusal, roll back. Every isolation level is
/// safe. Above READ COMMITTED, the database may report a serialization failure; then repeat the
/// whole transaction.
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
    connection: &mut PgConnection,
    resource: &str,
    fence: &Fence,
) -> Result<(), FenceError> {
    let state: String = sqlx::query_scalar(READ)
        .bind(resource.to_owned())
        .bind(initial_state()?)
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    let raised = raised_state(resource, &state, fence)?;
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
        StatementError::postgres(error, Access::Write)
            .into_error()
            .on("postgres"),
    )
}
