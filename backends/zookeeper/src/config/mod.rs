//! The options of a ZooKeeper store. All are checked before anything is opened; the contents of TLS
//! files and `tick_time` are also checked against the servers later.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod url;

pub use options::{AclPolicy, Credentials, Mechanism, TlsFiles, ZooKeeperConfig};
