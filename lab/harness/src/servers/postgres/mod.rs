//! Private PostgreSQL servers.

mod access;
mod installation;
mod paused;
mod server;
#[cfg(test)]
pub(super) mod tests;

pub(super) use self::{installation::server_user, server::READY_LIMIT};
pub use self::{paused::Paused, server::PostgresServer};
