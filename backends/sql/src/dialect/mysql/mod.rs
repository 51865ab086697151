//! MySQL and MariaDB.

mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod group;
mod inventory;
mod link;
mod literals;
mod open;
mod prepared;
mod rows;
mod server;
mod shape;
mod statements;
mod tables;
mod wire;
mod write;

pub use self::open::MySql;
