//! Statements that read rows, and the statement that sets waiter hints.

use std::time::Duration;

use distlock_core::{LockName, RecordKey};

use super::{
    expressions::{NOBODY, NOW},
    literals::{hex, list},
    set::Statements,
};
use crate::{
    dialect::Reaped,
    wait::{RENEW_HINT_BELOW, SEVERAL_PROCESSES},
};

impl Statements {
    pub(crate) fn read_rows<'a>(&self, names: impl Iterator<Item = &'a LockName>) -> String {
        format!(
            "SELECT {} FROM {} WHERE lock_name IN ({})",
            lock_columns(),
            self.lock,
            list(names.map(|name| name.as_str().as_bytes()))
        )
    }

    /// Two lists of rows: `0` and the key for each row that exists, then `1` and the key for each
    /// row that no other transaction has locked.
    pub(crate) fn there_and_unlocked(&self, table: Reaped, keys: &[&[u8]]) -> String {
        let (name, column) = self.table(table);
        let keys = list(keys.iter().copied());
        let rows = format!("{column} FROM {name} FORCE INDEX (PRIMARY) WHERE {column} IN ({keys})");
        format!("SELECT 0, {rows}; SELECT 1, {rows} FOR UPDATE SKIP LOCKED")
    }

    /// The keys of the rows that no other transaction has locked.
    pub(crate) fn unlocked<'a>(
        &self,
        table: Reaped,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> String {
        let (table, column) = self.table(table);
        // Without `FORCE INDEX`, the optimiser may read and lock all rows of a small table.
        format!(
            "SELECT {column} FROM {table} FORCE INDEX (PRIMARY) WHERE {column} IN ({}) FOR UPDATE \
                SKIP LOCKED",
            list(keys)
        )
    }

    /// Sets this process's waiter hint on held rows. A live hint of another process becomes the
    /// hint of several processes.
    pub(crate) fn set_hints(&self, names: &[Vec<u8>], hint_id: i64, time: Duration) -> String {
        let (micros, renew) = (time.as_micros(), RENEW_HINT_BELOW.as_micros());
        format!(
            "UPDATE {} FORCE INDEX (PRIMARY) \
             SET hint_id = IF(hint_until > {NOW} + {renew}, {SEVERAL_PROCESSES}, {hint_id}), \
             hint_until = {NOW} + {micros} \
             WHERE lock_name IN ({}) AND holder_id <> {NOBODY} \
             AND (hint_id NOT IN ({hint_id}, {SEVERAL_PROCESSES}) OR hint_until <= {NOW} + \
             {renew})",
            self.lock,
            list(names.iter().map(Vec::as_slice))
        )
    }

    /// The held locks of the range, in byte order of their names.
    pub(crate) fn list(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT {} FROM {} WHERE {} AND holder_id <> {NOBODY} AND expires_at > {NOW} \
             ORDER BY lock_name LIMIT {}",
            lock_columns(),
            self.lock,
            range.condition("lock_name"),
            range.limit
        )
    }

    pub(crate) fn get(&self, keys: &[RecordKey]) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE record_key IN \
                ({}) AND deleted = 0",
            self.record,
            list(keys.iter().map(|key| key.as_str().as_bytes()))
        )
    }

    pub(crate) fn scan(&self, range: &Range<'_>) -> String {
        format!(
            "SELECT record_key, version, value, written_at, {NOW} FROM {} WHERE {} AND deleted = 0 \
             ORDER BY record_key LIMIT {}",
            self.record,
            range.condition("record_key"),
            range.limit
        )
    }
}

/// A range of keys in byte order: from `from`, after `after` and below `below`, with at most
/// `limit` rows.
pub(crate) struct Range<'a> {
    pub(crate) from: &'a str,
    pub(crate) after: Option<&'a str>,
    pub(crate) below: Option<String>,
    pub(crate) limit: u32,
}

impl Range<'_> {
    fn condition(&self, column: &str) -> String {
        let mut condition = format!("{column} >= {}", hex(self.from.as_bytes()));
        if let Some(after) = self.after {
            condition += &format!(" AND {column} > {}", hex(after.as_bytes()));
        }
        if let Some(below) = &self.below {
            condition += &format!(" AND {column} < {}", hex(below.as_bytes()));
        }
        condition
    }
}

fn lock_columns() -> String {
    format!(
        "lock_name, holder_id, token, expires_at, acquired_at, holder, meta, hint_id, \
            hint_until, {NOW}"
    )
}
