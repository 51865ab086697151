//! The options of a ZooKeeper store. The options are checked before a session is opened. Two checks
//! come later, while the store is opened: the contents of TLS files, and whether `tick_time` fits
//! the granted session.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod url;

pub use options::{AclPolicy, Credentials, Mechanism, TlsFiles, ZooKeeperConfig};
