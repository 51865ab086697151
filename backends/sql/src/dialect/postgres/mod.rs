//! Postgres: one primary, any number of client hosts.

mod connect;
mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod listen;
mod pool;
mod rows;
mod schema;
mod statements;
mod tables;
mod write;

use crate::sql_store::SqlStore;

/// A Postgres database as a store.
pub type Postgres = SqlStore<dialect::PostgresDialect>;
