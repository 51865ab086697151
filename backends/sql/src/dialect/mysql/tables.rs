//! Finds and creates the tables.
//!
//! In MySQL, each `CREATE TABLE` is a transaction of its own. So a process may see only some of the
//! tables while another process creates them. Opening a store waits for that other process. Tables
//! that exist are never changed.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};

use super::{
    connect::{NewConnection, connect, database_label},
    context::StoreContext,
    pool::{RawConnection, StatementResults},
    rows, schema,
};
use crate::{
    statement_error::Access,
    tables::{self, describe, migration, refusal},
};

/// Creates the tables that are missing. A repeated run changes nothing.
const MIGRATION: &str = include_str!("../../../migrations/mysql/0001_tables.sql");

/// The time limit for another process that is creating the tables while this process opens a store.
const SETTING_UP: Duration = Duration::from_secs(3);

/// The problem of tables without their meta row. The row is the last step of creating the tables:
/// if the row is absent, the creating process was stopped before that step.
const UNFINISHED: &str = tables::META_EMPTY;

const ONLY_SOME: &str = "has another program's tables of the same names: choose another database \
    or a `table_prefix`; or this user lacks the rights on some of distlock's tables: grant them; \
    or it has only some of them: create the missing ones";

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
            return Err(wrong(context, tables::TABLES_GONE));
        }
        TablesFound::Nothing if !context.config.migrate => {
            return Err(not_migrated(context, "has no tables of distlock"));
        }
        TablesFound::Nothing => {
            create(connection, context).await?;
            match meta(connection, context).await? {
                Some(meta) => meta,
                None => return Err(not_migrated(context, UNFINISHED)),
            }
        }
    };
    check_version(context, version)?;
    check_tables(connection, context).await?;
    Ok(tables)
}

/// Creates the tables that are missing, and the meta row. Returns whether something was missing.
pub(super) async fn migrate(context: &StoreContext) -> Result<bool> {
    let NewConnection {
        mut connection,
        tables_present,
        ..
    } = connect(context).await?;
    let missing = match found(&mut connection, context, tables_present).await? {
        TablesFound::Whole(version, _) => {
            check_version(context, version)?;
            false
        }
        TablesFound::Nothing => true,
        // For example, the process that created the tables was stopped between two tables.
        TablesFound::Partly(_) => {
            check_present_parts(&mut connection, context).await?;
            true
        }
    };
    if missing {
        create(&mut connection, context).await?;
    }
    check_tables(&mut connection, context).await?;
    close(connection).await;
    Ok(missing)
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
    let deadline = context.common.clock.now() + SETTING_UP;
    loop {
        match present(connection, context, tables_present).await? {
            // The other process makes the tables one after the other.
            TablesFound::Partly(_) if context.common.clock.now() < deadline => {
                context.common.clock.sleep(SETTING_UP / 100).await;
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
        4 => match meta(connection, context).await? {
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

/// Checks that every present table has the form that distlock creates. A table with another form
/// may belong to another program, so that the migration is refused.
async fn check_present_parts(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let found = run(connection, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, true)?;
    if differences.is_empty() {
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

fn check_version(context: &StoreContext, version: i64) -> Result<()> {
    tables::version_problem(version).map_or(Ok(()), |problem| Err(wrong(context, problem)))
}

/// Checks that the tables have the required form.
async fn check_tables(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let found = run(connection, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, false)?;
    if differences.is_empty() {
        return Ok(());
    }
    let (prefix, url) = (&context.config.table_prefix, context.config.url());
    let refused = refusal(&differences, prefix, ", ", url);
    Err(Error::new(refused.kind(), database_label(context)).caused_by(refused))
}

/// Creates the missing tables and the meta row. Each statement of the migration can be repeated
/// safely. That is necessary, because a process may be stopped between two statements, and because
/// other processes may create the same tables at the same time.
async fn create(connection: &mut RawConnection, context: &StoreContext) -> Result<()> {
    let script = context.statements.script(MIGRATION);
    run(connection, context, script).await.map(drop)
}

async fn run(
    connection: &mut RawConnection,
    context: &StoreContext,
    script: String,
) -> Result<StatementResults> {
    context.common.counters.count("open");
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
    wrong(context, problem).with_remedy(migration(context.config.url()))
}
