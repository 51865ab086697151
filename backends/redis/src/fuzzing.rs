//! Parsers of this crate for the fuzz targets of the repository. These parsers are not a part of
//! the crate's interface.

use distlock_core::{Entry, HolderInfo, LockName, RecordKey, Result};

use crate::format::value;

/// Parses the value of a lock; `left` is the answer to `PTTL`.
///
/// # Errors
/// For a value that this library never writes.
pub fn holder(name: &LockName, value: &[u8], left: i64) -> Result<HolderInfo> {
    value::holder(name, value, left)
}

/// Parses the value of a record; `now` is in microseconds since 1970.
///
/// # Errors
/// For a value that this library never writes.
pub fn entry(key: &RecordKey, value: &[u8], now: u64) -> Result<Entry> {
    value::entry(key, value, now)
}
