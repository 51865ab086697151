//! The line of waiting processes that a store keeps for each lock name, as one contender sees it.
//!
//! When a lock is released, only the first of those who wait should ask for it: if all of them do,
//! a release costs the store as many requests as there are waiters. So each contender keeps a place
//! in a line at the store. Only the first watches the lock itself, as a lone waiter does. Everybody
//! else waits until those ahead have left.
//!
//! A place is a short lease. A contender renews it while it waits and gives it up when it gets the
//! lock or goes away; a contender that died blocks the line for [`PLACE_LEASE`] at most. The line
//! decides only who *asks*: exclusion never rests on it, and whoever cannot keep a place asks as if
//! there were no line. Later, shared locks queue in the same line, in the order of its tickets.
//!
//! This module owns when to ask the store for the place again. Backends own the requests.

use std::time::Duration;

use crate::{engine::clock::Moment, types::error::Error};

/// How long the store keeps a place that is not renewed.
pub const PLACE_LEASE: Duration = Duration::from_secs(4);

/// How often a place is renewed at least. Two renewals may fail before the place is lost.
const RENEW_AFTER: Duration = Duration::from_millis(1300);

/// How long a contender whose place cannot be kept acts as if there were no line.
const WITHOUT_LINE: Duration = Duration::from_secs(10);

/// Per contender ahead, where the store does not tell of those who leave: how long to wait before
/// looking again while nobody leaves.
const PER_PLACE: Duration = Duration::from_millis(200);

/// How long one place is taken to last in a line that stands still.
const STANDING: Duration = Duration::from_millis(400);

/// The shortest time between two looks.
const LEAST: Duration = Duration::from_millis(10);

/// How a contender learns that somebody ahead has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Told {
    /// The store says so; looking is only for what was missed.
    ByStore,
    /// It looks, more often the nearer it is to the front.
    ByLooking,
}

/// One contender's place.
#[derive(Debug)]
pub struct PlaceInLine {
    told: Told,
    /// How many were ahead when the store was last asked, less those who have left since.
    ahead: u32,
    /// Whether the store said that nobody is ahead, or keeps no line.
    first: bool,
    asked: Option<Moment>,
    due: Option<Moment>,
    /// How long the line takes for one to leave, as far as was seen.
    per_place: Duration,
    /// Whether somebody left since the store was asked: its answer may be from before that.
    missed: bool,
}

impl PlaceInLine {
    /// A place that the store has not been asked for yet.
    #[must_use]
    pub const fn new(told: Told) -> Self {
        Self {
            told,
            ahead: 0,
            first: false,
            asked: None,
            due: None,
            per_place: STANDING,
            missed: false,
        }
    }

    /// The store keeps the place, and so many are ahead.
    pub fn kept(&mut self, now: Moment, ahead: u32) {
        if let Some(asked) = self.asked {
            let passed = now.since(asked);
            let left = self.ahead.saturating_sub(ahead);
            self.per_place = if left > 0 {
                passed / left
            } else {
                self.per_place.saturating_mul(2)
            }
            .clamp(LEAST, STANDING);
        }
        (self.ahead, self.first) = (ahead, ahead == 0);
        self.asked = Some(now);
        let pause = match self.told {
            Told::ByLooking if ahead > 0 => self.until_next_look(),
            _ => RENEW_AFTER,
        };
        self.due = Some(now + pause);
        if std::mem::take(&mut self.missed) && ahead > 0 {
            self.due = None;
        }
    }

    /// Before the front is expected: the nearer it is, the more often. Whoever is right behind the
    /// first looks twice in the time that one takes, because the next release is for the first.
    fn until_next_look(&self) -> Duration {
        let expected = self.per_place.saturating_mul(self.ahead);
        let sooner = if self.ahead == 1 {
            expected / 2
        } else {
            expected * 3 / 4
        };
        let longest = PER_PLACE.saturating_mul(self.ahead);
        sooner.min(longest).min(RENEW_AFTER)
    }

    /// The store did not keep the place. For a reason that may pass, what was known stands for as
    /// long as the place may; otherwise the contender is on its own for a while.
    pub fn not_kept(&mut self, now: Moment, why: &Error) {
        let known = self.asked.filter(|asked| now.since(*asked) < PLACE_LEASE);
        if why.is_retryable() && known.is_some() {
            self.due = Some(now + PER_PLACE);
            return;
        }
        (self.ahead, self.first) = (0, true);
        self.asked = None;
        self.due = Some(now + WITHOUT_LINE);
    }

    /// The store is being asked: nobody else need ask meanwhile.
    pub fn asking(&mut self, now: Moment) {
        self.missed = false;
        self.due = Some(now + RENEW_AFTER);
    }

    /// The store says that somebody has left the line.
    pub fn somebody_left(&mut self) {
        self.missed = true;
        self.ahead = self.ahead.saturating_sub(1);
        if self.ahead == 0 {
            self.due = None;
        }
    }

    /// The store may have told of changes that were missed.
    pub fn look_again(&mut self) {
        self.missed = true;
        self.due = None;
    }

    /// Whether nobody is ahead, as far as the store was asked.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.first
    }

    /// How long until the store is to be asked again: for the place, and how many are ahead.
    #[must_use]
    pub fn due_in(&self, now: Moment) -> Duration {
        self.due.map_or(Duration::ZERO, |due| due.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;

    const START: Moment = Moment::from_boot(Duration::from_secs(100));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn nobody_is_first_before_the_store_was_asked() {
        let mut place = PlaceInLine::new(Told::ByStore);
        assert!(!place.is_first() && place.due_in(START).is_zero());
        place.kept(START, 0);
        assert!(place.is_first());
        assert!(place.due_in(START) * 3 <= PLACE_LEASE);
    }

    #[test]
    fn whoever_has_no_line_asks_by_itself() {
        let mut place = PlaceInLine::new(Told::ByStore);
        place.kept(START, 3);
        assert!(!place.is_first());
        let away = Error::new(ErrorKind::Unavailable, "away");
        place.not_kept(START, &away);
        assert!(!place.is_first(), "the place is still there");
        place.not_kept(START + PLACE_LEASE, &away);
        assert!(place.is_first());
        place.kept(START, 3);
        let denied = Error::new(ErrorKind::AccessDenied, "no such table");
        place.not_kept(START, &denied);
        assert!(place.is_first());
        assert_eq!(place.due_in(START), WITHOUT_LINE);
    }

    #[test]
    fn those_who_are_told_count_down_and_look_once() {
        let mut place = PlaceInLine::new(Told::ByStore);
        place.kept(START, 2);
        place.somebody_left();
        assert!(!place.due_in(START).is_zero(), "one is still ahead");
        place.somebody_left();
        // It may have been somebody behind who left, so the store has the last word.
        assert!(!place.is_first() && place.due_in(START).is_zero());
        place.kept(START, 1);
        assert!(!place.is_first());
    }

    #[test]
    fn an_answer_from_before_a_departure_is_not_the_last_word() {
        let mut place = PlaceInLine::new(Told::ByStore);
        place.asking(START);
        place.kept(START, 2);
        place.asking(START);
        place.somebody_left();
        place.kept(START, 1);
        assert!(!place.is_first() && place.due_in(START).is_zero());
        place.asking(START);
        place.kept(START, 1);
        assert!(!place.due_in(START).is_zero());
    }

    #[test]
    fn those_who_look_do_so_by_the_pace_of_the_line() {
        let mut place = PlaceInLine::new(Told::ByLooking);
        place.kept(START, 4);
        assert_eq!(place.due_in(START), ms(800));
        // Two left within 100 ms, so the next two will take as long.
        place.kept(START + ms(100), 2);
        assert_eq!(place.due_in(START + ms(100)), ms(75));
        place.kept(START + ms(150), 1);
        assert_eq!(place.due_in(START + ms(150)), ms(25));
        // Nobody left: twice as long, up to the pace of a line that stands still.
        place.kept(START + ms(200), 1);
        assert_eq!(place.due_in(START + ms(200)), ms(50));
        for _ in 0..10 {
            place.kept(START + ms(200), 1);
        }
        assert_eq!(place.due_in(START + ms(200)), ms(200));
        place.kept(START + ms(200), 1000);
        assert_eq!(place.due_in(START + ms(200)), RENEW_AFTER);
    }
}
