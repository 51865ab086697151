//! Finds, creates and upgrades the tables.
//!
//! All migrations are applied in one transaction, so that other processes see either all tables or
//! none. Tables that differ from the required form are refused, and are never changed.

use distlock_core::{Error, Result};
use sqlx::SqliteConnection;

use super::{
    connect::{SetUpError, connect, query, query_optional, run},
    context::StoreContext,
    file::{self, FileId},
    migrations::MIGRATIONS,
    schema,
};
use crate::{
    config::quoted,
    migrate::{self, LATEST, REQUIRED, TablesStatus},
    schema_check::refusal,
};

/// Sets the journal mode. The file keeps this mode for all later connections.
const JOURNAL_MODE_WAL: &str = "PRAGMA journal_mode = WAL";

/// The tables in a file.
enum TablesFound {
    Nothing,
    /// Only tables of other programs.
    Others,
    /// All tables of distlock.
    Ours,
}

/// The version of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresentVersion {
    /// The version; 0 when there are no tables.
    Version(i64),
    /// The version is unknown, because the meta row was deleted.
    Emptied,
}

/// Checks the tables. Creates absent tables first, if the configuration allows that. Returns the
/// name of the tables' history.
pub(super) async fn ready(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<String, SetUpError> {
    match found(connection, context).await? {
        TablesFound::Ours => {}
        _ if context.was_opened() => {
            return Err(file::wrong(&context.path, migrate::TABLES_GONE).into());
        }
        _ if !context.config.migrate => {
            return Err(not_migrated(context, "has no tables of distlock").into());
        }
        TablesFound::Nothing => create(connection, context, true).await?,
        TablesFound::Others => create(connection, context, false).await?,
    }
    let Some((version, epoch)) = meta(connection, context).await? else {
        return Err(not_migrated(context, migrate::META_EMPTY).into());
    };
    if version < REQUIRED {
        let problem =
            format!("has tables of version {version}, and this program needs version {REQUIRED}");
        return Err(not_migrated(context, &problem).into());
    }
    if version < LATEST && context.config.migrate && !context.was_opened() {
        // A failed upgrade is only logged, because locks work without the table of version 2.
        if let Err(error) = upgrade(connection, context).await {
            let error = error.into_error();
            tracing::debug!(%error, "the tables stay at version {version}");
            let _ = run(connection, context, "ROLLBACK").await;
        }
    }
    check(connection, context, version).await?;
    Ok(epoch)
}

/// The version of the tables; 0 when there are none. Changes nothing.
pub(super) async fn version(context: &StoreContext) -> Result<i64> {
    match FileId::of(&context.path) {
        Ok(Some(_)) => {}
        Ok(None) => return Ok(0),
        Err(error) => return Err(file::wrong(&context.path, "cannot be used").caused_by(error)),
    }
    match present(context).await? {
        PresentVersion::Version(version) => Ok(version),
        PresentVersion::Emptied => Err(not_migrated(context, migrate::META_EMPTY)),
    }
}

/// The version of the tables of an existing file.
pub(super) async fn present(context: &StoreContext) -> Result<PresentVersion> {
    let read = async {
        let mut connection = connect(context).await?;
        let present = present_version(&mut connection, context).await?;
        if let PresentVersion::Version(version @ REQUIRED..) = present {
            check(&mut connection, context, version).await?;
        }
        Ok(present)
    };
    read.await.map_err(SetUpError::into_error)
}

async fn found(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<TablesFound, SetUpError> {
    match query(
        connection,
        context,
        context.statements.tables_present.text(),
    )
    .await?
    {
        (0, 0) => Ok(TablesFound::Nothing),
        (_, 0) => Ok(TablesFound::Others),
        (_, 3) => Ok(TablesFound::Ours),
        (_, _) => Err(file::wrong(
            &context.path,
            "has only some of distlock's tables, or another program's tables of the same names: \
                choose another file or a \
             `table_prefix`",
        )
        .into()),
    }
}

async fn present_version(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<PresentVersion, SetUpError> {
    Ok(match found(connection, context).await? {
        TablesFound::Nothing | TablesFound::Others => PresentVersion::Version(0),
        TablesFound::Ours => match meta(connection, context).await? {
            Some((version, _)) => PresentVersion::Version(version),
            None => PresentVersion::Emptied,
        },
    })
}

/// The version of the tables, and the name of their history; `None` when the meta row is absent.
async fn meta(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<Option<(i64, String)>, SetUpError> {
    query_optional(connection, context, context.statements.meta.text()).await
}

/// Checks that this program works with tables of this version, and that the tables have the
/// required form.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    version: i64,
) -> Result<(), SetUpError> {
    if let Some(problem) = migrate::newer_version_problem(version) {
        return Err(file::wrong(&context.path, problem).into());
    }
    context.counters.count("open");
    let compared = schema::compare(connection, context).await;
    let differences = compared.map_err(|error| SetUpError::of(error, context))?;
    if differences.is_empty() {
        return Ok(());
    }
    let (prefix, command) = (&context.config.table_prefix, migrate_command(context));
    let problem = refusal(&differences, prefix, "; DROP TABLE ", &command);
    Err(file::wrong(&context.path, problem).into())
}

/// Creates the tables. An empty file gets a write-ahead log first.
async fn create(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    empty: bool,
) -> Result<(), SetUpError> {
    if empty {
        let _: (String,) = query(connection, context, JOURNAL_MODE_WAL).await?;
    }
    upgrade(connection, context).await.map(drop)
}

/// Applies the missing migrations in one transaction, and returns the former version.
pub(super) async fn upgrade(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<i64, SetUpError> {
    // If this future is dropped before its end or fails, the caller drops the connection too or
    // sends `ROLLBACK`. In both cases SQLite rolls the transaction back.
    run(connection, context, "BEGIN IMMEDIATE").await?;
    // Another process may have applied the migrations while this process waited for the write lock.
    let version = match present_version(connection, context).await? {
        PresentVersion::Version(version) => version,
        PresentVersion::Emptied => 0,
    };
    for migration in TablesStatus::at(version, &MIGRATIONS).migrations {
        run(
            connection,
            context,
            context.statements.script(migration.sql),
        )
        .await?;
    }
    run(connection, context, "COMMIT").await?;
    Ok(version)
}

fn not_migrated(context: &StoreContext, problem: &str) -> Error {
    file::wrong(
        &context.path,
        format!("{problem}: run `{}`", migrate_command(context)),
    )
}

fn migrate_command(context: &StoreContext) -> String {
    let url = quoted(&context.config.url());
    format!("distlock migrate --backend {url}")
}
