//! Private MariaDB and MySQL servers.

mod access;
mod installation;
mod product;
mod server;
#[cfg(test)]
mod tests;

pub use self::{product::Product, server::MySqlServer};
