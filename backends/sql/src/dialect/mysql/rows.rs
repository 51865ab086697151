//! Reads rows into values. A value that cannot be read is an error of kind `Corrupt`, never a free
//! lock.

use std::time::{Duration, SystemTime};

use distlock_core::{
    Entry, Error, ErrorKind, FencingToken, HolderInfo, LockName, OwnerId, RecordKey, Result,
    Version,
};
use sqlx::{Row as _, mysql::MySqlRow};
use uuid::Uuid;

use super::{
    context::StoreContext,
    pool::{OpenConnection, StatementResults},
};
use crate::{
    rows::{FORCED, LockRow},
    statement_error::{Access, StatementError, decode},
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
    let now = column(row, 4)?;
    let age = after(column(row, 3)?, now);
    let entry = Entry::new(version, column(row, 2)?, Some(age));
    Ok((key, entry.read_at(after(0, now))))
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

/// The space for one operation's statement without its values, in bytes.
pub(super) const PER_OPERATION: usize = 4096;

/// Reads the rows of these names on a connection. With the access `Write`, a lost connection counts
/// as an unknown outcome.
pub(super) async fn read_rows(
    open: &mut OpenConnection,
    context: &StoreContext,
    names: &[&LockName],
    access: Access,
) -> Result<Vec<(LockName, Result<LockRow>)>, StatementError> {
    let mut looks = Vec::with_capacity(names.len());
    for names in fitting_parts(names, |it| it.as_str().as_bytes(), open.packet) {
        let statement = context.statements.read_rows(names.iter().copied());
        let found = open.send(context, "read_rows", statement, access).await;
        for row in &found.map_err(|broken| broken.failed)?.rows {
            looks.push(lock(row, context).map_err(StatementError::corrupt)?);
        }
    }
    Ok(looks)
}

/// Splits `all` into parts that each fit into one statement of `packet` bytes. Usually there is
/// only one part.
pub(super) fn fitting_parts<'a, T>(
    all: &'a [T],
    bytes: impl Fn(&'a T) -> &'a [u8],
    packet: usize,
) -> impl Iterator<Item = &'a [T]> {
    // Each byte needs two hexadecimal digits.
    let room = packet.saturating_sub(PER_OPERATION) / 2;
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut listed = 0;
        let fits = rest.iter().position(|it| {
            listed += bytes(it).len() + 2;
            listed > room
        });
        let (part, others) = rest.split_at(fits.map_or(rest.len(), |fits| fits.max(1)));
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

pub(super) fn first_columns(answers: &StatementResults) -> Result<Vec<Vec<u8>>> {
    let rows = answers.rows.iter();
    rows.map(|row| column(row, 0)).collect()
}
