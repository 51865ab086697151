//! Access to the session directory: account records, bans, drain marks and the roster.
//!
//! Every write is conditional on the version that was read. This module decides nothing about
//! sessions.

use std::sync::Arc;

use distlock_core::{Clock, Entry, Error, ErrorKind, RecordKey, Records, Result};

use serde::de::DeserializeOwned;

/// Attempts at one change of a record while other nodes keep changing the same record.
pub(super) const MAX_ATTEMPTS: u32 = 16;

/// The records of the flow in the store.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(super) records: Arc<dyn Records>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Directory {
    pub(crate) fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        Self { records, clock }
    }
}

/// Reads a record's JSON.
pub(super) fn parse<T: DeserializeOwned>(key: &RecordKey, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        Error::new(
            ErrorKind::Corrupt,
            format!("record {:?} cannot be read: {error}", key.as_str()),
        )
    })
}

/// The error after [`MAX_ATTEMPTS`] conflicting writes.
pub(super) fn too_many_conflicts(key: &RecordKey) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "record {:?} changed {MAX_ATTEMPTS} times in between",
            key.as_str()
        ),
    )
}
