//! A queue entry: one contender's short lease in the store queue of a lock name.
//!
//! After a release, only the first contender should ask for the lock. If all contenders asked, each
//! release would cost the store one request for each contender. So each contender keeps an entry in
//! a queue at the store. Only the first contender watches the lock itself. The others wait until
//! the contenders ahead have left.
//!
//! A contender renews its entry while it waits, and removes the entry when it gets the lock or
//! gives up. The entry of a dead contender blocks the queue for [`ENTRY_LEASE`] at most: the
//! contender behind it asks again at the moment at which that entry ends. The queue decides only
//! which contender *asks*. Mutual exclusion never depends on the queue, and a
//! contender that cannot keep its entry asks as if there were no queue, unless its caller wants the
//! order of arrival.
//!
//! This module decides at which moments a contender renews its entry. Backends send the requests.
//! Invariant: a contender renews its entry before the entry can expire.

use std::time::Duration;

use distlock_core::{Error, Moment};

/// The time for which the store keeps an entry that is not renewed.
pub const ENTRY_LEASE: Duration = Duration::from_secs(4);

/// The number of contenders at the front of a queue whose labels `inspect` reads.
pub const SHOWN_ENTRIES: usize = 16;

/// The longest time between two renewals of an entry. With it, two renewals may fail before the
/// entry expires.
const RENEW_AFTER: Duration = Duration::from_millis(1300);

/// The time for which a contender that cannot keep its entry acts as if there were no queue.
const WITHOUT_QUEUE: Duration = Duration::from_secs(10);

/// The longest time between two polls, for each contender ahead.
const PER_CONTENDER: Duration = Duration::from_millis(200);

/// The first value of the estimated time between two contenders that leave the queue. A longer one
/// would let a short holder's lock lie free for long.
const FIRST_PER_CONTENDER: Duration = Duration::from_millis(150);

/// The upper limit of that estimate.
const LONGEST_PER_CONTENDER: Duration = Duration::from_millis(600);

/// The shortest time between two polls.
const SHORTEST: Duration = Duration::from_millis(10);

/// The age of an answer, for each contender ahead, at which a contender that watches asks again
/// after a departure. If several departures looked like one, the contender would otherwise count
/// too few of them, and a free lock would wait for its next renewal.
const MISCOUNTED_AFTER: Duration = Duration::from_millis(100);

/// The way in which a contender learns that a contender ahead has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LearnsOfChange {
    /// The store sends notifications. Polls only find changes whose notification was lost.
    ByNotification,
    /// Each contender that leaves any queue of the store changes something that the others watch.
    /// They do not see which queue it was, and several departures may look like one.
    ByWatching,
    /// The contender polls, and polls more often the nearer it is to the front.
    ByPolling,
}

/// The contenders ahead, as the store answers to the renewal of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContendersAhead {
    /// The number of entries ahead.
    pub count: u32,
    /// The time until all entries ahead have ended, unless one of them is renewed. Contenders that
    /// live renew their entries long before that.
    pub ended_in: Duration,
}

/// The state of one contender's queue entry, and the moment of the next request for it.
#[derive(Debug)]
pub struct EntrySchedule {
    learns: LearnsOfChange,
    /// The number of contenders ahead at the last answer, less the number of notifications since
    /// then that a contender has left.
    ahead: u32,
    /// Whether the store answered that no contender is ahead, or the contender acts without a
    /// queue.
    first: bool,
    /// Whether the contender right ahead has left since the last answer.
    presumed_first: bool,
    /// The moment of the last answer that the store keeps the entry.
    answered_at: Option<Moment>,
    /// The moment at which the next request is due; `None` = at once.
    due: Option<Moment>,
    /// The measured time between two contenders that leave the queue.
    per_contender: Duration,
    /// The moment of the last answer with fewer contenders ahead than before, or of the first one.
    moved_at: Option<Moment>,
    /// The number of contenders that left after the last request was sent. The answer to that
    /// request may not count them.
    left: u32,
    /// The number of requests in a row that departures caused, and after which as many contenders
    /// were ahead as before. The departures were then from other queues.
    in_vain: u32,
    /// Whether a departure caused the last request.
    asked_after_departure: bool,
}

impl EntrySchedule {
    /// An entry for which no request was sent yet.
    #[must_use]
    pub const fn new(learns: LearnsOfChange) -> Self {
        Self {
            learns,
            ahead: 0,
            first: false,
            presumed_first: false,
            answered_at: None,
            due: None,
            per_contender: FIRST_PER_CONTENDER,
            moved_at: None,
            left: 0,
            in_vain: 0,
            asked_after_departure: false,
        }
    }

    /// Changes the way in which the contender learns of departures. A request is then due at once,
    /// because the contender may have missed a departure.
    pub fn learn(&mut self, learns: LearnsOfChange) {
        if self.learns != learns {
            self.learns = learns;
            self.look_again();
        }
    }

    /// Notes the store's answer that it keeps the entry, with these contenders ahead of it.
    pub fn kept(&mut self, now: Moment, ahead: ContendersAhead) {
        let ContendersAhead {
            count: ahead,
            ended_in,
        } = ahead;
        if let Some(moved_at) = self.moved_at {
            // Measured from the last departure and not from the last answer, which would measure
            // the pauses between the polls.
            let passed = now.since(moved_at);
            let left = self.ahead.saturating_sub(ahead);
            self.per_contender = if left > 0 {
                passed / left
            } else {
                self.per_contender.max(passed)
            }
            .clamp(SHORTEST, LONGEST_PER_CONTENDER);
            // An entry that has ended and was made again is behind others.
            if left > 0 || ahead > self.ahead {
                self.moved_at = Some(now);
            }
            if left > 0 {
                self.in_vain = 0;
            } else if self.asked_after_departure {
                self.in_vain = self.in_vain.saturating_add(1);
            }
        } else {
            self.moved_at = Some(now);
        }
        (self.ahead, self.first) = (ahead, ahead == 0);
        self.presumed_first = false;
        self.answered_at = Some(now);
        let pause = match self.learns {
            LearnsOfChange::ByPolling if ahead > 0 => self.until_next_poll(),
            _ => RENEW_AFTER,
        };
        // A dead contender leaves without a notification: its entry ends. If this contender asked
        // only when its own entry is due, the queue would stand still for up to `RENEW_AFTER`
        // longer.
        let pause = if ahead > 0 {
            pause.min(ended_in.max(SHORTEST))
        } else {
            pause
        };
        self.due = Some(now + pause);
        if self.left > 0 && ahead > 0 {
            self.due = match self.learns {
                LearnsOfChange::ByWatching => self.due.min(self.due_after_departure()),
                _ => None,
            };
        }
    }

    /// The moment of the next request after a departure from some queue of the store: as soon as
    /// the contender may be the first, and later if such requests were in vain.
    fn due_after_departure(&self) -> Option<Moment> {
        let pause = if self.left < self.ahead {
            MISCOUNTED_AFTER.saturating_mul(self.ahead)
        } else if self.in_vain < 2 {
            return None;
        } else {
            (SHORTEST * (1 << (self.in_vain - 2).min(6))).min(PER_CONTENDER * 2)
        };
        self.answered_at.map(|answered_at| answered_at + pause)
    }

    /// The time until the next poll. The poll comes before this contender is expected at the front,
    /// and the time is shorter the nearer the contender is to the front. The contender right behind
    /// the first one polls three times in the time in which one contender leaves. So it soon knows
    /// that it is the first, and then the holder soon knows that it waits.
    fn until_next_poll(&self) -> Duration {
        let expected = self.per_contender.saturating_mul(self.ahead);
        let sooner = if self.ahead == 1 {
            expected / 3
        } else {
            expected * 3 / 4
        };
        let longest = PER_CONTENDER.saturating_mul(self.ahead);
        sooner.min(longest).min(RENEW_AFTER)
    }

    /// Notes that the store did not keep the entry. After a temporary failure, the last answer
    /// counts as long as the entry may still exist. Otherwise the contender acts as if there were
    /// no queue, for 10 seconds. A contender that comes `in_order` makes no attempt without an
    /// entry, so it asks for one again soon.
    pub fn not_kept(&mut self, now: Moment, why: &Error, in_order: bool) {
        let known = self
            .answered_at
            .filter(|answered_at| now.since(*answered_at) < ENTRY_LEASE);
        let soon = now + why.retry_pause().unwrap_or(PER_CONTENDER);
        if why.is_retryable() && known.is_some() {
            self.due = Some(soon);
            return;
        }
        (self.ahead, self.first) = (0, true);
        self.presumed_first = false;
        (self.answered_at, self.moved_at) = (None, None);
        self.due = Some(if in_order { soon } else { now + WITHOUT_QUEUE });
    }

    /// Notes that a request is sent now, so that no second request becomes due before its answer.
    pub fn asking(&mut self, now: Moment) {
        self.note_request();
        self.due = Some(now + RENEW_AFTER);
    }

    /// Notes that a request is sent now by the only task that renews this entry. A departure before
    /// the request is in its answer.
    pub fn note_request(&mut self) {
        self.asked_after_departure = std::mem::take(&mut self.left) > 0;
    }

    /// Notes that some contender has left the queue, or, for a contender that watches, some queue
    /// of the store.
    pub fn somebody_left(&mut self) {
        self.left = self.left.saturating_add(1);
        if self.learns == LearnsOfChange::ByWatching {
            if !self.first && self.answered_at.is_some() {
                self.due = self.due.min(self.due_after_departure());
            }
            return;
        }
        self.ahead = self.ahead.saturating_sub(1);
        if self.ahead == 0 {
            self.due = None;
        }
    }

    /// Notes that the contender right ahead has left. It usually got the lock, and then nobody is
    /// ahead any more. A request is due at once, but an attempt need not wait for its answer: the
    /// lock may be free by now.
    pub fn presume_first(&mut self) {
        self.presumed_first = self.is_kept();
        self.due = None;
    }

    /// Notes that notifications may have been lost, so that a request is due at once.
    pub fn look_again(&mut self) {
        self.left = self.left.max(1);
        self.due = None;
    }

    /// Whether no contender is ahead. A contender that comes `in_order` must be sure that it passes
    /// nobody: the store must have answered so, and must keep its entry.
    #[must_use]
    pub const fn is_first(&self, in_order: bool) -> bool {
        if in_order {
            self.first && self.is_kept()
        } else {
            self.first || self.presumed_first
        }
    }

    const fn is_kept(&self) -> bool {
        self.answered_at.is_some()
    }

    /// The time until the next request to the store, which renews the entry and returns the number
    /// of contenders ahead.
    #[must_use]
    pub fn due_in(&self, now: Moment) -> Duration {
        self.due.map_or(Duration::ZERO, |due| due.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock_core::ErrorKind;

    const START: Moment = Moment::from_boot(Duration::from_secs(100));

    /// Contenders that have just renewed their entries.
    fn ahead(count: u32) -> ContendersAhead {
        ContendersAhead {
            count,
            ended_in: ENTRY_LEASE,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_contender_is_not_first_before_the_first_answer_of_the_store() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        assert!(!entry.is_first(false) && entry.due_in(START).is_zero());
        entry.kept(START, ahead(0));
        assert!(entry.is_first(false) && entry.is_first(true));
        assert!(entry.due_in(START) * 3 <= ENTRY_LEASE);
    }

    #[test]
    fn a_contender_that_cannot_keep_its_entry_acts_without_a_queue() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.kept(START, ahead(3));
        assert!(!entry.is_first(false));
        let unreachable = Error::new(ErrorKind::Unavailable, "unreachable");
        entry.not_kept(START, &unreachable, false);
        assert!(!entry.is_first(false), "the entry still counts");
        entry.not_kept(START + ENTRY_LEASE, &unreachable, false);
        assert!(entry.is_first(false) && !entry.is_first(true));
        entry.kept(START, ahead(3));
        let denied = Error::new(ErrorKind::AccessDenied, "no such table");
        entry.not_kept(START, &denied, false);
        assert!(entry.is_first(false));
        assert_eq!(entry.due_in(START), WITHOUT_QUEUE);
        // A contender that comes in order makes no attempt until its entry is kept.
        entry.not_kept(START, &denied, true);
        assert!(entry.is_first(false) && !entry.is_first(true));
        assert_eq!(entry.due_in(START), PER_CONTENDER);
    }

    #[test]
    fn a_request_is_due_when_notifications_have_counted_down_to_zero() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.kept(START, ahead(2));
        entry.somebody_left();
        assert!(!entry.due_in(START).is_zero(), "one is still ahead");
        entry.somebody_left();
        // The contenders that left may have been behind this one. So the entry is not first by
        // notifications alone, and a request is due.
        assert!(!entry.is_first(false) && entry.due_in(START).is_zero());
        entry.kept(START, ahead(1));
        assert!(!entry.is_first(false));
    }

    #[test]
    fn a_contender_right_behind_one_that_left_may_ask_unless_it_comes_in_order() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.presume_first();
        assert!(!entry.is_first(false), "the store keeps no entry yet");
        entry.kept(START, ahead(2));
        entry.presume_first();
        assert!(entry.is_first(false) && !entry.is_first(true));
        assert!(entry.due_in(START).is_zero());
        // The other one gave up, and a third one is still ahead.
        entry.kept(START, ahead(1));
        assert!(!entry.is_first(false));
    }

    #[test]
    fn a_request_is_due_after_an_answer_that_may_be_older_than_a_notification() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.asking(START);
        entry.kept(START, ahead(2));
        entry.asking(START);
        entry.somebody_left();
        entry.kept(START, ahead(1));
        assert!(!entry.is_first(false) && entry.due_in(START).is_zero());
        entry.asking(START);
        entry.kept(START, ahead(1));
        assert!(!entry.due_in(START).is_zero());
    }

    #[test]
    fn a_contender_that_watches_asks_when_as_many_have_left_as_were_ahead() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByWatching);
        entry.asking(START);
        entry.kept(START, ahead(3));
        for _ in 0..2 {
            entry.somebody_left();
            assert!(!entry.due_in(START).is_zero());
        }
        // If one of two departures was missed, the others make a request due after 0.1 s for each
        // contender that was ahead.
        assert_eq!(entry.due_in(START), ms(300));
        entry.somebody_left();
        assert!(entry.due_in(START).is_zero());
        entry.asking(START);
        entry.kept(START, ahead(0));
        entry.somebody_left();
        assert_eq!(entry.due_in(START), RENEW_AFTER, "it is the first already");
    }

    #[test]
    fn departures_from_other_queues_cost_a_contender_that_watches_few_requests() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByWatching);
        let (mut now, mut requests) = (START, 0);
        entry.asking(now);
        entry.kept(now, ahead(1));
        // One departure a millisecond, for ten seconds.
        while now < START + ms(10_000) {
            entry.somebody_left();
            if entry.due_in(now).is_zero() {
                requests += 1;
                entry.asking(now);
                entry.kept(now, ahead(1));
            }
            now = now + ms(1);
        }
        assert!((20..50).contains(&requests), "{requests} requests");
        // A departure from its own queue ends the back-off.
        entry.asking(now);
        entry.kept(now, ahead(0));
        entry.asking(now);
        entry.kept(now, ahead(1));
        entry.somebody_left();
        assert!(entry.due_in(now).is_zero());
    }

    #[test]
    fn a_contender_that_learns_in_another_way_asks_at_once() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByPolling);
        entry.asking(START);
        entry.kept(START, ahead(5));
        entry.learn(LearnsOfChange::ByPolling);
        assert!(!entry.due_in(START).is_zero());
        entry.learn(LearnsOfChange::ByWatching);
        assert!(entry.due_in(START).is_zero());
        entry.asking(START);
        entry.kept(START, ahead(5));
        assert_eq!(entry.due_in(START), RENEW_AFTER);
    }

    /// The contender ahead has died right after a renewal. This contender joined 50 ms later, and
    /// nobody notifies it of the end of that entry.
    #[test]
    fn a_contender_behind_a_dead_one_asks_when_the_dead_entry_ends() {
        for learns in [
            LearnsOfChange::ByNotification,
            LearnsOfChange::ByWatching,
            LearnsOfChange::ByPolling,
        ] {
            let mut entry = EntrySchedule::new(learns);
            let dead = START + ENTRY_LEASE;
            let mut now = START + ms(50);
            let mut requests = 0;
            while now < dead {
                requests += 1;
                entry.asking(now);
                entry.kept(
                    now,
                    ContendersAhead {
                        count: 1,
                        ended_in: dead.since(now),
                    },
                );
                now = now + entry.due_in(now);
            }
            let late = now.since(dead);
            assert!(late <= PER_CONTENDER, "{learns:?}: {late:?} late");
            assert!(requests < 30, "{learns:?}: {requests} requests");
        }
    }

    #[test]
    fn polls_are_more_frequent_the_faster_the_queue_moves() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByPolling);
        entry.kept(START, ahead(4));
        assert_eq!(entry.due_in(START), ms(450));
        // Two contenders left within 100 ms, so the two contenders ahead are expected to leave
        // within the next 100 ms. The next poll is due after three quarters of that time.
        entry.kept(START + ms(100), ahead(2));
        assert_eq!(entry.due_in(START + ms(100)), ms(75));
        entry.kept(START + ms(160), ahead(1));
        assert_eq!(entry.due_in(START + ms(160)), ms(20));
        // Nobody has left since then. So the expected time of 60 ms for one contender grows with
        // the time that has passed, up to `LONGEST_PER_CONTENDER`.
        entry.kept(START + ms(180), ahead(1));
        assert_eq!(entry.due_in(START + ms(180)), ms(20));
        entry.kept(START + ms(250), ahead(1));
        assert_eq!(entry.due_in(START + ms(250)), ms(30));
        entry.kept(START + ms(2000), ahead(1));
        assert_eq!(entry.due_in(START + ms(2000)), ms(200));
        entry.kept(START + ms(2000), ahead(1000));
        assert_eq!(entry.due_in(START + ms(2000)), RENEW_AFTER);
    }
}
