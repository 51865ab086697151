//! Private PostgreSQL servers.

mod access;
mod installation;
mod password;
mod paused;
mod server;
#[cfg(test)]
pub(super) mod tests;

pub(super) use self::{installation::user, server::READY};
pub use self::{paused::Paused, server::PostgresServer};
