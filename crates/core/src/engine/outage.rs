//! A store that is away, as one waiting task sees it.
//!
//! This module owns how long a task pauses between two tries, and says once why it waits. It never
//! decides whether the task waits on: the claim does, which knows how long the wait lasts.

use std::time::Duration;

use crate::types::{error::Error, name::LockName};

/// How often a caller that gives up when the store is unreachable asks again before it is told.
pub(crate) const QUICK_RETRIES: u32 = 3;

/// The longest pause between two tries. A store that comes back is found within this time, and a
/// store that is starting is not kept from it by those who wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many tries have failed since the store last answered.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failures: u32,
}

impl Outage {
    /// One more try has failed. The second one in a row is logged: the first may have met a
    /// connection that was broken by chance.
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

    /// How long to pause before the next try; the caller adds jitter.
    pub(crate) fn pause(&self) -> Duration {
        pause_after(self.failures)
    }
}

/// How long to pause after so many failures in a row: 50 ms at first, and doubling.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_millis(25 << failures.min(6)).min(LONGEST_PAUSE)
}
