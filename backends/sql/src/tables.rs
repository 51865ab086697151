//! The version and the form of the tables, and the texts about tables that cannot be used.
//!
//! This module owns the comparison of the tables that the promises need with the tables that the
//! database's catalogue shows. Each dialect lists its tables beside the query that reads its
//! catalogue. Only the dialects create tables. Tables that differ are refused, and are never
//! changed.

use distlock_backend_kit::Migrated;
use distlock_core::{Error, ErrorKind, Remedy};

/// The part with the storage of a table: the engine, and whether the rows survive a crash.
pub(crate) const STORAGE: &str = "storage";

/// The part with the columns that are unique together.
pub(crate) const KEY: &str = "unique key";

/// The part with the triggers and rules of the database. They could change or drop written rows.
pub(crate) const WRITES: &str = "triggers and rules";

/// The required value of [`WRITES`].
pub(crate) const UNTOUCHED: &str = "none";

/// The number of differences that a message names.
const NAMED_DIFFERENCES: usize = 4;

/// One table of distlock: its name without the prefix, and each part with its required value. A
/// part is [`STORAGE`], [`KEY`], [`WRITES`] or a column.
pub(crate) type Table<S = &'static str> = (S, Vec<(S, S)>);

/// A part of a table in the catalogue: the table, the part, and its value.
pub(crate) type FoundPart = (String, String, String);

/// One part whose value is not the required one.
#[derive(Debug)]
pub(crate) struct SchemaDifference {
    text: String,
    /// Whether the part is [`WRITES`]: the table itself is right, but a trigger or a rule exists.
    of_writes: bool,
    /// Whether the part belongs to the store queue, whose rows may be lost.
    of_queue: bool,
}

/// Compares every part of `tables` with the parts in `found`. If `some` is true, a table without
/// any found part counts as absent, and an absent table is no difference.
pub(crate) fn differences<S: AsRef<str>>(
    prefix: &str,
    tables: &[Table<S>],
    found: &[FoundPart],
    some: bool,
) -> Vec<SchemaDifference> {
    let mut differences = Vec::new();
    for (table, parts) in tables {
        let name = format!("{prefix}{}", table.as_ref());
        let found: Vec<_> = found.iter().filter(|it| it.0 == name).collect();
        if some && found.is_empty() {
            continue;
        }
        for (part, expected) in parts {
            let (part, expected) = (part.as_ref(), expected.as_ref());
            let are = found.iter().filter(|it| it.1 == part);
            let are: Vec<_> = are.map(|it| it.2.as_str()).collect();
            if are.contains(&expected) {
                continue;
            }
            let of = match part {
                KEY | STORAGE | WRITES => format!("the {part} of {name}"),
                column => format!("{name}.{column}"),
            };
            let is = if are.is_empty() {
                "missing".to_owned()
            } else {
                are.join(" and ")
            };
            let of_writes = part == WRITES;
            let verb = if of_writes { "are" } else { "is" };
            differences.push(SchemaDifference {
                text: format!("{of} {verb} {is} instead of {expected}"),
                of_writes,
                of_queue: table.as_ref() == "distributed_queue",
            });
        }
    }
    differences
}

/// The first differences as text, and the number of the others.
pub(crate) fn describe(differences: &[SchemaDifference]) -> String {
    let named = differences
        .iter()
        .take(NAMED_DIFFERENCES)
        .map(|it| it.text.as_str());
    let mut text = named.collect::<Vec<_>>().join("; ");
    if let Some(more @ 1..) = differences.len().checked_sub(NAMED_DIFFERENCES) {
        text = format!("{text}; and {more} more");
    }
    text
}

/// The error for tables that differ, with the remedy. `separator` is put between the table names of
/// the `DROP TABLE` statement. `url` names the store.
pub(crate) fn refusal(
    differences: &[SchemaDifference],
    prefix: &str,
    separator: &str,
    url: String,
) -> Error {
    let differ = describe(differences);
    let refused = |why: &str| {
        let problem = format!("the tables are not as expected ({differ}): {why}");
        Error::new(ErrorKind::InvalidConfig, problem)
    };
    if differences.iter().all(|it| it.of_writes) {
        return refused(
            "triggers and rules can change or drop what is written, and two may hold one lock \
             then; drop them",
        );
    }
    // SQLite, with its own separator, creates tables only where all are missing.
    if separator == ", " && differences.iter().all(|it| it.of_queue) {
        let queue = format!("DROP TABLE {prefix}distributed_queue");
        return refused(
            "the table of the queue can be made anew, which deletes no lock, no token and no \
             record",
        )
        .with_remedy(Remedy::Migrate {
            url,
            first: Some(queue),
        });
    }
    refused(CHANGED_BY_HAND).with_remedy(start_over(prefix, separator, url))
}

/// The remedy for missing tables of the store at `url`.
pub(crate) fn migration(url: String) -> Remedy {
    Remedy::Migrate { url, first: None }
}

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

/// The cause of tables that have the right version but not the form that distlock creates, and the
/// cost of [`start_over`].
pub(crate) const CHANGED_BY_HAND: &str = "somebody changed them by hand; while nothing is held, \
    they can be made anew, which deletes the tokens of all locks, and all records (of the kick-out \
    flow: its bans, kept messages and generations)";

/// The remedy of [`CHANGED_BY_HAND`]. `separator` is put between the table names of the
/// `DROP TABLE` statement. `url` names the store.
pub(crate) fn start_over(table_prefix: &str, separator: &str, url: String) -> Remedy {
    let tables = ["lock", "queue", "record", "meta"];
    let tables = tables.map(|it| format!("{table_prefix}distributed_{it}"));
    Remedy::Migrate {
        url,
        first: Some(format!("DROP TABLE {}", tables.join(separator))),
    }
}

/// The problem of an opened store whose tables no longer exist. Creating empty tables would grant a
/// held lock to a second holder.
pub(crate) const TABLES_GONE: &str = "has no tables of distlock any more: they were dropped or \
    moved while the store was open, or it is another one now; bring them back, or end all programs \
    that use the store and start them again";

/// The problem of a store without its row in `distributed_meta`. That row holds the version of the
/// tables and the epoch.
pub(crate) const META_EMPTY: &str = "has an empty table distributed_meta, which names the \
    history of the locks: a new history must begin";
