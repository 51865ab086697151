//! Postgres: one primary, any number of client hosts.

mod connect;
mod context;
mod dialect;
mod doctor;
mod driver;
mod errors;
pub mod fence;
mod listen;
mod lookup;
mod open;
pub(crate) mod options;
mod pool;
mod rows;
mod schema;
mod session;
mod statements;
mod tables;
mod timeline;
mod write;

pub use self::{driver::PostgresDriver, open::Postgres};
