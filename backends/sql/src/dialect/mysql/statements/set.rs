//! The parts of statements: the names of the tables with their prefix, expressions that several
//! statements share, and a statement with its values, which is sent in one of two ways.
//!
//! In a text, each value replaces its `?`, as a number or as hexadecimal digits. So no value
//! contains a quote, needs an escape or depends on the connection's character set. For a prepared
//! statement, only the values are sent, and the server does not parse the statement again: parsing
//! costs a server as much as carrying the statement out.

use std::{borrow::Cow, sync::Arc};

use distlock_core::{LockName, Meta, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr as _, mysql::MySqlArguments, query::Query};

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

/// The time when the statement began, in microseconds since 1970, UTC. The value does not depend on
/// the session's time zone.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The time when the statement has locked the row, after any wait for other transactions. Only
/// `SYSDATE` returns this time, but `SYSDATE` has no form in UTC. So the expression adds the
/// difference between `SYSDATE` and `NOW` to the UTC time when the statement began.
pub(super) const ROW_NOW: &str = "(TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6)) \
    + TIMESTAMPDIFF(MICROSECOND,NOW(6),SYSDATE(6)))";

/// The owner in a free row. The value has the length of an owner id, because a server changes a row
/// in place if its length stays the same, and that is much cheaper than moving the row. `NULL`
/// means a free row too; a change by hand may have written `NULL`.
pub(crate) const NOBODY: &str = "x'00000000000000000000000000000000'";

/// A hand-over adds this number to the token in its report when another process waits. Tokens are
/// far smaller than this number.
pub(crate) const WANTED: u64 = 1 << 60;

/// The condition that a row is free or its lease has expired. `table` is the text before each
/// column: a table's name with a dot, or empty.
pub(super) fn free_condition(table: &str, now: &str) -> String {
    format!(
        "({table}expires_at <= {now} OR {table}holder_id = {NOBODY} OR {table}holder_id IS NULL)"
    )
}

pub(super) fn idle_condition(table: Reaped, reap_after: u128) -> String {
    match table {
        // The first condition lets the server use the index on `expires_minute`.
        Reaped::Locks => format!(
            "expires_minute <= ({NOW} - {reap_after}) DIV 60000000 AND expires_at <= {NOW} - \
                {reap_after} AND token < {NOW}"
        ),
        Reaped::Records => {
            format!("deleted = 1 AND written_at <= {NOW} - {reap_after} AND version < {NOW}")
        }
    }
}

/// Bytes, as `x'61'`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2 + 3);
    push_hex(&mut out, bytes);
    out
}

/// Appends bytes to a statement.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    out.reserve(bytes.len() * 2 + 3);
    out.push_str("x'");
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            out.push(char::from(b"0123456789abcdef"[usize::from(half)]));
        }
    }
    out.push('\'');
}

/// Appends text to a statement, for a column of text.
pub(crate) fn push_text(out: &mut String, text: &str) {
    out.push_str("_utf8mb4 ");
    push_hex(out, text.as_bytes());
}

/// The elements of a list for `IN (..)`.
pub(crate) fn list<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let mut out = String::new();
    for value in values {
        if !out.is_empty() {
            out.push(',');
        }
        push_hex(&mut out, value);
    }
    out
}

/// A prepared statement with its values.
type PreparedQuery<'q> = Query<'q, MySql, MySqlArguments>;

/// One statement: its text, with a `?` for each value, and the values.
pub(crate) struct Statement<'a> {
    text: String,
    values: Vec<Value<'a>>,
    /// Whether the statement is sent so often that preparing it is worth an additional request.
    pub(crate) is_frequent: bool,
}

/// A value of a statement.
pub(crate) enum Value<'a> {
    Bytes(Cow<'a, [u8]>),
    Text(Option<&'a str>),
    Number(i64),
}

impl<'a> Statement<'a> {
    pub(super) fn new(text: String, values: Vec<Value<'a>>) -> Self {
        Self {
            text,
            values,
            is_frequent: false,
        }
    }

    pub(super) fn frequent(mut self) -> Self {
        self.is_frequent = true;
        self
    }

    /// The statement in its prepared form.
    pub(in crate::dialect::mysql) fn prepared(&self) -> PreparedQuery<'_> {
        // Safe: only the table prefix varies in these texts, and the prefix contains only
        // `[a-z0-9_]`.
        let text = AssertSqlSafe(Arc::<str>::from(self.text.as_str())).into_sql_str();
        let query = sqlx::query(text);
        self.values.iter().fold(query, |query, value| match value {
            Value::Bytes(bytes) => query.bind(bytes.as_ref()),
            Value::Text(text) => query.bind(*text),
            Value::Number(number) => query.bind(*number),
        })
    }

    /// The statement as text, with each value in the place of its `?`.
    pub(crate) fn to_text(&self) -> String {
        let mut parts = self.text.split('?');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (value, part) in self.values.iter().zip(parts) {
            match value {
                Value::Bytes(bytes) => push_hex(&mut text, bytes),
                Value::Text(Some(value)) => push_text(&mut text, value),
                Value::Text(None) => text.push_str("NULL"),
                Value::Number(number) => text.push_str(&number.to_string()),
            }
            text.push_str(part);
        }
        text
    }
}

impl<'a> From<&'a LockName> for Value<'a> {
    fn from(name: &'a LockName) -> Self {
        Self::Bytes(name.as_str().as_bytes().into())
    }
}

impl<'a> From<&'a OwnerId> for Value<'a> {
    fn from(owner: &'a OwnerId) -> Self {
        Self::Bytes(owner.as_uuid().as_bytes().as_slice().into())
    }
}

impl<'a> From<&'a Option<Meta>> for Value<'a> {
    fn from(meta: &'a Option<Meta>) -> Self {
        Self::Text(meta.as_ref().map(Meta::as_str))
    }
}

/// The value is in microseconds.
impl From<Ttl> for Value<'_> {
    fn from(ttl: Ttl) -> Self {
        Self::Number((ttl.as_millis() * 1000).cast_signed())
    }
}

/// A token or version.
impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_holds_hexadecimal_digits_only() {
        assert_eq!(hex(b"a'\\\0"), "x'61275c00'");
        assert_eq!(hex(b""), "x''");
        let mut text = String::new();
        push_text(&mut text, "\u{e9}\"");
        assert_eq!(text, "_utf8mb4 x'c3a922'");
        assert_eq!(list([b"a".as_slice(), b"b"].into_iter()), "x'61',x'62'");
    }

    #[test]
    fn in_a_text_each_value_replaces_its_question_mark() {
        let values = vec![
            Value::Bytes(b"a?".as_slice().into()),
            Value::Text(Some("?")),
            Value::Text(None),
            Value::Number(-7),
        ];
        let statement = Statement::new("f(?, ?, ?) = ?;".to_owned(), values);
        assert_eq!(
            statement.to_text(),
            "f(x'613f', _utf8mb4 x'3f', NULL) = -7;"
        );
    }
}
