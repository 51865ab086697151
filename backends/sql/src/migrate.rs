//! The tables' versions: which migrations there are, and which of them a store has.

/// One step from a version of the tables to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version of the tables afterwards.
    pub version: i64,
    /// What it does, in a word or two.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

/// How a store's tables stand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TablesStatus {
    /// The version of the tables; 0 = there are none.
    pub version: i64,
    /// What is to be applied, or was applied just now.
    pub migrations: Vec<Migration>,
}

impl TablesStatus {
    /// `mends` bring tables that have the latest version already to what it makes now.
    pub(crate) fn with(version: i64, all: &[Migration], mends: Vec<Migration>) -> Self {
        let mut status = Self::at(version, all);
        status.migrations.extend(mends);
        status
    }

    pub(crate) fn at(version: i64, all: &[Migration]) -> Self {
        let migrations = all
            .iter()
            .filter(|migration| migration.version > version)
            .copied()
            .collect();
        Self {
            version,
            migrations,
        }
    }
}

/// What to do about tables that say they are of our version and that no version of ours made.
/// `separator` stands between the statement's tables.
pub(crate) fn start_over_advice(table_prefix: &str, separator: &str, migrate: &str) -> String {
    let tables = ["lock", "record", "meta"].map(|it| format!("{table_prefix}distributed_{it}"));
    format!(
        "somebody changed them by hand, or a version made them that was never released. While nothing is held, run \
         `DROP TABLE {}` on the database and then run `{migrate}`. This deletes the tokens of all locks, and all records: of \
         the kick-out flow, its bans, kept messages and generations",
        tables.join(separator)
    )
}

/// What is wrong where an opened store finds no tables any more. Making others would let a second holder in.
pub(crate) const TABLES_GONE: &str = "has no tables of distlock any more: they were dropped or moved while they were in use, or it is \
     another one now; open it anew once that is mended";

/// What is wrong where the row is not there that says which version the tables have, and names
/// their history.
pub(crate) const META_EMPTY: &str = "has an empty table distributed_meta, so that nothing names the history of the locks; to begin another history";

/// What is wrong with tables of a later version than this program's; `None` when they are not.
pub(crate) fn newer_version_problem(version: i64) -> Option<String> {
    (version > LATEST).then(|| {
        format!(
            "has tables of version {version}, made by a later version of distlock; this one knows up to {LATEST}"
        )
    })
}

/// Every dialect has the same steps, with the same numbers and names; only their texts differ.
pub(crate) const fn steps(locks: &'static str, line: &'static str) -> [Migration; 2] {
    [
        Migration {
            version: 1,
            name: "locks and records",
            sql: locks,
        },
        Migration {
            version: 2,
            name: "the line of those who wait",
            sql: line,
        },
    ]
}

/// The version that `distlock migrate` brings tables to.
pub(crate) const LATEST: i64 = 2;

/// The oldest version that this program works with. Version 2 only adds a table: without it waiting
/// costs more, and programs that know only version 1 work beside it.
pub(crate) const REQUIRED: i64 = 1;
