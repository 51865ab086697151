//! SQLite: one file, processes of one host.

mod batches;
mod boot;
mod context;
mod dialect;
mod doctor;
mod errors;
pub mod fence;
mod file;
mod group;
mod link;
mod open;
mod options;
mod reader;
mod rows;
mod shape;
mod statements;
mod tables;
mod write;

pub use self::{open::Sqlite, options::SqliteConfig};
