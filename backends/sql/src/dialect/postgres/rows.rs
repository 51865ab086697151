//! Reads rows into values. A value that cannot be read is an error of kind `Corrupt`, never a free
//! lock.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use distlock_core::{
    Entry, Error, ErrorKind, FencingToken, HolderInfo, LockName, OwnerId, RecordKey, Result,
    Version,
};
use sqlx::{PgConnection, Postgres, Row as _, postgres::PgRow};
use uuid::Uuid;

use super::context::StoreContext;
use crate::{
    rows::{FORCED, LockRow},
    statement_error::{Access, StatementError, decode},
    wait::remaining_of_hint,
};

/// Reads one column.
pub(super) fn column<'r, T>(row: &'r PgRow, index: usize) -> Result<T>
where
    T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
{
    decode(|| row.try_get(index))
        .map_err(|error| StatementError::postgres(error, Access::Read).into_error())
}

/// Reads a token or version.
pub(super) fn token(row: &PgRow, index: usize) -> Result<FencingToken> {
    let number: i64 = column(row, index)?;
    u64::try_from(number)
        .ok()
        .and_then(|number| FencingToken::new(number).ok())
        .ok_or_else(|| corrupt(format!("token {number} is out of range")))
}

/// Reads the name of a row of the lock table, and the rest of the row. `hint_id` is the hint id of
/// this process.
pub(super) fn lock(row: &PgRow, hint_id: i64) -> Result<(LockName, Result<LockRow>)> {
    let name: String = column(row, 0)?;
    let name = LockName::new(name).map_err(|error| corrupt(error.message()))?;
    let read = lock_row(row, hint_id).map_err(|error| error.about(&name));
    Ok((name, read))
}

fn lock_row(row: &PgRow, hint_id: i64) -> Result<LockRow> {
    let owner: Option<Uuid> = column(row, 1)?;
    let owner = owner.map(OwnerId::from_uuid);
    let token = token(row, 2)?;
    let expires_in = duration(finite(column(row, 3)?, "expires_at")?);
    let held = match owner {
        Some(_) if !expires_in.is_zero() => {
            let mut holder = HolderInfo::new(column::<String>(row, 5)?);
            holder.meta = column(row, 6)?;
            holder.token = Some(token);
            // This time is only shown to people, so that an unusable value is no error.
            let acquired = column::<Option<i64>>(row, 4)?.map(duration);
            holder.acquired_at = acquired.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time));
            holder.expires_in = Some(expires_in);
            Some(holder)
        }
        _ => None,
    };
    // Correctness does not depend on a hint, so that an infinite time counts as no hint.
    let hint_remaining = duration(column::<Option<i64>>(row, 8)?.unwrap_or(0));
    let hinted_by: i64 = column(row, 7)?;
    Ok(LockRow {
        owner,
        held,
        last_token: token,
        nonce: column(row, 9)?,
        // An unreadable `meta`, or any other text, means that no force-release is known.
        forced: owner.is_none() && column::<Option<&str>>(row, 6).ok().flatten() == Some(FORCED),
        freed_at: None,
        hint_remaining: remaining_of_hint(hinted_by, hint_id, hint_remaining),
    })
}

/// Reads a row of the record table.
pub(super) fn record(row: &PgRow) -> Result<(RecordKey, Entry)> {
    let key: String = column(row, 0)?;
    let key = RecordKey::new(key).map_err(|error| corrupt(error.message()))?;
    let version = Version::new(token(row, 1)?.get());
    let age = duration(finite(column(row, 3)?, "written_at")?);
    let entry = Entry::new(version, column(row, 2)?, Some(age));
    Ok((key, entry.read_at(duration(column(row, 4)?))))
}

/// A time that must be finite. The statements return null for an infinite time.
fn finite(micros: Option<i64>, column: &str) -> Result<i64> {
    micros.ok_or_else(|| {
        corrupt(format!(
            "its {column} is infinite, so the row was changed by hand: set it to a time"
        ))
    })
}

/// The duration of `micros` microseconds; zero for a negative number.
fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn corrupt(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, problem)
}

/// Reads the rows of these names on a connection.
pub(super) async fn read_rows(
    connection: &mut PgConnection,
    context: &StoreContext,
    names: Vec<String>,
) -> Result<HashMap<LockName, Result<LockRow>>, StatementError> {
    context.common.counters.count("read_rows");
    let rows = sqlx::query(context.statements.look.text())
        .bind(names)
        .fetch_all(connection)
        .await
        .map_err(|error| StatementError::postgres(error, Access::Read))?;
    let hint_id = context.common.wait_group.hint_id();
    rows.iter()
        .map(|row| lock(row, hint_id).map_err(StatementError::corrupt))
        .collect()
}
