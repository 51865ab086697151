//! Remembers the rows that other transactions had locked recently.
//!
//! A batch leaves operations on these rows out. A lone operation on such a row sends a probe first.
//! An entry is only a guess: a probe that finds the row unlocked removes the entry.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_backend_kit::operation::Operation;
use distlock_core::Moment;

/// The time for which a row that was found locked counts as locked.
const LOCKED_FOR: Duration = Duration::from_secs(60);

/// The rows that other transactions had locked, by lock name or record key.
#[derive(Debug, Default)]
pub(crate) struct LockedRows(Mutex<HashMap<String, SeenLocked>>);

/// The last time when a row was found locked.
#[derive(Clone, Copy, Debug)]
struct SeenLocked {
    at: Moment,
    /// Whether the row was locked for longer than a statement waits, or was found locked more than
    /// once.
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
