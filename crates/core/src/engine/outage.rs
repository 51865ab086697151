//! A store that is away, as one waiting task sees it.
//!
//! This module owns how long a task pauses between two attempts, and logs once why it waits. It
//! never decides whether the task waits on: the claim decides, because it knows the wait.

use std::time::Duration;

use crate::types::{error::Error, name::LockName};

/// Further attempts of a caller that wants an error while the store is unreachable.
pub(crate) const QUICK_RETRIES: u32 = 3;

/// The longest pause between two attempts. A store that comes back is found within this time, and
/// waiters do not keep a store from starting.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many attempts have failed since the store last answered.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failures: u32,
}

impl Outage {
    /// Counts a failed attempt. The second one in a row is logged: the first may have met one
    /// broken connection.
    pub(crate) fn failed(&mut self, error: &Error, name: &LockName) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 2 {
            tracing::warn!(%error, lock = ?name, "the store is away, waiting for it");
        } else {
            tracing::debug!(%error, lock = ?name, "asking again");
        }
    }

    /// The store has answered.
    pub(crate) fn over(&mut self, name: &LockName) {
        if self.failures > 1 {
            tracing::info!(lock = ?name, "the store is back");
        }
        self.failures = 0;
    }

    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// How long to pause before the next attempt; the caller adds jitter.
    pub(crate) fn pause(&self) -> Duration {
        pause_after(self.failures)
    }
}

/// The pause after so many failures in a row: 50 ms after the first, and doubling.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_millis(25 << failures.min(6)).min(LONGEST_PAUSE)
}
