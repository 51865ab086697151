//! Postgres: one primary, any number of hosts.

mod context;
mod dialect;
mod doctor;
pub(crate) mod errors;
pub mod fence;
mod link;
mod listen;
mod open;
mod rows;
mod session;
mod shape;
mod statements;
mod tables;
mod write;

pub use self::open::Postgres;
