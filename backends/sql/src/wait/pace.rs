//! The pauses between two polls of a process that is first in the store queue.
//!
//! A process that is not first polls at the times that `queue_entry` of `distlock-backend-kit`
//! gives.

use std::{ops::Range, time::Duration};

/// The pace for SQLite: 16 polls a second on average, and 19 at most. A poll of a SQLite file
/// delays the writers of the same file.
#[cfg(feature = "sqlite")]
pub(super) const STEADY: Pace = Pace {
    first: 57_000..68_000,
    last: 57_000..68_000,
    at_least: Duration::from_micros(52_500),
};

/// The pace for a store where a poll delays no writer: polls are more frequent right after a
/// change.
#[cfg(feature = "mysql")]
pub(super) const ADAPTIVE: Pace = Pace {
    first: 10_000..15_000,
    last: 57_000..68_000,
    at_least: Duration::from_millis(10),
};

/// The pace for a store that notifies of releases. A poll only finds a release whose notification
/// was lost.
#[cfg(feature = "postgres")]
pub(super) const PUSHED: Pace = Pace {
    first: 900_000..1_100_000,
    last: 900_000..1_100_000,
    at_least: Duration::from_micros(52_500),
};

/// The pause between two polls. Each pause is a random value from a range in microseconds, so that
/// several processes do not poll at the same moment.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// The pause right after a change.
    pub(super) first: Range<u64>,
    /// The longest pause, after several polls without a change.
    pub(super) last: Range<u64>,
    /// The shortest pause, even when a lease ends sooner.
    pub(super) at_least: Duration,
}

impl Pace {
    /// The range of the pause before the next poll, after `unchanged_polls` polls without a change.
    pub(super) fn pause(&self, unchanged_polls: u32) -> Range<u64> {
        let grown =
            |first: u64, last: u64| first.saturating_mul(1 << unchanged_polls.min(16)).min(last);
        grown(self.first.start, self.last.start)..grown(self.first.end, self.last.end)
    }

    pub(super) fn is_adaptive(&self) -> bool {
        self.first != self.last
    }
}

/// The back-off after `times` lost races in a row; at most 64 ms.
pub(super) fn back_off(times: u32) -> Duration {
    let longest = 2_000_u64 << times.saturating_sub(2).min(5);
    Duration::from_micros(fastrand::u64(longest / 2..longest))
}

#[cfg(all(
    test,
    any(feature = "mysql", all(feature = "sqlite", feature = "postgres"))
))]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "mysql")]
    fn the_pause_grows_with_each_poll_without_a_change() {
        let spans: Vec<_> = (0..5)
            .map(|unchanged_polls| ADAPTIVE.pause(unchanged_polls))
            .collect();
        assert_eq!(
            spans,
            [
                10_000..15_000,
                20_000..30_000,
                40_000..60_000,
                57_000..68_000,
                57_000..68_000,
            ]
        );
        for unchanged_polls in 0..100 {
            let span = ADAPTIVE.pause(unchanged_polls);
            assert!(span.start < span.end, "{unchanged_polls}");
            assert!(span.start >= ADAPTIVE.first.start && span.end <= ADAPTIVE.last.end);
        }
        assert_eq!(ADAPTIVE.pause(u32::MAX), ADAPTIVE.last);
    }

    #[test]
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    fn a_steady_pace_has_the_same_pause_after_every_poll() {
        for pace in [STEADY, PUSHED] {
            assert!((0..100).all(|unchanged_polls| pace.pause(unchanged_polls) == pace.last));
        }
    }
}
