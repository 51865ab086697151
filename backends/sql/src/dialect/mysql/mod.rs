//! MySQL and MariaDB.

mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod flavour;
mod lookup;
mod pool;
mod raw_connection;
mod rows;
mod schema;
mod server;
mod statements;
mod tables;
mod write;

use crate::sql_store::SqlStore;

/// A MySQL or MariaDB database as a store. [`ServerConfig::product`](crate::ServerConfig::product)
/// is ignored.
pub type MySql = SqlStore<dialect::MySqlDialect>;
