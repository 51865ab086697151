//! MySQL and MariaDB.

mod connect;
mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod flavour;
mod pool;
mod rows;
mod schema;
mod statements;
mod tables;
mod write;

use crate::sql_store::SqlStore;

/// A MySQL or MariaDB database as a store. [`ServerConfig::product`](crate::ServerConfig::product)
/// is ignored.
pub type MySql = SqlStore<dialect::MySqlDialect>;
