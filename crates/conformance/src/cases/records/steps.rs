//! The steps that the cases of records share.

use std::sync::Arc;

use distlock_core::{Entry, Expect, RecordKey, Records, Version, Written};

use crate::{Outcome, failure::fail, support::Context};

/// Opens the records of two independent clients.
pub(super) async fn open_two_clients(
    cx: &Context,
) -> Outcome<(Arc<dyn Records>, Arc<dyn Records>)> {
    Ok((cx.store().await?.records(), cx.store().await?.records()))
}

/// Writes a record, which must succeed. Returns its version.
pub(super) async fn put_record(
    records: &dyn Records,
    key: &RecordKey,
    value: &[u8],
    expect: Expect,
) -> Outcome<Version> {
    match records.put(key, value, expect).await? {
        Written::Stored(version) => Ok(version),
        Written::Conflict => fail!(
            "{expect:?} does not match {key:?}: {:?}",
            records.get(key).await?
        ),
    }
}

/// Tries to write a record, which must be a conflict.
pub(super) async fn expect_conflict(
    records: &dyn Records,
    key: &RecordKey,
    expect: Expect,
) -> Outcome {
    match records.put(key, b"must not be written", expect).await? {
        Written::Conflict => Ok(()),
        Written::Stored(version) => fail!("{expect:?} matched {key:?} and became {version:?}"),
    }
}

/// Reads a record, which must exist.
pub(super) async fn read_record(records: &dyn Records, key: &RecordKey) -> Outcome<Entry> {
    match records.get(key).await? {
        Some(entry) => Ok(entry),
        None => fail!("{key:?} is not there"),
    }
}
