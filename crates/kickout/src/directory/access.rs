//! Access to the session directory: account records, bans, drain marks and the roster.
//!
//! Every write is conditional on the version that was read. This module decides nothing about
//! sessions.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use distlock_core::{Clock, Entry, Error, ErrorKind, RecordKey, Records, Result};

use serde::de::DeserializeOwned;

/// Attempts at one change of a record while other nodes keep changing the same record.
pub(super) const MAX_ATTEMPTS: u32 = 16;

/// The records of the flow in the store.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(super) records: Arc<dyn Records>,
    pub(super) clock: Arc<dyn Clock>,
    /// Whether the store failed this node's last change: a write of a record, or the acquisition of
    /// an account's lock.
    refuses: Arc<AtomicBool>,
}

impl Directory {
    pub(crate) fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        let refuses = Arc::default();
        Self {
            records,
            clock,
            refuses,
        }
    }

    /// Whether the store took this node's last change.
    pub(crate) fn takes_changes(&self) -> bool {
        !self.refuses.load(Ordering::Relaxed)
    }

    /// Notes whether the store took a change, and logs when that is no longer so, and when it is so
    /// again.
    pub(crate) fn note_change<T>(&self, outcome: &Result<T>) {
        let failed = outcome.as_ref().err().filter(|error| {
            matches!(
                error.kind(),
                ErrorKind::AccessDenied
                    | ErrorKind::LimitExceeded
                    | ErrorKind::OutcomeUnknown
                    | ErrorKind::Unavailable
            )
        });
        // An error of another kind says nothing about the store.
        if failed.is_none() && outcome.is_err() {
            return;
        }
        let refused_before = self.refuses.swap(failed.is_some(), Ordering::Relaxed);
        match failed {
            Some(error) if !refused_before => tracing::warn!(
                %error,
                "the store refuses changes, so logins fail until it takes changes again"
            ),
            None if refused_before => tracing::warn!("the store takes changes again"),
            _ => {}
        }
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
