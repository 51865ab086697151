//! The options of a ZooKeeper store. All options are checked before a session is opened. The
//! contents of TLS files, and whether `tick_time` fits the granted session, are checked when it is
//! opened.

mod check;
mod options;
#[cfg(test)]
mod tests;
mod url;

pub use options::{AclPolicy, Credentials, Mechanism, TlsFiles, ZooKeeperConfig};
