//! The statements of one table prefix, built once for each opened store.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::{
    changes::{
        ACQUIRE, CREATE, DELETE, FORCE, FREE, HAND_OVER, RELEASE, RENEW, REPLACE, TAKE,
        take_and_free,
    },
    inventory::{META, ROW_COUNTS, SCHEMA_PARTS, TABLES_PRESENT},
    queries::{GET, LIST, LOOK, SCAN, SET_HINTS},
    queue::{LEAVE_QUEUES, REMOVE_EXPIRED_ENTRIES, RENEW_QUEUE_ENTRIES},
    reaping::{CLAIM_REAPING, IDLE_LOCKS, IDLE_RECORDS, REAP_LOCKS, REAP_RECORDS},
    sources::{ALIKE, LEASES, MANY, ONE, filled},
};

/// The statements of one table prefix.
pub(crate) struct Statements {
    pub(crate) take_one: Sql,
    pub(crate) take_alike: Sql,
    pub(crate) take: Sql,
    pub(crate) acquire: Sql,
    pub(crate) renew: Sql,
    pub(crate) free_one: Sql,
    pub(crate) free: Sql,
    pub(crate) take_and_free_alike: Sql,
    pub(crate) take_and_free: Sql,
    pub(crate) release: Sql,
    pub(crate) hand_over: Sql,
    pub(crate) force: Sql,
    pub(crate) look: Sql,
    pub(crate) set_hints: Sql,
    pub(crate) renew_queue_entries: Sql,
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

/// One statement's text, cheap to send again.
#[derive(Clone)]
pub(crate) struct Sql(Arc<str>);

impl Sql {
    pub(crate) fn text(&self) -> SqlStr {
        // Safe: the text is one of the constants of this folder; only the prefix varies, and it
        // holds nothing but `[a-z0-9_]`.
        AssertSqlSafe(Arc::clone(&self.0)).into_sql_str()
    }
}

impl Statements {
    /// The caller has checked `prefix` by [`SqliteConfig::check`](crate::SqliteConfig::check).
    pub(crate) fn new(prefix: &str) -> Self {
        let sql = |text: &str| Sql(prefixed(text, prefix).into());
        Self {
            take_one: sql(&filled(TAKE, &ONE)),
            take_alike: sql(&filled(TAKE, &ALIKE)),
            take: sql(&filled(TAKE, &MANY)),
            acquire: sql(ACQUIRE),
            renew: sql(RENEW),
            free_one: sql(&filled(FREE, &ONE)),
            free: sql(&filled(FREE, &LEASES)),
            take_and_free_alike: sql(&take_and_free(&ALIKE)),
            take_and_free: sql(&take_and_free(&MANY)),
            release: sql(RELEASE),
            hand_over: sql(HAND_OVER),
            force: sql(FORCE),
            look: sql(LOOK),
            set_hints: sql(SET_HINTS),
            renew_queue_entries: sql(RENEW_QUEUE_ENTRIES),
            leave_queues: sql(LEAVE_QUEUES),
            remove_expired_entries: sql(REMOVE_EXPIRED_ENTRIES),
            list: sql(LIST),
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

    /// A migration's text for these tables.
    pub(crate) fn script(&self, text: &str) -> SqlStr {
        AssertSqlSafe(prefixed(text, &self.prefix)).into_sql_str()
    }
}

/// Every name of ours begins with `distributed_`, and nothing else does.
fn prefixed(text: &str, prefix: &str) -> String {
    text.replace("distributed_", &format!("{prefix}distributed_"))
}
