//! The statements of one table prefix, built once for each opened store.

use std::{fmt::Write as _, sync::Arc};

use distlock_backend_kit::operation::OperationKind;
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{
    changes::{ACQUIRE, CREATE, DELETE, FORCE, HAND_OVER, RELEASE, RENEW, REPLACE, insert, update},
    queries::{
        CLAIM_REAPING, GET, IDLE_LOCKS, IDLE_RECORDS, LEAVE_QUEUES, LIST, LOCK_COLUMNS, LOOK, META,
        READ_QUEUE, REAP_LOCKS, REAP_RECORDS, REMOVE_EXPIRED_ENTRIES, RENEW_QUEUE_ENTRIES,
        ROW_COUNTS, SCAN, SCHEMA, SCHEMA_PARTS, SET_HINT, SET_HINTS, TABLES_PRESENT, VERSIONS,
    },
};

/// The statements of one table prefix.
pub(crate) struct Statements {
    one: Batches,
    many: Batches,
    pub(crate) look: Sql,
    pub(crate) versions: Sql,
    pub(crate) set_hints: Sql,
    pub(crate) set_hint: Sql,
    pub(crate) renew_queue_entries: Sql,
    pub(crate) read_queue: Sql,
    pub(crate) leave_queues: Sql,
    pub(crate) remove_expired_entries: Sql,
    pub(crate) list: Sql,
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

struct Batches {
    acquire: Sql,
    renew: Sql,
    release: Sql,
    hand_over: Sql,
    force: Sql,
    create: Sql,
    replace: Sql,
    delete: Sql,
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
    /// The caller has checked `prefix` by [`ServerConfig::check`](crate::ServerConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let sql = |text: &str| Sql(prefixed(text, prefix).into());
        let batches = |lone: bool| Batches {
            acquire: sql(&insert(&ACQUIRE, lone)),
            renew: sql(&update(&RENEW, lone)),
            release: sql(&update(&RELEASE, lone)),
            hand_over: sql(&update(&HAND_OVER, lone)),
            force: sql(&update(&FORCE, lone)),
            create: sql(&insert(&CREATE, lone)),
            replace: sql(&update(&REPLACE, lone)),
            delete: sql(&update(&DELETE, lone)),
        };
        Self {
            one: batches(true),
            many: batches(false),
            look: sql(&LOOK.replace("{lock_columns}", LOCK_COLUMNS)),
            versions: sql(VERSIONS),
            set_hints: sql(SET_HINTS),
            set_hint: sql(SET_HINT),
            renew_queue_entries: sql(RENEW_QUEUE_ENTRIES),
            read_queue: sql(READ_QUEUE),
            leave_queues: sql(LEAVE_QUEUES),
            remove_expired_entries: sql(REMOVE_EXPIRED_ENTRIES),
            list: sql(&LIST.replace("{lock_columns}", LOCK_COLUMNS)),
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

    /// The statement of a batch. The statement of a `lone` operation waits for a locked row; the
    /// statement of several operations leaves locked rows out.
    pub(crate) fn batch(&self, kind: OperationKind, lone: bool) -> &Sql {
        let batches = if lone { &self.one } else { &self.many };
        match kind {
            OperationKind::Renew => &batches.renew,
            OperationKind::Release => &batches.release,
            OperationKind::HandOver => &batches.hand_over,
            OperationKind::Acquire => &batches.acquire,
            OperationKind::ForceRelease => &batches.force,
            OperationKind::Create => &batches.create,
            OperationKind::Replace => &batches.replace,
            OperationKind::Delete => &batches.delete,
        }
    }

    /// The text of a migration with the table prefix added to every name.
    pub(crate) fn script(&self, text: &str) -> String {
        prefixed(text, &self.prefix)
    }

    /// An expression for the schema of the tables: `known`, or the first schema of the
    /// `search_path` that has one of the tables. If no schema has a table, the tables are created
    /// in the first schema of the `search_path` that exists.
    pub(crate) fn schema(&self, known: Option<&str>) -> String {
        match known {
            // The name is sent as hexadecimal bytes, because the meaning of a backslash in a quoted
            // text depends on a setting.
            Some(known) => {
                let hex = known.bytes().fold(String::new(), |mut hex, byte| {
                    let _ = write!(hex, "{byte:02x}");
                    hex
                });
                format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
            }
            None => prefixed(SCHEMA, &self.prefix),
        }
    }

    /// The channel of notifications.
    pub(crate) fn channel(&self) -> String {
        prefixed("distributed_lock", &self.prefix)
    }
}

/// Adds the table prefix to every name. In the statements, all names of tables and indexes begin
/// with `distributed_`, and no other word does.
fn prefixed(text: &str, prefix: &str) -> String {
    text.replace("distributed_", &format!("{prefix}distributed_"))
}
