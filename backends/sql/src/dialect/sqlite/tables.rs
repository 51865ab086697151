//! Finds and creates the tables.
//!
//! The migration is applied in one transaction, so that other processes see either all tables or
//! none. Tables that differ from the required form are refused, and are never changed.

use distlock_core::{Error, Result};
use sqlx::SqliteConnection;

use super::{
    connect::{SetUpError, connect, named, query, query_optional, run},
    context::StoreContext,
    file::{self, FileId},
    pool::OpenConnection,
    schema,
};
use crate::tables::{self, migration, refusal};

/// Creates the tables that are missing. A repeated run changes nothing.
pub(super) const MIGRATION: &str = include_str!("../../../migrations/sqlite/0001_tables.sql");

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

/// Checks the tables. Creates absent tables first, if the configuration allows that. Returns the
/// name of the tables' history.
pub(super) async fn ready(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<String, SetUpError> {
    match found(connection, context).await? {
        TablesFound::Ours => {}
        _ if context.was_opened() => {
            return Err(file::wrong(&context.path, tables::TABLES_GONE).into());
        }
        _ if !context.config.migrate => {
            return Err(not_migrated(context, "has no tables of distlock").into());
        }
        TablesFound::Nothing => {
            // An empty file gets a write-ahead log first.
            let _: (String,) = query(connection, context, JOURNAL_MODE_WAL).await?;
            create(connection, context).await?;
        }
        TablesFound::Others => create(connection, context).await?,
    }
    let Some((version, epoch)) = meta(connection, context).await? else {
        return Err(not_migrated(context, tables::META_EMPTY).into());
    };
    check(connection, context, version).await?;
    Ok(epoch)
}

/// Creates the tables or the meta row, whichever is missing, and an absent file. Returns whether
/// something was missing.
pub(super) async fn migrate(context: &StoreContext) -> Result<bool> {
    let migrating = async {
        let file = FileId::of(&context.path)
            .map_err(|error| file::wrong(&context.path, "cannot be used").caused_by(error))?;
        if file.is_some() {
            let mut connection = connect(context).await?;
            if let TablesFound::Ours = found(&mut connection, context).await? {
                let missing = meta(&mut connection, context).await?.is_none();
                if missing {
                    create(&mut connection, context).await?;
                }
                let meta = meta(&mut connection, context).await?;
                check(
                    &mut connection,
                    context,
                    meta.map_or(0, |(version, _)| version),
                )
                .await?;
                return Ok(missing);
            }
        }
        OpenConnection::new(context).await?.close().await;
        Ok(true)
    };
    migrating.await.map_err(SetUpError::into_error)
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
        (_, 4) => Ok(TablesFound::Ours),
        (_, _) => Err(file::wrong(
            &context.path,
            "has only some of distlock's tables, or another program's tables of the same names. In \
             the first case restore the file from a backup; in the second choose another file or a \
             `table_prefix`",
        )
        .into()),
    }
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
async fn check(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    version: i64,
) -> Result<(), SetUpError> {
    if let Some(problem) = tables::version_problem(version) {
        return Err(file::wrong(&context.path, problem).into());
    }
    context.common.counters.count("open");
    let compared = schema::compare(connection, context).await;
    let differences = compared.map_err(|error| SetUpError::of(error, context))?;
    if differences.is_empty() {
        return Ok(());
    }
    let (prefix, url) = (&context.config.table_prefix, context.config.url());
    let refused = refusal(&differences, prefix, "; DROP TABLE ", url);
    Err(named(refused, &context.path).into())
}

/// Creates the missing tables and the meta row in one transaction.
async fn create(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<(), SetUpError> {
    // If this future is dropped before its end or fails, the caller drops the connection too, and
    // SQLite rolls the transaction back.
    run(connection, context, "BEGIN IMMEDIATE").await?;
    // Another process may have created the tables while this process waited for the write lock.
    // Then the migration changes nothing. Tables of another version are refused after this.
    found(connection, context).await?;
    run(connection, context, context.statements.script(MIGRATION)).await?;
    run(connection, context, "COMMIT").await
}

fn not_migrated(context: &StoreContext, problem: &str) -> Error {
    file::wrong(&context.path, problem).with_remedy(migration(context.config.url()))
}
