//! How often a store is asked by those who wait.

use std::{ops::Range, time::Duration};

/// 16 polls a second on average, and 19 at most: what writes in the same file would otherwise wait for.
#[cfg(feature = "sqlite")]
pub(super) const STEADY: Pace = Pace {
    first: 57_000..68_000,
    last: 57_000..68_000,
    at_least: Duration::from_micros(52_500),
};

/// Where a poll holds nobody up: more often right after something changed.
#[cfg(feature = "mysql")]
pub(super) const ADAPTIVE: Pace = Pace {
    first: 10_000..15_000,
    last: 57_000..68_000,
    at_least: Duration::from_millis(10),
};

/// Where the store tells of releases: only what was missed is found by polling.
#[cfg(feature = "postgres")]
pub(super) const PUSHED: Pace = Pace {
    first: 900_000..1_100_000,
    last: 900_000..1_100_000,
    at_least: Duration::from_micros(52_500),
};

/// How often the store is asked. Ranges are in microseconds, and wide enough to be in step with no other process.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// From one poll to the next when something has just changed.
    pub(super) first: Range<u64>,
    /// The same when nothing has changed for a while.
    pub(super) last: Range<u64>,
    /// No poll follows another sooner than this, also when a lease ends.
    pub(super) at_least: Duration,
}

impl Pace {
    /// How long from one poll to the next, when so many have seen no change.
    pub(super) fn interval(&self, unchanged_polls: u32) -> Range<u64> {
        let grown =
            |first: u64, last: u64| first.saturating_mul(1 << unchanged_polls.min(16)).min(last);
        grown(self.first.start, self.last.start)..grown(self.first.end, self.last.end)
    }

    pub(super) fn is_adaptive(&self) -> bool {
        self.first != self.last
    }
}

/// How long who was overtaken so often in a row keeps from asking: no longer than others would poll.
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
    fn polls_grow_rarer_until_something_changes() {
        let spans: Vec<_> = (0..5)
            .map(|unchanged_polls| ADAPTIVE.interval(unchanged_polls))
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
            let span = ADAPTIVE.interval(unchanged_polls);
            assert!(span.start < span.end, "{unchanged_polls}");
            assert!(span.start >= ADAPTIVE.first.start && span.end <= ADAPTIVE.last.end);
        }
        assert_eq!(ADAPTIVE.interval(u32::MAX), ADAPTIVE.last);
    }

    #[test]
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    fn a_steady_pace_stays_as_it_is() {
        for pace in [STEADY, PUSHED] {
            assert!((0..100).all(|unchanged_polls| pace.interval(unchanged_polls) == pace.last));
        }
    }
}
