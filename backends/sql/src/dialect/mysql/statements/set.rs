//! The statements of one table prefix.
//!
//! This file contains only the names of the tables. The other files of this folder add the
//! statements, one file for each kind.

use crate::dialect::Reaped;

/// The names of the tables with one prefix. Every statement is built with these names.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) prefix: String,
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) record: String,
    pub(crate) meta: String,
}

impl Statements {
    /// The caller has checked `prefix` by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let table = |name: &str| format!("{prefix}distributed_{name}");
        Self {
            prefix: prefix.to_owned(),
            lock: table("lock"),
            queue: table("queue"),
            record: table("record"),
            meta: table("meta"),
        }
    }

    pub(super) fn table(&self, table: Reaped) -> (&str, &'static str) {
        match table {
            Reaped::Locks => (&self.lock, "lock_name"),
            Reaped::Records => (&self.record, "record_key"),
        }
    }
}
