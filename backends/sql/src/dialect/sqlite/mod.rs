//! SQLite: one file, processes of one host.

mod boot;
mod busy_retry;
mod connect;
mod connection;
mod context;
mod dialect;
mod doctor;
mod driver;
mod errors;
pub mod fence;
mod file;
mod lookup;
mod open;
mod options;
mod parameters;
mod read_connection;
mod rows;
mod schema;
mod statements;
mod tables;
mod write;

pub use self::{driver::SqliteDriver, open::Sqlite, options::SqliteConfig};
