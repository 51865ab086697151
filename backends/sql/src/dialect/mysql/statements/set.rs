//! The statements of one table prefix.
//!
//! The type is empty of SQL: each kind of statement is in a file of its own.

use crate::dialect::Reaped;

/// The names of the tables of one prefix, which every statement is built from.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) prefix: String,
    pub(crate) lock: String,
    pub(crate) record: String,
    pub(crate) meta: String,
    pub(crate) line: String,
}

impl Statements {
    /// The caller has checked `prefix` by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let table = |name: &str| format!("{prefix}distributed_{name}");
        Self {
            prefix: prefix.to_owned(),
            lock: table("lock"),
            record: table("record"),
            meta: table("meta"),
            line: table("line"),
        }
    }

    pub(super) fn table(&self, table: Reaped) -> (&str, &'static str) {
        match table {
            Reaped::Locks => (&self.lock, "lock_name"),
            Reaped::Records => (&self.record, "record_key"),
        }
    }
}
