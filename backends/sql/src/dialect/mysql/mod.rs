//! MySQL and MariaDB.

mod context;
mod dialect;
mod doctor;
mod driver;
mod errors;
pub mod fence;
mod flavour;
mod lookup;
mod open;
pub(crate) mod options;
mod pool;
mod raw_connection;
mod rows;
mod schema;
mod server;
mod statements;
mod tables;
mod write;

pub use self::{driver::MySqlDriver, open::MySql};
