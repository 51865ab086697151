//! The tables: which of them are there and of which version, made where there are none, and brought up to date.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use distlock_core::{Error, ErrorKind, Result};

use super::{
    context::StoreContext,
    migrations::MIGRATIONS,
    raw_connection::{Answers, Wire},
    rows, schema,
    server::{SESSION, VARIABLES, Variables, connect, place},
};
use crate::{
    migrate::{self, LATEST, Migration, REQUIRED, TablesStatus},
    schema_check::{SchemaDifference, mends, refusal, told},
    statement_error::Access,
};

/// How long opening waits for other processes that make the tables at the same moment.
const SETTING_UP: Duration = Duration::from_secs(3);

/// Whoever makes the tables writes that last, unless it is stopped before.
const UNFINISHED: &str = migrate::EMPTIED;

const ONLY_SOME: &str = "has only some of distlock's tables, or another program's tables of the same names. For the latter, \
     choose another database or a `table_prefix`; to make what is missing";

/// Which of our tables are there.
enum Found {
    Nothing,
    /// Not all of them, or not what is in them from the beginning: what is wrong.
    Partly(&'static str),
    /// All of them: their version, and what names them.
    Whole(i64, String),
}

/// Sets the session up, makes the tables where there are none and that is wanted, and finds them as they must be. Says who
/// the server is, and what names the tables.
pub(super) async fn ready(wire: &mut Wire, context: &StoreContext) -> Result<(Variables, String)> {
    let (variables, found) = introduce(wire, context).await?;
    let (version, tables) = match found {
        Found::Whole(version, tables) => (version, tables),
        Found::Partly(problem) => return Err(not_migrated(context, problem)),
        Found::Nothing if context.was_opened() => return Err(wrong(context, migrate::GONE)),
        Found::Nothing if !context.config.migrate => {
            return Err(not_migrated(context, "has no tables of distlock"));
        }
        Found::Nothing => {
            upgrade(wire, context, 0).await?;
            match meta(wire, context).await? {
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
    not_later(context, version)?;
    if version < LATEST && context.config.migrate && !context.was_opened() {
        // As where this user may not make tables. Locks do without what is missing.
        if let Err(error) = upgrade(wire, context, version).await {
            tracing::debug!(%error, "the tables stay at version {version}");
        }
    }
    tables_are_whole(wire, context).await?;
    Ok((variables, tables))
}

/// Brings the tables up to date. Says from which version it went, and what it mended in tables that
/// had the latest one.
pub(super) async fn migrate(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let mut wire = connect(context).await?;
    let (_, found) = introduce(&mut wire, context).await?;
    let version = match found {
        Found::Whole(version, _) => version,
        Found::Nothing => 0,
        // As when whoever made them was stopped: here, one table comes after the other.
        Found::Partly(_) => {
            parts_are_ours(&mut wire, context).await?;
            0
        }
    };
    not_later(context, version)?;
    if version < LATEST {
        upgrade(&mut wire, context, version).await?;
    }
    let mends = former(&mut wire, context).await?;
    for mend in &mends {
        run(&mut wire, context, context.statements.script(mend.sql)).await?;
    }
    tables_are_whole(&mut wire, context).await?;
    leave(wire).await;
    Ok((version, mends))
}

/// The version of the tables, 0 when there are none, and what is to be mended in tables that have
/// the latest one. Changes nothing.
pub(super) async fn version(context: &StoreContext) -> Result<(i64, Vec<Migration>)> {
    let mut wire = connect(context).await?;
    let (_, found) = introduce(&mut wire, context).await?;
    let version = match found {
        Found::Whole(version, _) => version,
        Found::Nothing => 0,
        Found::Partly(problem) => return Err(not_migrated(context, problem)),
    };
    not_later(context, version)?;
    let mends = if version >= REQUIRED {
        former(&mut wire, context).await?
    } else {
        Vec::new()
    };
    leave(wire).await;
    Ok((version, mends))
}

async fn leave(wire: Wire) {
    if let Err(error) = wire.close().await {
        tracing::debug!(%error, "a connection did not close cleanly");
    }
}

/// Sets the session up, and asks who is there and what is there.
async fn introduce(wire: &mut Wire, context: &StoreContext) -> Result<(Variables, Found)> {
    let mut script = SESSION.to_owned();
    let _ = write!(script, "; {}; {VARIABLES}", context.statements.objects());
    let found = run(wire, context, script).await?;
    let mut rows_found = found.rows.iter();
    let mut objects: i64 = match rows_found.next() {
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
        match present(wire, context, objects).await? {
            // Another process may be making them: here, one table comes after the other.
            Found::Partly(_) if context.clock.now() < deadline => {
                context.clock.sleep(SETTING_UP / 100).await;
                let found = run(wire, context, context.statements.objects()).await?;
                objects = match found.rows.first() {
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
async fn present(wire: &mut Wire, context: &StoreContext, objects: i64) -> Result<Found> {
    Ok(match objects {
        0 => Found::Nothing,
        3 => match meta(wire, context).await? {
            Some((version, tables)) => Found::Whole(version, tables),
            None => Found::Partly(UNFINISHED),
        },
        _ => Found::Partly(ONLY_SOME),
    })
}

/// The tables' version, and what names them; `None` when that was not written yet.
async fn meta(wire: &mut Wire, context: &StoreContext) -> Result<Option<(i64, String)>> {
    let found = run(wire, context, context.statements.meta()).await?;
    let row = found.rows.first();
    row.map(|row| Ok((rows::column(row, 0)?, rows::string(row, 1)?)))
        .transpose()
}

/// Whether those of our tables that are there are as a version of ours made them: others are
/// another program's, and are left alone.
async fn parts_are_ours(wire: &mut Wire, context: &StoreContext) -> Result<()> {
    let found = run(wire, context, context.statements.parts()).await?;
    let differences = schema::compare(context, &found, true)?;
    if mends(&differences).is_some() {
        return Ok(());
    }
    let problem = format!(
        "has tables that are not as distlock makes them, so they are another program's or were changed by hand ({}): choose \
         another database or a `table_prefix`",
        told(&differences)
    );
    Err(wrong(context, problem))
}

fn not_later(context: &StoreContext, version: i64) -> Result<()> {
    migrate::too_late(version).map_or(Ok(()), |problem| Err(wrong(context, problem)))
}

/// Whether the tables are what the promises rest on.
async fn tables_are_whole(wire: &mut Wire, context: &StoreContext) -> Result<()> {
    let differences = differences(wire, context).await?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(unlike(context, &differences))
}

/// What brings tables of a former make up to date.
async fn former(wire: &mut Wire, context: &StoreContext) -> Result<Vec<Migration>> {
    let differences = differences(wire, context).await?;
    mends(&differences).ok_or_else(|| unlike(context, &differences))
}

async fn differences(wire: &mut Wire, context: &StoreContext) -> Result<Vec<SchemaDifference>> {
    let found = run(wire, context, context.statements.parts()).await?;
    schema::compare(context, &found, false)
}

fn unlike(context: &StoreContext, differences: &[SchemaDifference]) -> Error {
    let prefix = &context.config.table_prefix;
    let problem = refusal(differences, prefix, ", ", &migrate_command(context));
    Error::new(
        ErrorKind::InvalidConfig,
        format!("{}: {problem}", place(context)),
    )
}

/// Applies the migrations that are missing. Each statement of theirs may be repeated: here, every change of a table is a
/// transaction of its own, and others may do the same at the same time.
async fn upgrade(wire: &mut Wire, context: &StoreContext, version: i64) -> Result<()> {
    for migration in TablesStatus::at(version, &MIGRATIONS).migrations {
        run(wire, context, context.statements.script(migration.sql)).await?;
    }
    Ok(())
}

async fn run(wire: &mut Wire, context: &StoreContext, script: String) -> Result<Answers> {
    context.counters.count("open");
    wire.exchange(context, script, Access::Read)
        .await
        .map_err(|broken| {
            let error = broken.failed.into_error();
            Error::new(error.kind(), place(context)).caused_by(error)
        })
}

fn wrong(context: &StoreContext, problem: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("the database {} {problem}", place(context)),
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
