//! The versions of the tables: the migrations that exist, and the migrations that a store still
//! needs.
//!
//! Every dialect has the same steps with the same numbers. Only the dialects change tables; this
//! module never does.

use distlock_backend_kit::Migrated;

/// Reports all migrations of `from` as applied.
pub(crate) fn migrated(from: &TablesStatus) -> Migrated {
    let last = from.migrations.last();
    Migrated::to_version(
        last.map_or(from.version, |last| last.version),
        from.migrations.iter().map(|step| step.name).collect(),
    )
}

/// One step from a version of the tables to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version of the tables after this migration.
    pub version: i64,
    /// A short name for messages.
    pub name: &'static str,
    /// The statements of this migration.
    pub sql: &'static str,
}

/// The state of a store's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TablesStatus {
    /// The version of the tables; 0 = there are none.
    pub version: i64,
    /// The migrations that are still to be applied, or the migrations that this call applied.
    pub migrations: Vec<Migration>,
}

impl TablesStatus {
    /// The status with the repairs `mends` added. A repair changes tables that have the latest
    /// version already but were made by an older release.
    #[cfg(feature = "mysql")]
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

/// The advice for tables that have a known version but a form that no release of distlock made.
/// `separator` is put between the table names of the `DROP TABLE` statement.
pub(crate) fn start_over_advice(table_prefix: &str, separator: &str, migrate: &str) -> String {
    let tables = ["lock", "record", "meta"].map(|it| format!("{table_prefix}distributed_{it}"));
    format!(
        "somebody changed them by hand, or a version made them that was never released. While \
            nothing is held, run \
         `DROP TABLE {}` on the database and then run `{migrate}`. This deletes the tokens of all \
         locks, and all records: of \
         the kick-out flow, its bans, kept messages and generations",
        tables.join(separator)
    )
}

/// The problem of an opened store whose tables no longer exist. Creating empty tables would grant a
/// held lock to a second holder.
pub(crate) const TABLES_GONE: &str = "has no tables of distlock any more: they were dropped or \
    moved while they were in use, or it is \
     another one now; open it anew once that is mended";

/// The problem of a store without its row in `distributed_meta`. That row holds the version of the
/// tables and the epoch.
pub(crate) const META_EMPTY: &str = "has an empty table distributed_meta, so that nothing names \
    the history of the locks; to begin another history";

/// The problem of tables whose version is higher than [`LATEST`]; `None` for a known version.
pub(crate) fn newer_version_problem(version: i64) -> Option<String> {
    (version > LATEST).then(|| {
        format!(
            "has tables of version {version}, made by a later version of distlock; this one knows \
                up to {LATEST}"
        )
    })
}

/// The steps. Their numbers and names are the same in every dialect; only the SQL differs.
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

/// The oldest version that this program works with. Version 2 only adds the table of the store
/// queue. Without that table, each release wakes all waiters. Programs that know only version 1 can
/// use tables of version 2 too.
pub(crate) const REQUIRED: i64 = 1;
