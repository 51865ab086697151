//! The tables: which of them are there and of which version, made where there are none, and brought up to date.

use distlock_core::{Error, Result};
use sqlx::SqliteConnection;

use super::{
    connect::{SetUp, connect, query, query_optional, run},
    context::Shared,
    file::{self, FileId},
    migrations::MIGRATIONS,
    schema,
};
use crate::{
    config::quoted,
    migrate::{self, LATEST, REQUIRED, TablesStatus},
    shape::refusal,
};

/// Stays set in the file.
const JOURNAL_MODE_WAL: &str = "PRAGMA journal_mode = WAL";

/// What is in a file.
enum Found {
    Nothing,
    /// Nothing of ours.
    Others,
    Ours,
}

/// Which version the tables have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    /// 0 when there are none.
    Version(i64),
    /// They do not say: somebody has emptied the table that does.
    Emptied,
}

/// Makes the tables where there are none and that is wanted, and finds them as they must be. Says what names their history.
pub(super) async fn ready(
    connection: &mut SqliteConnection,
    shared: &Shared,
) -> Result<String, SetUp> {
    match found(connection, shared).await? {
        Found::Ours => {}
        _ if shared.was_opened() => return Err(file::wrong(&shared.path, migrate::GONE).into()),
        _ if !shared.config.migrate => {
            return Err(not_migrated(shared, "has no tables of distlock").into());
        }
        Found::Nothing => create(connection, shared, true).await?,
        Found::Others => create(connection, shared, false).await?,
    }
    let Some((version, epoch)) = meta(connection, shared).await? else {
        return Err(not_migrated(shared, migrate::EMPTIED).into());
    };
    if version < REQUIRED {
        let problem =
            format!("has tables of version {version}, and this program needs version {REQUIRED}");
        return Err(not_migrated(shared, &problem).into());
    }
    if version < LATEST && shared.config.migrate && !shared.was_opened() {
        // Locks do without what is missing.
        if let Err(error) = upgrade(connection, shared).await {
            let error = error.into_error();
            tracing::debug!(%error, "the tables stay at version {version}");
            let _ = run(connection, shared, "ROLLBACK").await;
        }
    }
    check(connection, shared, version).await?;
    Ok(epoch)
}

/// The version of the tables; 0 when there are none. Changes nothing.
pub(super) async fn version(shared: &Shared) -> Result<i64> {
    match FileId::of(&shared.path) {
        Ok(Some(_)) => {}
        Ok(None) => return Ok(0),
        Err(error) => return Err(file::wrong(&shared.path, "cannot be used").caused_by(error)),
    }
    match present(shared).await? {
        Present::Version(version) => Ok(version),
        Present::Emptied => Err(not_migrated(shared, migrate::EMPTIED)),
    }
}

/// The version of the tables of a file that is there.
pub(super) async fn present(shared: &Shared) -> Result<Present> {
    let read = async {
        let mut connection = connect(shared).await?;
        let present = present_version(&mut connection, shared).await?;
        if let Present::Version(version @ REQUIRED..) = present {
            check(&mut connection, shared, version).await?;
        }
        Ok(present)
    };
    read.await.map_err(SetUp::into_error)
}

async fn found(connection: &mut SqliteConnection, shared: &Shared) -> Result<Found, SetUp> {
    match query(connection, shared, shared.statements.objects.text()).await? {
        (0, 0) => Ok(Found::Nothing),
        (_, 0) => Ok(Found::Others),
        (_, 3) => Ok(Found::Ours),
        (_, _) => Err(file::wrong(
            &shared.path,
            "has only some of distlock's tables, or another program's tables of the same names: choose another file or a \
             `table_prefix`",
        )
        .into()),
    }
}

async fn present_version(
    connection: &mut SqliteConnection,
    shared: &Shared,
) -> Result<Present, SetUp> {
    Ok(match found(connection, shared).await? {
        Found::Nothing | Found::Others => Present::Version(0),
        Found::Ours => match meta(connection, shared).await? {
            Some((version, _)) => Present::Version(version),
            None => Present::Emptied,
        },
    })
}

/// The version of the tables, and the name of their history; `None` when somebody has deleted that.
async fn meta(
    connection: &mut SqliteConnection,
    shared: &Shared,
) -> Result<Option<(i64, String)>, SetUp> {
    query_optional(connection, shared, shared.statements.meta.text()).await
}

/// Whether tables of this version are what this program works with, and what the promises rest on.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    shared: &Shared,
    version: i64,
) -> Result<(), SetUp> {
    if let Some(problem) = migrate::too_late(version) {
        return Err(file::wrong(&shared.path, problem).into());
    }
    shared.tally.count("open");
    let compared = schema::compare(connection, shared).await;
    let differences = compared.map_err(|error| SetUp::of(error, shared))?;
    if differences.is_empty() {
        return Ok(());
    }
    let (prefix, command) = (&shared.config.table_prefix, migrate_command(shared));
    let problem = refusal(&differences, prefix, "; DROP TABLE ", &command);
    Err(file::wrong(&shared.path, problem).into())
}

/// Makes the tables; for an empty file the write-ahead log first, which stays set.
async fn create(
    connection: &mut SqliteConnection,
    shared: &Shared,
    empty: bool,
) -> Result<(), SetUp> {
    if empty {
        let _: (String,) = query(connection, shared, JOURNAL_MODE_WAL).await?;
    }
    upgrade(connection, shared).await.map(drop)
}

/// Applies the migrations that are missing, in one transaction, and says from which version it went.
pub(super) async fn upgrade(
    connection: &mut SqliteConnection,
    shared: &Shared,
) -> Result<i64, SetUp> {
    // Whether this is dropped half-way or fails: the connection is thrown away, and SQLite rolls back.
    run(connection, shared, "BEGIN IMMEDIATE").await?;
    // Another process may have done it while we waited.
    let version = match present_version(connection, shared).await? {
        Present::Version(version) => version,
        Present::Emptied => 0,
    };
    for migration in TablesStatus::at(version, &MIGRATIONS).migrations {
        run(connection, shared, shared.statements.script(migration.sql)).await?;
    }
    run(connection, shared, "COMMIT").await?;
    Ok(version)
}

fn not_migrated(shared: &Shared, problem: &str) -> Error {
    file::wrong(
        &shared.path,
        format!("{problem}: run `{}`", migrate_command(shared)),
    )
}

fn migrate_command(shared: &Shared) -> String {
    let url = quoted(&shared.config.url());
    format!("distlock migrate --backend {url}")
}
