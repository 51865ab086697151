//! The statements of one table prefix.
//!
//! The type is empty of SQL: each kind of statement is in a file of its own.

use super::prepared::PreparedStatements;
use crate::dialect::{Reaped, mysql::flavour::Flavour};

/// The statements of one table prefix.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) prefix: String,
    pub(crate) lock: String,
    pub(crate) record: String,
    pub(crate) meta: String,
    pub(crate) line: String,
    /// For MariaDB and for MySQL.
    prepared: [PreparedStatements; 2],
}

impl Statements {
    /// The caller has checked `prefix` by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let table = |name: &str| format!("{prefix}distributed_{name}");
        let prepared = |flavour| PreparedStatements::new(&table("lock"), flavour);
        Self {
            prefix: prefix.to_owned(),
            prepared: [prepared(Flavour::MariaDb), prepared(Flavour::MySql)],
            lock: table("lock"),
            record: table("record"),
            meta: table("meta"),
            line: table("line"),
        }
    }

    /// The prepared statements of a product.
    pub(crate) const fn prepared(&self, flavour: Flavour) -> &PreparedStatements {
        let [mariadb, mysql] = &self.prepared;
        match flavour {
            Flavour::MariaDb => mariadb,
            Flavour::MySql => mysql,
        }
    }

    pub(super) fn table(&self, table: Reaped) -> (&str, &'static str) {
        match table {
            Reaped::Locks => (&self.lock, "lock_name"),
            Reaped::Records => (&self.record, "record_key"),
        }
    }
}
