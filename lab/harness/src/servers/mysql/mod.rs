//! Private MariaDB and MySQL servers.

mod access;
mod installation;
mod server;
#[cfg(test)]
mod tests;

pub use self::{installation::Product, server::MySqlServer};
