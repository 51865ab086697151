//! The sleep of those who wait: of the poller, which reads the awaited locks of its process, and of
//! a contender between two of its own attempts.
//!
//! Every decision how long is made here. A release inside this process and a notification of the
//! store wake a waiter in between. A process that is not first in the store queue polls no lock; it
//! renews its queue entry at the times that `queue_entry` of `distlock-backend-kit` gives.

use std::{ops::Range, time::Duration};

use distlock_backend_kit::LONGEST_PAUSE;
use distlock_core::{Error, HolderInfo, Moment};

/// The pause after a poll that failed, if its error names no other, and before another attempt to
/// receive notifications.
pub(crate) const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// The longest sleep of a poller.
const LONGEST_POLLER_SLEEP: Duration = Duration::from_secs(1);

/// The longest sleep of one wait. A wake-up without a reason is harmless, whereas adding a duration
/// near `Duration::MAX` to a time would overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The interval in which a sleeping contender checks that the poller and the listener still run.
const CHECK_TASKS_EVERY: Duration = Duration::from_secs(1);

/// The pace for SQLite: 16 polls a second on average, and 19 at most. A poll of a SQLite file
/// delays the writers of the same file.
#[cfg(feature = "sqlite")]
pub(crate) const STEADY: Pace = Pace {
    first: 57_000..68_000,
    last: 57_000..68_000,
    at_least: Duration::from_micros(52_500),
};

/// The pace for MySQL and MariaDB, where a poll delays no writer: polls are more frequent right
/// after a change.
#[cfg(feature = "mysql")]
pub(crate) const ADAPTIVE: Pace = Pace {
    first: 3_000..5_000,
    last: 57_000..68_000,
    at_least: Duration::from_millis(10),
};

/// The pace for Postgres, which notifies of releases, and for a watched SQLite file. A poll only
/// finds a release that was not told.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const PUSHED: Pace = Pace {
    first: 900_000..1_100_000,
    last: 900_000..1_100_000,
    at_least: Duration::from_micros(52_500),
};

/// The pause between two polls. Each pause is a random value from a range in microseconds, so that
/// several processes do not poll at the same moment.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// The shortest pause, right after a change.
    first: Range<u64>,
    /// The longest pause, if the last change is long ago.
    last: Range<u64>,
    /// The shortest pause, even when a lease ends sooner.
    pub(crate) at_least: Duration,
}

impl Pace {
    /// The range of the pause before the next poll of so many names, this long after the last
    /// change. The pause is a twelfth of that time, so a poll finds the end of a long hold
    /// relatively as late as that of a short one; and not before half of the time that passed
    /// between the two changes before (`usual`), as far as the longest pause allows. With several
    /// names, whose changes all count, the shortest pause is longer.
    fn pause(&self, since_change: Duration, usual: Duration, names: usize) -> Range<u64> {
        let part = (since_change / 12).max((usual / 2).saturating_sub(since_change));
        let part = u64::try_from(part.as_micros()).unwrap_or(u64::MAX);
        let end = part.saturating_add(part / 4);
        let names = u64::try_from(names.max(1)).unwrap_or(u64::MAX);
        let within = |part: u64, first: u64, last: u64| {
            part.clamp(first.saturating_mul(names).min(last), last)
        };
        let start = within(part, self.first.start, self.last.start);
        start..within(end, self.first.end, self.last.end)
    }

    fn is_adaptive(&self) -> bool {
        self.first != self.last
    }
}

/// The time of the next poll of a process.
pub(crate) struct PollSchedule {
    pace: Pace,
    pub(crate) next: Option<Moment>,
    /// The time of the last change, of this process's place in a queue or of a lock.
    pub(crate) changed: Option<Moment>,
    /// The time from a change until a poll found the next one, at the last such poll.
    usual: Duration,
    /// The time of the last poll, and the number of names that it read.
    sent: Option<Moment>,
    names: usize,
    /// Whether a release was told since the last poll. A watched file does not tell of which lock.
    release_told: bool,
    /// Whether a release was told before the last poll.
    polled_after_release: bool,
    /// The number of polls in a row that such a release caused, and that found no change.
    in_vain: u32,
}

impl PollSchedule {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self {
            pace,
            next: None,
            changed: None,
            usual: Duration::ZERO,
            sent: None,
            names: 1,
            release_told: false,
            polled_after_release: false,
            in_vain: 0,
        }
    }

    /// Changes the pace.
    #[cfg(feature = "sqlite")]
    pub(crate) fn keep(&mut self, pace: Pace) {
        self.pace = pace;
        self.next = None;
    }

    /// Notes that some lock of the store was released, perhaps none that this process waits for. A
    /// poll is then due: at once, or later if such polls were in vain. So a waiter whose lock stays
    /// held costs little while others pass their locks on in the same file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn note_release(&mut self, now: Moment) {
        self.release_told = true;
        let soonest = self
            .sent
            .map_or(now, |sent| sent + back_off_in_vain(self.in_vain));
        self.poll_at(soonest.max(now));
    }

    /// Makes the next poll due at this time at the latest.
    pub(crate) fn poll_at(&mut self, due: Moment) {
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }

    /// The time until the poller must send its next request. `entry_due_in` is the time until a
    /// queue entry must be renewed. `is_first` says whether this process is first in at least one
    /// queue: only then it polls.
    pub(crate) fn sleep(
        &mut self,
        now: Moment,
        entry_due_in: Option<Duration>,
        is_first: bool,
    ) -> Duration {
        let entry_due_in = entry_due_in.unwrap_or(LONGEST_POLLER_SLEEP);
        if is_first {
            self.due_in(now).min(entry_due_in)
        } else {
            entry_due_in.min(LONGEST_POLLER_SLEEP)
        }
    }

    fn due_in(&mut self, now: Moment) -> Duration {
        // In tests, handles with different clocks may share a group. A time that is further in the
        // future than any pause comes from another clock, and is replaced.
        let longest = (LONGEST_PAUSE * 2).max(Duration::from_micros(self.pace.last.end));
        match self.next.map(|next| next.since(now)) {
            Some(pause) if pause <= longest => pause,
            _ => {
                let pause = self.random_pause(now);
                self.next = Some(now + pause);
                pause
            }
        }
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// Notes that a poll of so many names is sent now.
    pub(crate) fn note_sent(&mut self, now: Moment, names: usize) {
        self.names = names;
        self.next = Some(now + self.random_pause(now));
        self.sent = Some(now);
        self.polled_after_release = std::mem::take(&mut self.release_told);
    }

    /// Notes what the poll of `polled` found: whether a lock has changed, and the time until the
    /// first of the leases ends.
    pub(crate) fn note_answer(&mut self, polled: Moment, changed: bool, first_end: Duration) {
        if changed {
            self.usual = self.since_change(polled);
            self.note_change(polled);
            self.in_vain = 0;
        } else if self.polled_after_release {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        if let Some(next) = self.next {
            let expiry = polled + first_end;
            self.next = Some(next.min(expiry.max(polled + self.pace.at_least)));
        }
    }

    pub(crate) fn note_failure(&mut self, now: Moment, error: &Error) {
        self.next = Some(now + error.retry_pause().unwrap_or(AFTER_FAILURE));
    }

    /// Restarts an adaptive pace with its shortest pause. The callers report that a waiter has
    /// joined, that a queue entry has become the first, or that a poll saw a change. Another change
    /// is then likely. Returns whether the next poll is due sooner than before.
    pub(crate) fn note_change(&mut self, now: Moment) -> bool {
        if !self.pace.is_adaptive() {
            return false;
        }
        self.changed = Some(now);
        let soon = now + self.random_pause(now);
        let sooner = self.next.is_some_and(|next| next > soon);
        if sooner {
            self.next = Some(soon);
        }
        sooner
    }

    fn since_change(&self, now: Moment) -> Duration {
        self.changed
            .map_or(Duration::MAX, |changed| now.since(changed))
    }

    fn random_pause(&self, now: Moment) -> Duration {
        let pause = self
            .pace
            .pause(self.since_change(now), self.usual, self.names);
        Duration::from_micros(fastrand::u64(pause))
    }
}

/// The time of a contender's next attempt without any wake-up.
///
/// A store that notifies of a release does not notify of an expiry. So a contender of such a store
/// asks again at the end of the holder's lease. At other stores, only the poller decides.
#[derive(Default)]
pub(crate) struct AttemptSchedule {
    again_at: Option<Moment>,
    /// The number of consecutive attempts that lost against another process but found no holder in
    /// the row: the lock had changed hands too fast.
    lost_races: u32,
}

impl AttemptSchedule {
    /// Notes the answer "busy" to an attempt that was sent at `asked`, with the present holder.
    pub(crate) fn note_busy(&mut self, asked: Moment, holder: Option<&HolderInfo>) {
        self.again_at = holder
            .and_then(|holder| holder.expires_in)
            .map(|left| asked + left);
        self.lost_races = match holder {
            Some(_) => 0,
            None => self.lost_races.saturating_add(1),
        };
    }

    /// Notes that the lock was free when its hint was to be set, so that the store notifies nobody.
    /// Returns whether the contender asks again at once.
    pub(crate) fn note_no_hint(&mut self, now: Moment) -> bool {
        // One lost race may be chance. After more lost races, another immediate attempt would most
        // likely lose too, and would delay the faster processes.
        let at_once = self.lost_races <= 1;
        if !at_once {
            self.again_at = Some(now + back_off(self.lost_races));
        }
        at_once
    }

    /// The end of a wait that lasts `at_most`.
    pub(crate) fn end_of_wait(now: Moment, at_most: Duration) -> Moment {
        now + at_most.min(LONGEST_WAIT)
    }

    /// The next sleep of a contender that waits until `over`, and whether the wait ends with this
    /// sleep. `is_first` says whether its process is first in the store queue.
    pub(crate) fn sleep(&self, now: Moment, over: Moment, is_first: bool) -> (Duration, bool) {
        let until = match self.again_at {
            Some(again) if is_first => over.min(again),
            _ => over,
        };
        let left = until.since(now);
        (left.min(CHECK_TASKS_EVERY), left <= CHECK_TASKS_EVERY)
    }
}

/// The pause after `times` polls in a row that found no change; at most 64 ms. Two are free: the
/// lock may have been taken between the release and the poll.
#[cfg(feature = "sqlite")]
fn back_off_in_vain(times: u32) -> Duration {
    match times.checked_sub(2) {
        None => Duration::ZERO,
        Some(times) => Duration::from_millis(1 << times.min(6)),
    }
}

/// The back-off after `times` lost races in a row; at most 64 ms.
fn back_off(times: u32) -> Duration {
    let longest = 2_000_u64 << times.saturating_sub(2).min(5);
    Duration::from_micros(fastrand::u64(longest / 2..longest))
}

#[cfg(all(test, any(feature = "mysql", feature = "sqlite")))]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "mysql")]
    fn the_pause_grows_with_the_time_since_the_last_change() {
        let pauses = |usual, times: [u64; 5]| {
            let usual = Duration::from_millis(usual);
            times.map(|ms| ADAPTIVE.pause(Duration::from_millis(ms), usual, 1))
        };
        assert_eq!(
            pauses(0, [0, 48, 120, 720, 10_000]),
            [
                3_000..5_000,
                4_000..5_000,
                10_000..12_500,
                57_000..68_000,
                57_000..68_000
            ]
        );
        // The next change is likely as late as the last one was.
        let pause = |since: u64| pauses(50, [since; 5])[0].clone();
        assert_eq!([pause(0), pause(25)], [25_000..31_250, 3_000..5_000]);
        assert_eq!(
            ADAPTIVE.pause(Duration::MAX, Duration::MAX, 1),
            ADAPTIVE.last
        );
        assert_eq!(
            ADAPTIVE.pause(Duration::ZERO, Duration::ZERO, 4),
            12_000..20_000
        );
        assert_eq!(
            ADAPTIVE.pause(Duration::ZERO, Duration::ZERO, 1000),
            ADAPTIVE.last
        );
    }

    /// Others pass their locks on in the same file, and the awaited lock stays held.
    #[test]
    #[cfg(feature = "sqlite")]
    fn releases_of_other_locks_cause_few_polls() {
        let start = Moment::from_boot(Duration::from_secs(100));
        let (mut polls, mut now, mut sent) = (PollSchedule::new(PUSHED), start, 0);
        while now < start + Duration::from_secs(10) {
            polls.note_release(now);
            if polls.is_due(now) {
                sent += 1;
                polls.note_sent(now, 1);
                polls.note_answer(now, false, Duration::MAX);
            }
            now = now + Duration::from_millis(1);
        }
        assert!((140..180).contains(&sent), "{sent} polls");
        // A change of the awaited lock ends the back-off.
        polls.note_sent(now, 1);
        polls.note_answer(now, true, Duration::MAX);
        polls.note_release(now);
        assert!(polls.is_due(now));
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn a_steady_pace_has_the_same_pause_after_every_poll() {
        for pace in [STEADY, PUSHED] {
            let pause = |ms| pace.pause(Duration::from_millis(ms), Duration::from_secs(1), 2);
            assert!((0..100).all(|number| pause(number * number) == pace.last));
        }
    }
}
