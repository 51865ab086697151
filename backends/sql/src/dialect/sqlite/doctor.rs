//! The doctor of SQLite: version, journal, sync, integrity, tables, file and boot clock.
//!
//! Every check only reads.

use std::os::unix::fs::PermissionsExt as _;

use distlock_core::{Health, Verdict};
use sqlx::{Row as _, Sqlite, SqliteConnection, query::Query, sqlite::SqliteArguments};

use super::{boot, context::StoreContext, schema};
use crate::doctor;

/// The free space in bytes below which the doctor warns.
const ENOUGH_SPACE: u64 = 64 * 1024 * 1024;

/// Runs all checks of a SQLite file on one connection. `stock` is the query that counts rows.
pub(crate) async fn examine(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    stock: Query<'static, Sqlite, SqliteArguments>,
) -> Result<Health, sqlx::Error> {
    let version = text(connection, context, "SELECT sqlite_version()").await?;
    let mut health = Health::new(format!("SQLite {version}"));
    if has_wal_reset_fix(&version) {
        health.found("version", Verdict::Pass, version);
    } else {
        let detail = format!(
            "{version}: two processes that write and checkpoint at the same moment can damage the \
                file, and its locks are lost with it; use a build with SQLite 3.51.3 or later"
        );
        health.found("version", Verdict::Fail, detail);
    }

    let journal = text(connection, context, "PRAGMA journal_mode").await?;
    if journal == "wal" {
        health.found("journal mode", Verdict::Pass, "wal");
    } else {
        health.found(
            "journal mode",
            Verdict::Warn,
            format!(
                "{journal}: readers and writers hold each other up; set it with `PRAGMA \
                journal_mode = WAL`"
            ),
        );
    }

    let synchronous = number(connection, context, "PRAGMA synchronous").await?;
    if synchronous >= 2 {
        let name = if synchronous == 2 { "FULL" } else { "EXTRA" };
        health.found(
            "synchronous",
            Verdict::Pass,
            format!("{name}: a commit is on the disk before it is answered"),
        );
    } else {
        health.may_forget(
            "synchronous",
            Verdict::Fail,
            format!("{synchronous}: a power cut may take back granted locks and their tokens"),
        );
    }

    let encoding = text(connection, context, "PRAGMA encoding").await?;
    if encoding == "UTF-8" {
        health.found("encoding", Verdict::Pass, encoding);
    } else {
        health.found(
            "encoding",
            Verdict::Warn,
            format!("{encoding}: lists are not in byte order of the names; use a file of its own"),
        );
    }

    let damage = text(connection, context, "PRAGMA quick_check(1)").await?;
    if damage == "ok" {
        health.found("integrity", Verdict::Pass, "quick check found nothing");
    } else {
        health.found("integrity", Verdict::Fail, damage);
    }

    context.common.counters.count("doctor");
    let differences = schema::compare(connection, context).await?;
    doctor::report_tables(&mut health, &differences);

    file(&mut health, context);
    boot_clock(&mut health, context.config.force);

    context.common.counters.count("doctor");
    let row = stock.fetch_one(connection).await?;
    let stock = doctor::RowCounts {
        held: row.try_get(0)?,
        free: row.try_get(1)?,
        stale: row.try_get(2)?,
        oldest_stale: row.try_get(3)?,
        records: row.try_get(4)?,
        tombstones: row.try_get(5)?,
    };
    stock.report(&mut health, context.config.reap_after);
    Ok(health)
}

/// Whether this version of SQLite can reset its write-ahead log safely. All versions from 3.7.0 may
/// skip a part of the log if one connection commits to a log that was just reset while another one
/// checkpoints. The fix is in 3.51.3, and in 3.50.7 and 3.44.6 for these two branches.
fn has_wal_reset_fix(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let version: (u32, u32, u32) = (next(), next(), next());
    match version {
        (3, 44, patch) => patch >= 6,
        (3, 50, patch) => patch >= 7,
        version => version >= (3, 51, 3),
    }
}

/// Checks the file's permissions and the free space.
fn file(health: &mut Health, context: &StoreContext) {
    match std::fs::metadata(&context.path) {
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o777;
            let detail = format!("{mode:03o} on {}", context.path.display());
            if mode & 0o077 == 0 {
                health.found("file mode", Verdict::Pass, detail);
            } else {
                health.found(
                    "file mode",
                    Verdict::Warn,
                    format!(
                        "{detail}: others can read or change locks; `chmod 600` unless they must"
                    ),
                );
            }
        }
        Err(error) => health.found("file mode", Verdict::Unknown, error.to_string()),
    }
    match rustix::fs::statvfs(&context.path) {
        Ok(space) => {
            let free = space.f_bavail.saturating_mul(space.f_frsize);
            let detail = format!("{} MiB free", free / (1024 * 1024));
            let enough = free >= ENOUGH_SPACE;
            health.found(
                "disk space",
                if enough { Verdict::Pass } else { Verdict::Warn },
                detail,
            );
        }
        Err(error) => health.found("disk space", Verdict::Unknown, error.to_string()),
    }
}

/// Checks the boot clock. The end of a lease is a time since boot, and a container may have another
/// boot clock than the machine.
fn boot_clock(health: &mut Health, forced: bool) {
    match boot::isolation_problem() {
        Some(problem) => health.found(
            "boot clock",
            if forced { Verdict::Warn } else { Verdict::Fail },
            format!("{problem}: processes outside of it see other leases; use one for all"),
        ),
        None => health.found("boot clock", Verdict::Pass, "the machine's own"),
    }
}

async fn text(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    sql: &'static str,
) -> Result<String, sqlx::Error> {
    context.common.counters.count("doctor");
    sqlx::query_scalar(sql).fetch_one(connection).await
}

async fn number(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    sql: &'static str,
) -> Result<i64, sqlx::Error> {
    context.common.counters.count("doctor");
    sqlx::query_scalar(sql).fetch_one(connection).await
}

#[cfg(test)]
mod tests {
    use super::has_wal_reset_fix;

    #[test]
    fn only_versions_with_the_fix_of_the_log_pass() {
        for fixed in ["3.51.3", "3.52.0", "3.100.0", "4.0.0", "3.50.7", "3.44.6"] {
            assert!(has_wal_reset_fix(fixed), "{fixed}");
        }
        for broken in [
            "3.51.2", "3.51", "3.50.6", "3.49.9", "3.44.5", "3.7.0", "", "new",
        ] {
            assert!(!has_wal_reset_fix(broken), "{broken}");
        }
    }
}
