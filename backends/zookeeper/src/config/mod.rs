//! The options of a ZooKeeper store.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod url;

pub use options::{AclPolicy, Credentials, Mechanism, Secret, TlsFiles, ZooKeeperConfig};
