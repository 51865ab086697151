//! Postgres: one primary, any number of client hosts.

mod connect;
mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod listen;
mod lookup;
mod pool;
mod rows;
mod schema;
mod session;
mod statements;
mod tables;
mod timeline;
mod write;

use crate::sql_store::SqlStore;

/// A Postgres database as a store.
pub type Postgres = SqlStore<dialect::PostgresDialect>;
