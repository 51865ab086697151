//! Checks fencing tokens in the caller's own transaction.
//!
//! The fence state of a resource is a row of a small table in the caller's database. `admit` raises
//! the state or refuses the caller. The caller changes its data in the same transaction: an earlier
//! holder cannot write between the check and the change, or after the change. There is one module
//! for each dialect.
//!
//! A row that carries its own fence state in two columns needs no second table: see
//! [`FenceGuard::SQL_CONDITION`], and `postgres::sql_condition` for Postgres, which numbers its
//! parameters.

#[cfg(feature = "mysql")]
pub use crate::dialect::mysql::fence as mysql;
#[cfg(feature = "postgres")]
pub use crate::dialect::postgres::fence as postgres;
#[cfg(feature = "sqlite")]
pub use crate::dialect::sqlite::fence as sqlite;
use distlock_core::{Fence, FenceError, FenceGuard};

/// The fence state of a resource that nobody has used yet.
pub(crate) fn initial_state() -> Result<String, FenceError> {
    Ok(FenceGuard::new().to_text()?)
}

/// The fence state after `fence` was admitted.
pub(crate) fn raised_state(
    resource: &str,
    state: &str,
    fence: &Fence,
) -> Result<String, FenceError> {
    FenceGuard::raised(Some(state), resource, fence)
}
