//! Freeing locks: by their holders, and by force.

use distlock_core::{Forced, LockName, ReleaseOutcome, Result};

use super::Refusals;
use crate::op::Answer;

/// What the statement says when another process waits.
pub(super) const WANTED: u64 = 2;

/// When nobody does.
pub(super) const UNWANTED: u64 = 1;

/// When another process waits for it, or for one that was freed with it.
pub(super) const PERHAPS_WANTED: u64 = 3;

pub(super) fn released(says: Option<u64>) -> Answer {
    Answer::Released(match says {
        Some(says) => ReleaseOutcome::Released {
            others_waiting: (says != PERHAPS_WANTED).then_some(says == WANTED),
        },
        None => ReleaseOutcome::NotHeld,
    })
}

pub(super) fn forced(name: &LockName, freed: Option<u64>, refusals: &Refusals) -> Result<Answer> {
    if freed.is_some() {
        return Ok(Answer::Forced(Forced::Released));
    }
    Ok(Answer::Forced(match refusals.row(name)? {
        Some(row) if row.held.is_some() => Forced::OtherToken(row.last_token),
        Some(_) | None => Forced::NotHeld,
    }))
}
