//! The statements of one table prefix, built once for each opened store.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{
    changes::{ACQUIRE, CREATE, DELETE, FORCE, HAND_OVER, RELEASE, RENEW, REPLACE},
    queries::{
        CLAIM_REAPING, GET, IDLE_LOCKS, IDLE_RECORDS, LEAVE_QUEUES, LIST, LOCK_COLUMNS, LOOK, META,
        READ_QUEUE, REAP_LOCKS, REAP_RECORDS, REMOVE_EXPIRED_ENTRIES, RENEW_QUEUE_ENTRIES,
        ROW_COUNTS, SCAN, SCHEMA_PARTS, SET_HINTS, TABLES_PRESENT,
    },
};

/// The statements of one table prefix.
pub(crate) struct Statements {
    pub(crate) acquire: Sql,
    pub(crate) release: Sql,
    /// Acquire and release in one transaction, so that they share one sync to the disk. The sync
    /// costs more than both statements. The transaction has four results; the second result and the
    /// third result are the numbers of rows that the two statements changed.
    pub(crate) acquire_and_release: Sql,
    pub(crate) renew: Sql,
    pub(crate) hand_over: Sql,
    pub(crate) force: Sql,
    pub(crate) look: Sql,
    pub(crate) set_hints: Sql,
    pub(crate) renew_queue_entries: Sql,
    pub(crate) read_queue: Sql,
    pub(crate) leave_queues: Sql,
    pub(crate) remove_expired_entries: Sql,
    pub(crate) list: Sql,
    pub(crate) create: Sql,
    pub(crate) replace: Sql,
    pub(crate) delete: Sql,
    pub(crate) get: Sql,
    pub(crate) scan: Sql,
    pub(crate) claim_reaping: Sql,
    pub(crate) idle_locks: Sql,
    pub(crate) reap_locks: Sql,
    pub(crate) idle_records: Sql,
    pub(crate) reap_records: Sql,
    pub(crate) meta: Sql,
    pub(crate) tables_present: Sql,
    pub(crate) schema_parts: Sql,
    pub(crate) row_counts: Sql,
    /// The text before the tables' names.
    prefix: String,
}

/// The text of one statement. A clone shares the text.
#[derive(Clone)]
pub(crate) struct Sql(Arc<str>);

impl Sql {
    pub(crate) fn text(&self) -> SqlStr {
        // Safe: the text is one of the constants of this folder. Only the prefix varies, and the
        // prefix contains only `[a-z0-9_]`.
        AssertSqlSafe(Arc::clone(&self.0)).into_sql_str()
    }
}

impl Statements {
    /// The caller has checked `prefix` by [`SqliteConfig::check`](crate::SqliteConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let sql = |text: &str| Sql(prefixed(text, prefix).into());
        Self {
            acquire: sql(&named(ACQUIRE)),
            release: sql(&named(RELEASE)),
            acquire_and_release: sql(&named(&format!(
                "BEGIN IMMEDIATE; {ACQUIRE}; {RELEASE}; COMMIT"
            ))),
            renew: sql(RENEW),
            hand_over: sql(HAND_OVER),
            force: sql(FORCE),
            look: sql(&LOOK.replace("{lock_columns}", LOCK_COLUMNS)),
            set_hints: sql(SET_HINTS),
            renew_queue_entries: sql(&named(RENEW_QUEUE_ENTRIES)),
            read_queue: sql(READ_QUEUE),
            leave_queues: sql(LEAVE_QUEUES),
            remove_expired_entries: sql(REMOVE_EXPIRED_ENTRIES),
            list: sql(&LIST.replace("{lock_columns}", LOCK_COLUMNS)),
            create: sql(CREATE),
            replace: sql(REPLACE),
            delete: sql(DELETE),
            get: sql(GET),
            scan: sql(SCAN),
            claim_reaping: sql(CLAIM_REAPING),
            idle_locks: sql(IDLE_LOCKS),
            reap_locks: sql(REAP_LOCKS),
            idle_records: sql(IDLE_RECORDS),
            reap_records: sql(REAP_RECORDS),
            meta: sql(META),
            tables_present: sql(TABLES_PRESENT),
            schema_parts: sql(SCHEMA_PARTS),
            row_counts: sql(ROW_COUNTS),
            prefix: prefix.to_owned(),
        }
    }

    /// The text of a migration with the table prefix added to every name.
    pub(crate) fn script(&self, text: &str) -> SqlStr {
        AssertSqlSafe(prefixed(text, &self.prefix)).into_sql_str()
    }
}

/// Adds the table prefix to every name. In the statements, all names of tables and indexes begin
/// with `distributed_`, and no other word does.
fn prefixed(text: &str, prefix: &str) -> String {
    text.replace("distributed_", &format!("{prefix}distributed_"))
}

/// The text with `$7` in the place of `?7`, and so on. The two statements of one transaction do not
/// use the same numbers. With `?7`, SQLite also counts the unused numbers below 7, and the driver
/// would use up values for these numbers. With `$7`, the driver finds the value by its number.
fn named(text: &str) -> String {
    text.replace('?', "$")
}
