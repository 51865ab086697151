//! A queue entry: one contender's short lease in the store queue of a lock name.
//!
//! After a release, only the first contender should ask for the lock. If all of them asked, each
//! release would cost the store one request for each waiter. So each contender keeps an entry in a
//! queue at the store. Only the first contender watches the lock itself, as a lone waiter does. The
//! others wait until the contenders ahead have left.
//!
//! A contender renews its entry while it waits, and gives it up when it gets the lock or goes away.
//! A contender that died blocks the queue for [`ENTRY_LEASE`] at most. The queue decides only which
//! contender *asks*: mutual exclusion never rests on it, and a contender that cannot keep its entry
//! asks as if there were no queue. Later, shared locks wait in the same queue, in the order of its
//! tickets.
//!
//! This module owns when to ask the store for the entry again. Backends own the requests.
//! Invariant: a contender asks again before its entry can expire.

use std::time::Duration;

use distlock_core::{Error, Moment};

/// How long the store keeps an entry that is not renewed.
pub const ENTRY_LEASE: Duration = Duration::from_secs(4);

/// The longest time between two renewals of an entry. Two renewals may fail before it is lost.
const RENEW_AFTER: Duration = Duration::from_millis(1300);

/// How long a contender without an entry acts as if there were no queue.
const WITHOUT_QUEUE: Duration = Duration::from_secs(10);

/// The longest time between two polls, for each contender ahead.
const PER_CONTENDER: Duration = Duration::from_millis(200);

/// The assumed time that one contender takes, in a queue that does not move.
const LONGEST_PER_CONTENDER: Duration = Duration::from_millis(400);

/// The shortest time between two polls.
const SHORTEST: Duration = Duration::from_millis(10);

/// How a contender learns that a contender ahead has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LearnsOfChange {
    /// The store sends notifications. Polls only find changes whose notification was lost.
    ByNotification,
    /// It polls, the more often the nearer it is to the front.
    ByPolling,
}

/// One contender's queue entry.
#[derive(Debug)]
pub struct EntrySchedule {
    learns: LearnsOfChange,
    /// Contenders ahead at the last answer, less those that have left since.
    ahead: u32,
    /// Whether the store answered that no contender is ahead, or keeps no queue.
    first: bool,
    asked: Option<Moment>,
    due: Option<Moment>,
    /// The measured time in which one contender leaves the queue.
    per_contender: Duration,
    /// Whether a contender left after the store was asked. The answer may be older than that.
    missed: bool,
}

impl EntrySchedule {
    /// An entry that the store has not been asked for yet.
    #[must_use]
    pub const fn new(learns: LearnsOfChange) -> Self {
        Self {
            learns,
            ahead: 0,
            first: false,
            asked: None,
            due: None,
            per_contender: LONGEST_PER_CONTENDER,
            missed: false,
        }
    }

    /// Notes that the store keeps the entry, with so many contenders ahead.
    pub fn kept(&mut self, now: Moment, ahead: u32) {
        if let Some(asked) = self.asked {
            let passed = now.since(asked);
            let left = self.ahead.saturating_sub(ahead);
            self.per_contender = if left > 0 {
                passed / left
            } else {
                self.per_contender.saturating_mul(2)
            }
            .clamp(SHORTEST, LONGEST_PER_CONTENDER);
        }
        (self.ahead, self.first) = (ahead, ahead == 0);
        self.asked = Some(now);
        let pause = match self.learns {
            LearnsOfChange::ByPolling if ahead > 0 => self.until_next_poll(),
            _ => RENEW_AFTER,
        };
        self.due = Some(now + pause);
        if std::mem::take(&mut self.missed) && ahead > 0 {
            self.due = None;
        }
    }

    /// The time to the next poll, before the front is expected: the nearer it is, the shorter. The
    /// contender right behind the first polls twice in the time that one takes, because the next
    /// release is for the first.
    fn until_next_poll(&self) -> Duration {
        let expected = self.per_contender.saturating_mul(self.ahead);
        let sooner = if self.ahead == 1 {
            expected / 2
        } else {
            expected * 3 / 4
        };
        let longest = PER_CONTENDER.saturating_mul(self.ahead);
        sooner.min(longest).min(RENEW_AFTER)
    }

    /// Notes that the store did not keep the entry. After a temporary failure, the last answer
    /// counts for as long as the entry may live. Otherwise the contender asks by itself for a
    /// while.
    pub fn not_kept(&mut self, now: Moment, why: &Error) {
        let known = self.asked.filter(|asked| now.since(*asked) < ENTRY_LEASE);
        if why.is_retryable() && known.is_some() {
            self.due = Some(now + PER_CONTENDER);
            return;
        }
        (self.ahead, self.first) = (0, true);
        self.asked = None;
        self.due = Some(now + WITHOUT_QUEUE);
    }

    /// Notes that the store is being asked now, so that no second request is sent meanwhile.
    pub fn asking(&mut self, now: Moment) {
        self.missed = false;
        self.due = Some(now + RENEW_AFTER);
    }

    /// Notes the store's notification that a contender has left the queue.
    pub fn somebody_left(&mut self) {
        self.missed = true;
        self.ahead = self.ahead.saturating_sub(1);
        if self.ahead == 0 {
            self.due = None;
        }
    }

    /// Notes that notifications may have been lost.
    pub fn look_again(&mut self) {
        self.missed = true;
        self.due = None;
    }

    /// Whether no contender is ahead, by the store's last answer.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.first
    }

    /// The time until the store must be asked again for the entry and the number of contenders
    /// ahead.
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

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_contender_is_not_first_before_the_store_was_asked() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        assert!(!entry.is_first() && entry.due_in(START).is_zero());
        entry.kept(START, 0);
        assert!(entry.is_first());
        assert!(entry.due_in(START) * 3 <= ENTRY_LEASE);
    }

    #[test]
    fn a_contender_without_an_entry_asks_by_itself() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.kept(START, 3);
        assert!(!entry.is_first());
        let away = Error::new(ErrorKind::Unavailable, "away");
        entry.not_kept(START, &away);
        assert!(!entry.is_first(), "the entry still counts");
        entry.not_kept(START + ENTRY_LEASE, &away);
        assert!(entry.is_first());
        entry.kept(START, 3);
        let denied = Error::new(ErrorKind::AccessDenied, "no such table");
        entry.not_kept(START, &denied);
        assert!(entry.is_first());
        assert_eq!(entry.due_in(START), WITHOUT_QUEUE);
    }

    #[test]
    fn notifications_count_down_and_lead_to_one_question() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.kept(START, 2);
        entry.somebody_left();
        assert!(!entry.due_in(START).is_zero(), "one is still ahead");
        entry.somebody_left();
        // It may have been a contender behind that left, so the store is asked.
        assert!(!entry.is_first() && entry.due_in(START).is_zero());
        entry.kept(START, 1);
        assert!(!entry.is_first());
    }

    #[test]
    fn an_answer_older_than_a_departure_is_asked_for_again() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByNotification);
        entry.asking(START);
        entry.kept(START, 2);
        entry.asking(START);
        entry.somebody_left();
        entry.kept(START, 1);
        assert!(!entry.is_first() && entry.due_in(START).is_zero());
        entry.asking(START);
        entry.kept(START, 1);
        assert!(!entry.due_in(START).is_zero());
    }

    #[test]
    fn polls_follow_the_pace_of_the_queue() {
        let mut entry = EntrySchedule::new(LearnsOfChange::ByPolling);
        entry.kept(START, 4);
        assert_eq!(entry.due_in(START), ms(800));
        // Two left within 100 ms, so the next two are expected to take as long.
        entry.kept(START + ms(100), 2);
        assert_eq!(entry.due_in(START + ms(100)), ms(75));
        entry.kept(START + ms(150), 1);
        assert_eq!(entry.due_in(START + ms(150)), ms(25));
        // None left: twice as long, up to the pace of a queue that does not move.
        entry.kept(START + ms(200), 1);
        assert_eq!(entry.due_in(START + ms(200)), ms(50));
        for _ in 0..10 {
            entry.kept(START + ms(200), 1);
        }
        assert_eq!(entry.due_in(START + ms(200)), ms(200));
        entry.kept(START + ms(200), 1000);
        assert_eq!(entry.due_in(START + ms(200)), RENEW_AFTER);
    }
}
