//! Reads rows into values. A value that cannot be read is an error of kind `Corrupt`, never a free
//! lock.

use std::time::{Duration, SystemTime};

use distlock_core::{
    Entry, Error, ErrorKind, FencingToken, HolderInfo, LockName, OwnerId, RecordKey, Result,
    Version,
};
use serde::Serialize;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::context::{ClockReadings, StoreContext};
use crate::{
    rows::{FORCED, LockRow},
    statement_error::{Access, StatementError},
    wait::remaining_of_hint,
};

/// Reads one column.
pub(super) fn column<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(index)
        .map_err(|error| StatementError::sqlite(error, Access::Read).into_error())
}

/// Reads a token or version.
pub(super) fn token(row: &SqliteRow, index: usize) -> Result<FencingToken> {
    let number: i64 = column(row, index)?;
    u64::try_from(number)
        .ok()
        .and_then(|number| FencingToken::new(number).ok())
        .ok_or_else(|| corrupt(format!("token {number} is out of range")))
}

pub(super) fn version(row: &SqliteRow, index: usize) -> Result<Version> {
    Ok(Version::new(token(row, index)?.get()))
}

/// Reads the name of a row of the lock table, and the rest of the row.
pub(super) fn lock(
    row: &SqliteRow,
    context: &StoreContext,
    now: ClockReadings,
) -> Result<(LockName, Result<LockRow>)> {
    let name: String = column(row, 0)?;
    let name = LockName::new(name).map_err(|error| corrupt(error.message()))?;
    let read = lock_row(row, context, now).map_err(|error| error.about(&name));
    Ok((name, read))
}

fn lock_row(row: &SqliteRow, context: &StoreContext, now: ClockReadings) -> Result<LockRow> {
    let owner: Option<&[u8]> = column(row, 1)?;
    let owner = owner
        .map(|bytes| Uuid::from_slice(bytes).map(OwnerId::from_uuid))
        .transpose()
        .map_err(|_| corrupt("its holder's identity does not have 16 bytes"))?;
    let token = token(row, 2)?;
    let boot: &[u8] = column(row, 3)?;
    if boot.len() != 16 {
        return Err(corrupt("its boot id does not have 16 bytes"));
    }
    let this_boot = boot == context.boot;
    let until: i64 = column(row, 4)?;
    let expires_in = after(now.boot, until);
    let held = match owner {
        Some(_) if this_boot && !expires_in.is_zero() => {
            let mut holder = HolderInfo::new(column::<String>(row, 6)?);
            holder.meta = column(row, 7)?;
            holder.token = Some(token);
            let acquired = after(0, column(row, 5)?);
            holder.acquired_at = SystemTime::UNIX_EPOCH.checked_add(acquired);
            holder.expires_in = Some(expires_in);
            Some(holder)
        }
        _ => None,
    };
    let hint_remaining = after(now.boot, column(row, 9)?);
    let hinted_by: i64 = column(row, 8)?;
    let nonce: Option<&[u8]> = column(row, 10)?;
    Ok(LockRow {
        owner,
        held,
        last_token: token,
        nonce: nonce.and_then(|bytes| Uuid::from_slice(bytes).ok()),
        // An unreadable `meta`, or any other text, means that no force-release is known.
        forced: owner.is_none() && column::<Option<&str>>(row, 7).ok().flatten() == Some(FORCED),
        freed_at: (owner.is_none() && this_boot).then_some(until),
        hint_remaining: if this_boot {
            remaining_of_hint(
                hinted_by,
                context.common.wait_group.hint_id(),
                hint_remaining,
            )
        } else {
            Duration::ZERO
        },
    })
}

/// Reads a row of the record table.
pub(super) fn record(
    row: &SqliteRow,
    context: &StoreContext,
    now: ClockReadings,
) -> Result<(RecordKey, Entry)> {
    let key: String = column(row, 0)?;
    let key = RecordKey::new(key).map_err(|error| corrupt(error.message()))?;
    let boot: &[u8] = column(row, 3)?;
    // The age of a row of an earlier boot is unknown, because nothing measures the time while the
    // machine is off.
    let age = match boot == context.boot {
        true => Some(after(column(row, 4)?, now.boot)),
        false => None,
    };
    let entry = Entry::new(version(row, 1)?, column(row, 2)?, age);
    Ok((key, entry.read_at(after(0, now.boot))))
}

/// The time from `earlier` to `later`, both in microseconds; zero when `later` is not the later
/// one.
fn after(earlier: i64, later: i64) -> Duration {
    let micros = later.saturating_sub(earlier);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn corrupt(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, problem)
}

/// Reads the rows of these names on a connection.
pub(super) async fn read_rows(
    connection: &mut SqliteConnection,
    context: &StoreContext,
    names: &[&LockName],
    now: ClockReadings,
) -> Result<Vec<(LockName, Result<LockRow>)>, StatementError> {
    let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
    context.common.counters.count("read_rows");
    let rows = sqlx::query(context.statements.look.text())
        .bind(json(&names))
        .fetch_all(connection)
        .await
        .map_err(|error| StatementError::sqlite(error, Access::Read))?;
    rows.iter()
        .map(|row| lock(row, context, now).map_err(StatementError::corrupt))
        .collect()
}

/// The rows as a JSON array for `json_each`.
pub(super) fn json<T: Serialize>(rows: &[T]) -> String {
    // Strings, numbers and null cannot fail to serialise.
    serde_json::to_string(rows).unwrap_or_default()
}

/// All ids as one blob: 16 bytes for each id, in the order of the rows.
pub(super) fn id_blob<'a>(ids: impl Iterator<Item = &'a Uuid>) -> Vec<u8> {
    ids.flat_map(|id| *id.as_bytes()).collect()
}

/// All values as one blob. The statement cuts each value out by its position.
#[derive(Default)]
pub(super) struct ValueBlob {
    /// The values one after the other. [`Self::into_bytes`] adds one byte that belongs to no value,
    /// because SQLite's `substr` of an empty blob is NULL.
    bytes: Vec<u8>,
}

impl ValueBlob {
    /// Appends a value, and returns its start and length.
    pub(super) fn push(&mut self, value: &[u8]) -> (usize, usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        (start, value.len())
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}
