//! An unreachable store, as one waiting task sees that store.
//!
//! This module owns the pause of a task between two attempts, and logs once per outage why the task
//! waits. A backend that cannot reach its server paces the attempts of the whole process, and its
//! errors say when to try again ([`Error::retry_pause`]). This module chooses the pause after every
//! other error. The module never decides whether the task goes on waiting. The claim decides that,
//! because the claim knows the caller's wait.
//!
//! Waiters, releases of guards and of tickets, minimum holds and the keeper's connection all pause
//! by [`pause_after`]. Two steps have a rhythm of their own: a renewal, whose tries divide the rest
//! of its lease (`lease_state`), and a background release, which lasts as long as a lease and
//! becomes rarer with time (`clean_up`).

use std::time::Duration;

use crate::{
    engine::settings::Timing,
    types::{error::Error, name::LockName},
};

/// The number of further attempts, after the first one, of a caller that wants an error while the
/// store is unreachable.
pub(crate) const QUICK_RETRIES: u32 = 3;

/// The longest pause between two attempts. A waiter notices within this time that the store answers
/// again. With shorter pauses, many waiters could overload a store that is starting.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Counts the attempts that have failed since the store last answered.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failures: u32,
}

impl Outage {
    /// Counts a failed attempt. The second failure in a row is logged as a warning. The first
    /// failure may have met one broken connection only.
    pub(crate) fn failed(&mut self, error: &Error, name: &LockName) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 2 {
            tracing::warn!(%error, lock = ?name, "the store is away, waiting for it");
        } else {
            tracing::debug!(%error, lock = ?name, "asking again");
        }
    }

    /// Notes that the store has answered, which ends the outage.
    pub(crate) fn store_answered(&mut self, name: &LockName) {
        if self.failures > 1 {
            tracing::info!(lock = ?name, "the store is back");
        }
        self.failures = 0;
    }

    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause before the next attempt, after a failure with this error.
    pub(crate) fn pause(&self, error: &Error, timing: &Timing) -> Duration {
        let own = || timing.jitter(pause_after(self.failures));
        error.retry_pause().unwrap_or_else(own)
    }
}

/// The pause after this number of failures in a row: 50 ms after the first failure, and twice as
/// long after each further one, up to [`LONGEST_PAUSE`]. The caller adds jitter.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_millis(25 << failures.min(6)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_harness::LogCapture;
    use tracing::Level;

    use super::*;
    use crate::{clock::SystemClock, types::error::ErrorKind};

    #[test]
    fn the_pause_of_an_error_counts_before_the_own_one() {
        let timing = Timing::new(Arc::new(SystemClock), Some(7));
        let (mut outage, name) = (Outage::default(), LockName::new("a").unwrap());
        let error = Error::new(ErrorKind::Unavailable, "away");
        for _ in 0..10 {
            outage.failed(&error, &name);
        }
        let own = outage.pause(&error, &timing);
        assert!(
            (LONGEST_PAUSE / 2..=LONGEST_PAUSE).contains(&own),
            "{own:?}"
        );
        let suggested = Duration::from_millis(3);
        assert_eq!(outage.pause(&error.retry_in(suggested), &timing), suggested);
    }

    #[test]
    fn an_outage_of_several_attempts_is_logged_once_at_each_end() {
        let log = LogCapture::new(Level::TRACE);
        let _watched = log.watch();
        let (mut outage, name) = (Outage::default(), LockName::new("a").unwrap());
        let error = Error::new(ErrorKind::Unavailable, "away");
        outage.store_answered(&name);
        for _ in 0..3 {
            outage.failed(&error, &name);
        }
        assert_eq!(outage.failures(), 3);
        outage.store_answered(&name);
        outage.store_answered(&name);
        outage.failed(&error, &name);
        outage.store_answered(&name);
        assert_eq!(outage.failures(), 0);
        let lines = log.lines();
        let levels: Vec<_> = lines.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(levels, ["DEBUG", "WARN", "DEBUG", "INFO", "DEBUG"]);
    }
}
