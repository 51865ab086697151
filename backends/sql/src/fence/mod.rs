//! The checking half of fencing, in the caller's own transaction.
//!
//! The bar is a row of a small table in the caller's database. `admit` raises it or refuses; the caller changes its data in
//! the same transaction, so that no earlier holder can write in between or afterwards. There is one module for each dialect.
//!
//! A row that carries its own bar in two columns needs no second table: see
//! [`FenceGuard::SQL_CONDITION`]; for Postgres, which numbers its parameters, `postgres::sql_condition`.

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use distlock_core::{Fence, FenceError, FenceGuard};

/// The bar of a resource that nobody has used yet.
fn unseen() -> Result<String, FenceError> {
    Ok(FenceGuard::new().to_text()?)
}

/// The bar after `fence` was let through.
fn raised(resource: &str, state: &str, fence: &Fence) -> Result<String, FenceError> {
    FenceGuard::raised(Some(state), resource, fence)
}
