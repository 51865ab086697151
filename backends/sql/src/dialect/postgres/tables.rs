//! Finds and creates the tables.
//!
//! The migration is applied in one transaction, under an advisory lock, so that other processes see
//! either all tables or none. Tables that differ from the required form are refused, and are never
//! changed.

use distlock_core::{Error, ErrorKind, Result};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{
    connect::{connect, with_connect_timeout},
    context::StoreContext,
    rows::column,
    schema,
};
use crate::{
    statement_error::{Access, StatementError},
    tables::{self, SchemaDifference, describe, migration, refusal},
};

/// Creates the tables that are missing. A repeated run changes nothing.
const MIGRATION: &str = include_str!("../../../migrations/postgres/0001_tables.sql");

const ONLY_SOME: &str = "the database has another program's tables of the same names: choose \
    another `table_prefix`; or it has only some of distlock's tables: make the missing ones";

/// The tables that are present.
enum TablesFound {
    Nothing,
    /// At least one table is missing.
    Partly,
    Whole,
}

/// Checks the tables. Creates absent tables first, if the configuration allows that. Returns the
/// name of the tables' history.
pub(super) async fn ready(
    connection: &mut PgConnection,
    context: &StoreContext,
    schema: &str,
) -> Result<String> {
    match found(connection, context).await? {
        TablesFound::Whole => {}
        TablesFound::Partly => return Err(context.not_migrated(ONLY_SOME)),
        TablesFound::Nothing if context.schema.get().is_some() => {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("the schema {schema:?} {}", tables::TABLES_GONE),
            ));
        }
        TablesFound::Nothing if !context.config.migrate => {
            return Err(context.not_migrated("the database has no tables of distlock"));
        }
        TablesFound::Nothing => {
            create(connection, context).await?;
        }
    }
    let Some((version, tables)) = meta(connection, context).await? else {
        return Err(context.not_migrated(format!("the database {}", tables::META_EMPTY)));
    };
    check_version(version)?;
    check_tables(connection, context).await?;
    Ok(tables)
}

/// Creates the tables that are missing, and the meta row. Returns whether something was missing.
pub(super) async fn migrate(context: &StoreContext) -> Result<bool> {
    let migrating = async {
        let mut connection = connect(context, true).await?.session;
        let missing = create(&mut connection, context).await?;
        check_tables(&mut connection, context).await?;
        connection.close().await;
        Ok(missing)
    };
    with_connect_timeout(context, migrating).await
}

async fn found(connection: &mut PgConnection, context: &StoreContext) -> Result<TablesFound> {
    context.common.counters.count("open");
    let rows = sqlx::query(context.statements.tables_present.text())
        .fetch_all(connection)
        .await
        .map_err(|error| context.explain(StatementError::postgres(error, Access::Read)))?;
    Ok(match rows.len() {
        0 => TablesFound::Nothing,
        4 => TablesFound::Whole,
        _ => TablesFound::Partly,
    })
}

/// Checks that every present table has the form that distlock creates. A table with another form
/// may belong to another program, so that the migration is refused.
async fn check_present_tables(connection: &mut PgConnection, context: &StoreContext) -> Result<()> {
    let differences = differences(connection, context, true).await?;
    if differences.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "the database has tables that are not as distlock makes them, so they are another \
            program's or were changed by hand \
         ({}): choose another database or a `table_prefix`",
        describe(&differences)
    );
    Err(Error::new(ErrorKind::InvalidConfig, problem))
}

fn check_version(version: i64) -> Result<()> {
    let wrong = |problem| Error::new(ErrorKind::InvalidConfig, format!("the database {problem}"));
    tables::version_problem(version).map_or(Ok(()), |problem| Err(wrong(problem)))
}

/// Checks that the tables have the required form.
async fn check_tables(connection: &mut PgConnection, context: &StoreContext) -> Result<()> {
    let differences = differences(connection, context, false).await?;
    if differences.is_empty() {
        return Ok(());
    }
    let (prefix, url) = (&context.config.table_prefix, context.config.url());
    Err(refusal(&differences, prefix, ", ", url))
}

async fn differences(
    connection: &mut PgConnection,
    context: &StoreContext,
    some: bool,
) -> Result<Vec<SchemaDifference>> {
    context.common.counters.count("open");
    let compared = schema::compare(connection, context, some).await;
    compared.map_err(|error| StatementError::postgres(error, Access::Read).into_error())
}

/// The version of the tables, and the name of their history; `None` when the meta row is absent.
async fn meta(
    connection: &mut PgConnection,
    context: &StoreContext,
) -> Result<Option<(i64, String)>> {
    context.common.counters.count("open");
    let row = sqlx::query(context.statements.meta.text())
        .fetch_optional(connection)
        .await
        .map_err(|error| context.explain(StatementError::postgres(error, Access::Read)))?;
    row.map(|row| Ok((column(&row, 0)?, column(&row, 1)?)))
        .transpose()
}

/// Creates the missing tables and the meta row in one transaction. Returns whether something was
/// missing.
async fn create(connection: &mut PgConnection, context: &StoreContext) -> Result<bool> {
    let failed = |error| {
        let failed = StatementError::postgres(error, Access::Read);
        if failed.meaning.kind == ErrorKind::AccessDenied {
            let problem = "this user may not create tables: migrate as a user who may";
            return Error::new(ErrorKind::AccessDenied, problem)
                .caused_by(failed.into_error())
                .with_remedy(migration(context.config.url()));
        }
        failed.into_error()
    };
    // If this future is dropped before its end or fails, the caller drops the connection too, and
    // the server rolls the transaction back.
    context.common.counters.count("open");
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = {limit}; SET LOCAL statement_timeout = {limit}",
        limit = context.config.connect_timeout.as_millis()
    );
    for statement in [begin, "SELECT pg_advisory_xact_lock(7235419113)".to_owned()] {
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    // Another process may have created the tables while this process waited for the lock.
    let missing = match found(connection, context).await? {
        TablesFound::Whole => match meta(connection, context).await? {
            Some((version, _)) => {
                check_version(version)?;
                false
            }
            // The migration inserts a meta row with a new name of the history.
            None => true,
        },
        TablesFound::Nothing => true,
        // The other tables were dropped: the migration creates the missing tables.
        TablesFound::Partly => {
            check_present_tables(connection, context).await?;
            true
        }
    };
    if missing {
        context.common.counters.count("open");
        let script = context.statements.script(MIGRATION);
        sqlx::raw_sql(AssertSqlSafe(script))
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    context.common.counters.count("open");
    sqlx::raw_sql("COMMIT")
        .execute(&mut *connection)
        .await
        .map_err(failed)?;
    Ok(missing)
}
