//! A statement with its values, which is sent in one of two ways.
//!
//! In a text, each value replaces its `?`, as a number or as hexadecimal digits. For a prepared
//! statement, only the values are sent, and the server does not parse the statement again: parsing
//! costs a server as much as carrying the statement out.

use std::{borrow::Cow, sync::Arc};

use distlock_core::{LockName, Meta, OwnerId, Ttl};
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr as _, mysql::MySqlArguments, query::Query};

use super::literals::{push_hex, push_text};

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
