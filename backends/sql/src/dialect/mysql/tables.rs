//! Finds, creates and upgrades the tables.
//!
//! In MySQL, each `CREATE` or `ALTER TABLE` is a transaction of its own. So a process may see only
//! some of the tables while another process creates them. Opening a store waits for that other
//! process. Opening adds missing tables, but never changes tables that exist.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

use super::{
    context::StoreContext,
    migrations::MIGRATIONS,
    raw_connection::{RawConnection, StatementResults},
    rows, schema,
    server::{NewConnection, connect, database_label},
};
use crate::{
    migrate::{self, LATEST, Migration, REQUIRED, TablesStatus},
    schema_check::{SchemaDifference, describe, refusal, repairs},
    statement_error::Access,
};

/// The time limit for another process that is creating the tables while this process opens a store.
const SETTING_UP: Duration = Duration::from_secs(3);

/// The problem of tables without their meta row. The row is the last step of creating the tables:
/// if the row is absent, the creating process was stopped before that step.
const UNFINISHED: &str = migrate::META_EMPTY;

const ONLY_SOME: &str = "has only some of distlock's tables, or another program's tables of the \
    same names. For the latter, \
     choose another database or a `table_prefix`; to make what is missing";

/// The tables that are present.
enum TablesFound {
    Nothing,
    /// At least one table is missing, or the meta row is missing. The text names the problem.
    Partly(&'static str),
    /// All tables are present: their version, and the name of their history.
    Whole(i64, String),
}

/// Checks the tables. Creates absent tables first, if the configuration allows that. Returns the
/// name of the tables' history.
pub(super) async fn ready(
    connection: &mut RawConnection,
    context: &StoreContext,
    tables_present: i64,
) -> Result<String> {
    let (version, tables) = match found(connection, context, tables_present).await? {
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
        // An upgrade can fail, for example if this user must not create tables. The failure is only
        // logged, because locks work without the table of version 2.
        if let Err(error) = upgrade(connection, context, version).await {
            tracing::debug!(%error, "the tables stay at version {version}");
        }
    }
    check_tables(connection, context).await?;
    Ok(tables)
}

/// Upgrades the tables. Returns the former version, and the repairs that were applied.
pub(super) async fn migrate(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let NewConnection {
        mut connection,
        tables_present,
        ..
    } = connect(context).await?;
    let version = match found(&mut connection, context, tables_present).await? {
        TablesFound::Whole(version, _) => version,
        TablesFound::Nothing => 0,
        // For example, the process that created the tables was stopped between two tables.
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
    close(connection).await;
    Ok((version, repairs))
}

/// The version of the tables, 0 when they are absent, and the repairs that tables of the latest
/// version need. Changes nothing.
pub(super) async fn version(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let NewConnection {
        mut connection,
        tables_present,
        ..
    } = connect(context).await?;
    let version = match found(&mut connection, context, tables_present).await? {
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
    close(connection).await;
    Ok((version, repairs))
}

async fn close(connection: RawConnection) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "a connection did not close cleanly");
    }
}

/// The state of the tables. Another process may be creating them.
async fn found(
    connection: &mut RawConnection,
    context: &StoreContext,
    mut tables_present: i64,
) -> Result<TablesFound> {
    let deadline = context.clock.now() + SETTING_UP;
    loop {
        match present(connection, context, tables_present).await? {
            // The other process makes the tables one after the other.
            TablesFound::Partly(_) if context.clock.now() < deadline => {
                context.clock.sleep(SETTING_UP / 100).await;
                let found = run(connection, context, context.statements.tables_present()).await?;
                tables_present = match found.rows.first() {
                    Some(row) => rows::column(row, 0)?,
                    None => 0,
                };
            }
            found => return Ok(found),
        }
    }
}

/// The state of the tables, from the number of tables that exist.
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

/// The tables' version and the name of their history; `None` when the meta row is absent.
async fn meta(
    connection: &mut RawConnection,
    context: &StoreContext,
) -> Result<Option<(i64, String)>> {
    let found = run(connection, context, context.statements.meta()).await?;
    let row = found.rows.first();
    row.map(|row| Ok((rows::column(row, 0)?, rows::string(row, 1)?)))
        .transpose()
}

/// Checks that every present table has a form that some version of distlock made. A table with
/// another form may belong to another program, so that the migration is refused.
async fn check_present_parts(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let found = run(connection, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, true)?;
    if repairs(&differences).is_some() {
        return Ok(());
    }
    let problem = format!(
        "has tables that are not as distlock makes them, so they are another program's or were \
            changed by hand ({}): choose \
         another database or a `table_prefix`",
        describe(&differences)
    );
    Err(wrong(context, problem))
}

fn check_not_newer(context: &StoreContext, version: i64) -> Result<()> {
    migrate::newer_version_problem(version).map_or(Ok(()), |problem| Err(wrong(context, problem)))
}

/// Checks that the tables have the required form.
async fn check_tables(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let differences = differences(connection, context).await?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(schema_error(context, &differences))
}

/// The repairs that tables of an older release need.
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

/// Applies the missing migrations. Each statement of a migration can be repeated safely. That is
/// necessary, because a process may be stopped between two statements, and because other processes
/// may apply the same migrations at the same time.
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
