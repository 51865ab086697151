//! The statements of the counters, in the dialect of the server.
//!
//! Invariant: all values are bound as parameters; no statement contains a name of a user.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    MySql,
    Postgres,
    Sqlite,
}

/// The statements in the dialect of the server. The column `account` holds the user's name.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) backend: &'static str,
    /// The statements that create the two tables, unless the tables exist.
    pub(super) tables: [String; 2],
    /// Adds an amount to a user's total. Parameters: user, amount.
    pub(super) add_total: String,
    /// Adds an amount to a conversation's counter. Parameters: user, conversation, amount.
    pub(super) add: String,
    /// Locks the row of a user's total, with an update that keeps the value. SQLite has no `SELECT
    /// ... FOR UPDATE`. Parameter: user.
    pub(super) lock_user: String,
    /// Reads a conversation's counter and the user's total. Parameters: user, conversation.
    pub(super) read: String,
    /// Sets a user's total. Parameters: total, user.
    pub(super) set_total: String,
    /// Sets a conversation's counter to zero. Parameters: user, conversation.
    pub(super) clear: String,
}

impl Statements {
    pub(super) fn new(dialect: Dialect) -> Self {
        let (backend, name, number) = match dialect {
            // VARBINARY compares names byte by byte, trailing spaces included. VARCHAR may ignore
            // case and trailing spaces.
            Dialect::MySql => ("mysql", "VARBINARY(128)", "BIGINT"),
            Dialect::Postgres => ("postgres", "TEXT COLLATE \"C\"", "BIGINT"),
            Dialect::Sqlite => ("sqlite", "TEXT", "INTEGER"),
        };
        let placeholder = |at: u32| match dialect {
            Dialect::Postgres => format!("${at}"),
            Dialect::MySql | Dialect::Sqlite => "?".to_owned(),
        };
        let [one, two, three] = [1, 2, 3].map(placeholder);
        let upsert = |table: &str, key: &str| match dialect {
            Dialect::MySql => "ON DUPLICATE KEY UPDATE unread = unread + VALUES(unread)".to_owned(),
            Dialect::Postgres | Dialect::Sqlite => {
                format!(
                    "ON CONFLICT ({key}) DO UPDATE SET unread = {table}.unread + excluded.unread"
                )
            }
        };
        Self {
            backend,
            tables: [
                format!(
                    "CREATE TABLE IF NOT EXISTS distributed_unread_total (
                     account {name} NOT NULL PRIMARY KEY, unread {number} NOT NULL)"
                ),
                format!(
                    "CREATE TABLE IF NOT EXISTS distributed_unread (
                     account {name} NOT NULL, conversation {name} NOT NULL,
                     unread {number} NOT NULL, PRIMARY KEY (account, conversation))"
                ),
            ],
            add_total: format!(
                "INSERT INTO distributed_unread_total (account, unread) VALUES ({one}, {two}) {}",
                upsert("distributed_unread_total", "account")
            ),
            add: format!(
                "INSERT INTO distributed_unread (account, conversation, unread)
                 VALUES ({one}, {two}, {three}) {}",
                upsert("distributed_unread", "account, conversation")
            ),
            lock_user: format!(
                "UPDATE distributed_unread_total SET unread = unread WHERE account = {one}"
            ),
            read: format!(
                "SELECT c.unread, t.unread FROM distributed_unread c
                 JOIN distributed_unread_total t ON t.account = c.account
                 WHERE c.account = {one} AND c.conversation = {two}"
            ),
            set_total: format!(
                "UPDATE distributed_unread_total SET unread = {one} WHERE account = {two}"
            ),
            clear: format!(
                "UPDATE distributed_unread SET unread = 0
                 WHERE account = {one} AND conversation = {two}"
            ),
        }
    }
}
