//! Reads rows into values. A value that cannot be read is an error of kind `Corrupt`, never a free
//! lock.

use std::time::{Duration, SystemTime};

use distlock_core::{
    Entry, Error, ErrorKind, FencingToken, HolderInfo, LockName, OwnerId, RecordKey, Result,
    Version,
};
use sqlx::{Row as _, mysql::MySqlRow};
use uuid::Uuid;

use super::context::StoreContext;
use crate::{
    dialect::{FORCED, LockRow},
    driver_panics::decode,
    statement_error::{Access, StatementError},
    wait::remaining_of_hint,
};

/// Reads a column without a check of the column's declared type, because a table that was changed
/// by hand may have another type.
pub(crate) fn column<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T>
where
    T: sqlx::Decode<'r, sqlx::MySql>,
{
    decode(|| row.try_get_unchecked(index))
        .map_err(|error| StatementError::mysql(error, Access::Read).into_error())
}

pub(crate) fn string(row: &MySqlRow, index: usize) -> Result<String> {
    Ok(optional_string(row, index)?.unwrap_or_default())
}

fn optional_string(row: &MySqlRow, index: usize) -> Result<Option<String>> {
    // The text is read as bytes, because the driver reports text with a binary collation as binary
    // data.
    let bytes: Option<Vec<u8>> = column(row, index)?;
    bytes
        .map(|bytes| String::from_utf8(bytes).map_err(|_| corrupt("a text is not UTF-8")))
        .transpose()
}

/// A token or version.
pub(super) fn token(number: u64) -> Result<FencingToken> {
    FencingToken::new(number).map_err(|_| corrupt(format!("token {number} is out of range")))
}

fn token_column(row: &MySqlRow, index: usize) -> Result<FencingToken> {
    let number: i64 = column(row, index)?;
    let number = u64::try_from(number);
    token(number.map_err(|_| corrupt("a token is negative"))?)
}

/// Reads the name of a row of the lock table, and the rest of the row.
pub(super) fn lock(row: &MySqlRow, context: &StoreContext) -> Result<(LockName, Result<LockRow>)> {
    let name = string(row, 0)?;
    let name = LockName::new(name).map_err(|error| corrupt(error.message()))?;
    let read = lock_row(row, context).map_err(|error| error.about(&name));
    Ok((name, read))
}

fn lock_row(row: &MySqlRow, context: &StoreContext) -> Result<LockRow> {
    let owner: Option<Vec<u8>> = column(row, 1)?;
    let owner = owner
        .map(|bytes| Uuid::from_slice(&bytes))
        .transpose()
        .map_err(|_| corrupt("its holder's identity does not have 16 bytes"))?
        .filter(|owner| !owner.is_nil())
        .map(OwnerId::from_uuid);
    let token = token_column(row, 2)?;
    let until: i64 = column(row, 3)?;
    let now: i64 = column(row, 9)?;
    let expires_in = after(now, until);
    let held = match owner {
        Some(_) if !expires_in.is_zero() => {
            let mut holder = HolderInfo::new(string(row, 5)?);
            holder.meta = optional_string(row, 6)?;
            holder.token = Some(token);
            let acquired = after(0, column(row, 4)?);
            holder.acquired_at = SystemTime::UNIX_EPOCH.checked_add(acquired);
            holder.expires_in = Some(expires_in);
            Some(holder)
        }
        _ => None,
    };
    let hinted_by: i64 = column(row, 7)?;
    let hint_remaining = after(now, column(row, 8)?);
    Ok(LockRow {
        owner,
        held,
        last_token: token,
        nonce: None,
        // An unreadable `meta`, or any other text, means that no force-release is known.
        forced: owner.is_none()
            && column::<Option<&[u8]>>(row, 6).ok().flatten() == Some(FORCED.as_bytes()),
        freed_at: None,
        hint_remaining: remaining_of_hint(
            hinted_by,
            context.common.wait_group.hint_id(),
            hint_remaining,
        ),
    })
}

/// Reads a row of the record table.
pub(super) fn record(row: &MySqlRow) -> Result<(RecordKey, Entry)> {
    let key = RecordKey::new(string(row, 0)?).map_err(|error| corrupt(error.message()))?;
    let version = Version::new(token_column(row, 1)?.get());
    let age = after(column(row, 3)?, column(row, 4)?);
    Ok((key, Entry::new(version, column(row, 2)?, Some(age))))
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
