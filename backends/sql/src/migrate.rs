//! The version of the tables, and the texts about tables that cannot be used.
//!
//! Only the dialects create tables; this module never does.

use distlock_backend_kit::Migrated;

/// The version of the tables that this program creates and uses.
pub(crate) const VERSION: i64 = 1;

/// The report of a migration. `created` says whether at least one table or the meta row was
/// missing.
pub(crate) fn migrated(created: bool) -> Migrated {
    let applied = created.then_some("locks, queues and records");
    Migrated::to_version(VERSION, applied.into_iter().collect())
}

/// The problem of tables with another version; `None` for the version of this program.
pub(crate) fn version_problem(version: i64) -> Option<String> {
    (version != VERSION).then(|| {
        format!(
            "has tables of version {version}, made by another version of distlock; this one works \
             with version {VERSION}: use the version of distlock that made the tables"
        )
    })
}

/// The advice for tables that have the right version but not the form that distlock creates.
/// `separator` is put between the table names of the `DROP TABLE` statement.
pub(crate) fn start_over_advice(table_prefix: &str, separator: &str, migrate: &str) -> String {
    let tables = ["lock", "queue", "record", "meta"];
    let tables = tables.map(|it| format!("{table_prefix}distributed_{it}"));
    format!(
        "somebody changed them by hand. While nothing is held, run `DROP TABLE {}` on the \
         database and then run `{migrate}`. This deletes the tokens of all locks, and all records: \
         of the kick-out flow, its bans, kept messages and generations",
        tables.join(separator)
    )
}

/// The problem of an opened store whose tables no longer exist. Creating empty tables would grant a
/// held lock to a second holder.
pub(crate) const TABLES_GONE: &str = "has no tables of distlock any more: they were dropped or \
    moved while the store was open, or it is another one now; bring them back, or end all programs \
    that use the store and start them again";

/// The problem of a store without its row in `distributed_meta`. That row holds the version of the
/// tables and the epoch.
pub(crate) const META_EMPTY: &str = "has an empty table distributed_meta, which names the \
    history of the locks; to begin a new history";
