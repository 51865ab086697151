//! Rows that others have locked.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::Moment;

use crate::operation::Operation;

/// How long a row that somebody else had locked is taken to be locked still.
const LOCKED_FOR: Duration = Duration::from_secs(60);

/// Rows that others have locked.
#[derive(Debug, Default)]
pub(crate) struct LockedRows(Mutex<HashMap<String, SeenLocked>>);

/// How a row was last seen to be locked.
#[derive(Clone, Copy, Debug)]
struct SeenLocked {
    at: Moment,
    /// For longer than a statement waits, or more than once.
    confirmed: bool,
}

impl LockedRows {
    pub(super) fn forget_before(&self, now: Moment) {
        self.rows()
            .retain(|_, seen| now.since(seen.at) < LOCKED_FOR);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows().is_empty()
    }

    pub(super) fn contains(&self, op: &Operation) -> bool {
        self.rows().contains_key(op.key())
    }

    pub(super) fn is_confirmed(&self, op: &Operation) -> bool {
        self.rows().get(op.key()).is_some_and(|seen| seen.confirmed)
    }

    pub(super) fn note(&self, op: &Operation, at: Moment, confirmed: bool) {
        self.rows()
            .insert(op.key().to_owned(), SeenLocked { at, confirmed });
    }

    pub(super) fn forget(&self, op: &Operation) {
        self.rows().remove(op.key());
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<String, SeenLocked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
