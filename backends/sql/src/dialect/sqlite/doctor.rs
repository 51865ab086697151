//! The doctor of SQLite: journal, sync, integrity, tables, file and boot clock.
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
        health.found(
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

    context.counters.count("doctor");
    let differences = schema::compare(connection, context).await?;
    doctor::report_tables(&mut health, &differences);

    file(&mut health, context);
    boot_clock(&mut health, context.config.force);

    context.counters.count("doctor");
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
    context.counters.count("doctor");
    sqlx::query_scalar(sql).fetch_one(connection).await
}

async fn number(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    sql: &'static str,
) -> Result<i64, sqlx::Error> {
    context.counters.count("doctor");
    sqlx::query_scalar(sql).fetch_one(connection).await
}
