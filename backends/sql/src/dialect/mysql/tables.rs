//! The tables: which of them are there and of which version, made where there are none, and brought up to date.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use distlock_core::{Error, ErrorKind, Result};

use super::{
    context::StoreContext,
    migrations::MIGRATIONS,
    raw_connection::{RawConnection, StatementResults},
    rows, schema,
    server::{SESSION, VARIABLES, Variables, connect, database_label},
};
use crate::{
    migrate::{self, LATEST, Migration, REQUIRED, TablesStatus},
    schema_check::{SchemaDifference, describe, refusal, repairs},
    statement_error::Access,
};

/// How long opening waits for other processes that make the tables at the same moment.
const SETTING_UP: Duration = Duration::from_secs(3);

/// Whoever makes the tables writes that last, unless it is stopped before.
const UNFINISHED: &str = migrate::META_EMPTY;

const ONLY_SOME: &str = "has only some of distlock's tables, or another program's tables of the same names. For the latter, \
     choose another database or a `table_prefix`; to make what is missing";

/// Which of our tables are there.
enum TablesFound {
    Nothing,
    /// Not all of them, or not what is in them from the beginning: what is wrong.
    Partly(&'static str),
    /// All of them: their version, and what names them.
    Whole(i64, String),
}

/// Sets the session up, makes the tables where there are none and that is wanted, and finds them as they must be. Says who
/// the server is, and what names the tables.
pub(super) async fn ready(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<(Variables, String)> {
    let (variables, found) = set_up_session(connection, context).await?;
    let (version, tables) = match found {
        TablesFound::Whole(version, tables) => (version, tables),
        TablesFound::Partly(problem) => return Err(not_migrated(context, problem)),
        TablesFound::Nothing if context.was_opened() => {
            return Err(wrong(context, migrate::TABLES_GONE));
        }
        TablesFound::Nothing if !context.config.migrate => {
            return Err(not_migrated(context, "has no tables of distlock"));
        }
        TablesFound::Nothing => {
            upgrade(connection, context, 0).await?;
            match meta(connection, context).await? {
                Some(meta) => meta,
                None => return Err(not_migrated(context, UNFINISHED)),
            }
        }
    };
    if version < REQUIRED {
        let problem =
            format!("has tables of version {version}, and this program needs version {REQUIRED}");
        return Err(not_migrated(context, &problem));
    }
    check_not_newer(context, version)?;
    if version < LATEST && context.config.migrate && !context.was_opened() {
        // As where this user may not make tables. Locks do without what is missing.
        if let Err(error) = upgrade(connection, context, version).await {
            tracing::debug!(%error, "the tables stay at version {version}");
        }
    }
    check_tables(connection, context).await?;
    Ok((variables, tables))
}

/// Brings the tables up to date. Says from which version it went, and what it mended in tables that
/// had the latest one.
pub(super) async fn migrate(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let mut connection = connect(context).await?;
    let (_, found) = set_up_session(&mut connection, context).await?;
    let version = match found {
        TablesFound::Whole(version, _) => version,
        TablesFound::Nothing => 0,
        // As when whoever made them was stopped: here, one table comes after the other.
        TablesFound::Partly(_) => {
            check_present_parts(&mut connection, context).await?;
            0
        }
    };
    check_not_newer(context, version)?;
    if version < LATEST {
        upgrade(&mut connection, context, version).await?;
    }
    let repairs = needed_repairs(&mut connection, context).await?;
    for repair in &repairs {
        run(
            &mut connection,
            context,
            context.statements.script(repair.sql),
        )
        .await?;
    }
    check_tables(&mut connection, context).await?;
    leave(connection).await;
    Ok((version, repairs))
}

/// The version of the tables, 0 when there are none, and what is to be mended in tables that have
/// the latest one. Changes nothing.
pub(super) async fn version(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let mut connection = connect(context).await?;
    let (_, found) = set_up_session(&mut connection, context).await?;
    let version = match found {
        TablesFound::Whole(version, _) => version,
        TablesFound::Nothing => 0,
        TablesFound::Partly(problem) => return Err(not_migrated(context, problem)),
    };
    check_not_newer(context, version)?;
    let repairs = if version >= REQUIRED {
        needed_repairs(&mut connection, context).await?
    } else {
        Vec::new()
    };
    leave(connection).await;
    Ok((version, repairs))
}

async fn leave(connection: RawConnection) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "a connection did not close cleanly");
    }
}

/// Sets the session up, and asks who is there and what is there.
async fn set_up_session(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<(Variables, TablesFound)> {
    let mut script = SESSION.to_owned();
    let _ = write!(
        script,
        "; {}; {VARIABLES}",
        context.statements.tables_present()
    );
    let found = run(connection, context, script).await?;
    let mut rows_found = found.rows.iter();
    let mut tables_present: i64 = match rows_found.next() {
        Some(row) => rows::column(row, 0)?,
        None => 0,
    };
    let mut variables = HashMap::new();
    for row in rows_found {
        variables.insert(rows::string(row, 0)?, rows::string(row, 1)?);
    }
    let variables = Variables::of(&variables)?;
    let deadline = context.clock.now() + SETTING_UP;
    let found = loop {
        match present(connection, context, tables_present).await? {
            // Another process may be making them: here, one table comes after the other.
            TablesFound::Partly(_) if context.clock.now() < deadline => {
                context.clock.sleep(SETTING_UP / 100).await;
                let found = run(connection, context, context.statements.tables_present()).await?;
                tables_present = match found.rows.first() {
                    Some(row) => rows::column(row, 0)?,
                    None => 0,
                };
            }
            found => break found,
        }
    };
    Ok((variables, found))
}

/// What is there, where so many tables are.
async fn present(
    connection: &mut RawConnection,
    context: &StoreContext,
    tables_present: i64,
) -> Result<TablesFound> {
    Ok(match tables_present {
        0 => TablesFound::Nothing,
        3 => match meta(connection, context).await? {
            Some((version, tables)) => TablesFound::Whole(version, tables),
            None => TablesFound::Partly(UNFINISHED),
        },
        _ => TablesFound::Partly(ONLY_SOME),
    })
}

/// The tables' version, and what names them; `None` when that was not written yet.
async fn meta(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<Option<(i64, String)>> {
    let found = run(connection, context, context.statements.meta()).await?;
    let row = found.rows.first();
    row.map(|row| Ok((rows::column(row, 0)?, rows::string(row, 1)?)))
        .transpose()
}

/// Whether those of our tables that are there are as a version of ours made them: others are
/// another program's, and are left alone.
async fn check_present_parts(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let found = run(connection, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, true)?;
    if repairs(&differences).is_some() {
        return Ok(());
    }
    let problem = format!(
        "has tables that are not as distlock makes them, so they are another program's or were changed by hand ({}): choose \
         another database or a `table_prefix`",
        describe(&differences)
    );
    Err(wrong(context, problem))
}

fn check_not_newer(context: &StoreContext, version: i64) -> Result<()> {
    migrate::newer_version_problem(version).map_or(Ok(()), |problem| Err(wrong(context, problem)))
}

/// Whether the tables are what the promises rest on.
async fn check_tables(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let differences = differences(connection, context).await?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(schema_error(context, &differences))
}

/// What brings tables of a former make up to date.
async fn needed_repairs(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<Vec<Migration>> {
    let differences = differences(connection, context).await?;
    repairs(&differences).ok_or_else(|| schema_error(context, &differences))
}

async fn differences(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<Vec<SchemaDifference>> {
    let found = run(connection, context, context.statements.parts()).await?;
    schema::compare(context, &found, false)
}

fn schema_error(context: &StoreContext, differences: &[SchemaDifference]) -> Error {
    let prefix = &context.config.table_prefix;
    let problem = refusal(differences, prefix, ", ", &migrate_command(context));
    Error::new(
        ErrorKind::InvalidConfig,
        format!("{}: {problem}", database_label(context)),
    )
}

/// Applies the migrations that are missing. Each statement of theirs may be repeated: here, every change of a table is a
/// transaction of its own, and others may do the same at the same time.
async fn upgrade(
    connection: &mut RawConnection,
    context: &StoreContext,
    version: i64,
) -> Result<()> {
    for migration in TablesStatus::at(version, &MIGRATIONS).migrations {
        run(
            connection,
            context,
            context.statements.script(migration.sql),
        )
        .await?;
    }
    Ok(())
}

async fn run(
    connection: &mut RawConnection,
    context: &StoreContext,
    script: String,
) -> Result<StatementResults> {
    context.counters.count("open");
    connection
        .exchange(context, script, Access::Read)
        .await
        .map_err(|broken| {
            let error = broken.failed.into_error();
            Error::new(error.kind(), database_label(context)).caused_by(error)
        })
}

fn wrong(context: &StoreContext, problem: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("the database {} {problem}", database_label(context)),
    )
}

fn not_migrated(context: &StoreContext, problem: &str) -> Error {
    wrong(
        context,
        format!("{problem}: run `{}`", migrate_command(context)),
    )
}

fn migrate_command(context: &StoreContext) -> String {
    let url = crate::config::quoted(&context.config.url());
    format!("distlock migrate --backend {url}")
}
