//! SQLite: one file, processes of one host.

mod boot;
mod connect;
mod context;
mod dialect;
mod doctor;
mod driver;
mod errors;
pub mod fence;
mod file;
mod options;
mod pool;
mod rows;
mod schema;
mod statements;
mod tables;
#[cfg(target_os = "linux")]
mod watch;
mod write;

pub use self::{driver::SqliteDriver, options::SqliteConfig};
use crate::sql_store::SqlStore;

/// A SQLite file as a store. Any number of processes of one host may open the same file.
///
/// A store has three connections: for batches, for hints and queue entries, and for reads. A health
/// check opens its own connection.
pub type Sqlite = SqlStore<dialect::SqliteDialect>;
