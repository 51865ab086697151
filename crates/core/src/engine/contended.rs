//! The names that other processes probably wait for.
//!
//! A process that releases a lock and wants the same lock again at once would overtake all other
//! waiters, because this process learns of the release first. So the process sometimes joins the
//! store queue before its first attempt. The process does so for a name that it had to wait for at
//! its last acquire, or that other processes waited for at its last release. With a store that
//! sends notifications, the process does so each time. With a store that waiters poll, each change
//! of the holder costs a pause, so the process takes the lock several times in a row before it lets
//! others go first, for as long as such a pause is not short beside its turn.
//!
//! An attempt without a wait cannot join a queue. After several grants in a row such an attempt
//! gives way instead: it does not ask the store until the waiters have had time to see that the
//! lock is free.
//!
//! This module owns the names and counts how often each name was noted. The module itself never
//! waits.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{clock::Moment, sync::Mutex, types::name::LockName};

/// The most names. The number is bounded, because only a later acquire of a name removes that name.
const MOST: usize = 4096;

/// The time for which a free lock is left to the waiters: the longest pause between two polls of
/// the first process in the store queue (68 ms), and the poll.
const GIVE_WAY: Duration = Duration::from_millis(100);

/// The time for which a process may hold the lock in a turn of grants in a row, even if these are
/// fewer than its limit. Beside such a turn, the pause until the others see the release is short.
const LONG_TURN: Duration = Duration::from_millis(30);

/// The names that other processes probably wait for.
#[derive(Debug, Default)]
pub(crate) struct ContendedNames {
    names: Mutex<HashMap<LockName, Noted>>,
    /// Whether the map has any name. Most programs never compete with another process, and locking
    /// the map at each acquire would cost 1 % of the time of an acquire on the memory backend.
    any: AtomicBool,
}

/// The number of times that a name was noted, the time for which the lock was held before these,
/// and the last time.
#[derive(Debug)]
struct Noted {
    times: u32,
    held: Duration,
    last: Moment,
}

impl Noted {
    fn is_due(&self, limit: u32) -> bool {
        self.times >= limit || self.held >= LONG_TURN
    }
}

impl ContendedNames {
    /// Notes that other processes wait for a name, which this process held for the time `held`.
    pub(crate) fn note(&self, name: &LockName, held: Duration, now: Moment) {
        let mut names = self.names.lock();
        if names.len() >= MOST {
            names.clear();
        }
        let noted = names.entry(name.clone()).or_insert(Noted {
            times: 0,
            held: Duration::ZERO,
            last: now,
        });
        noted.times += 1;
        noted.held = noted.held.saturating_add(held);
        noted.last = now;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Removes the name, because the store says that no other process waits for it.
    pub(crate) fn forget(&self, name: &LockName) {
        if self.any.load(Ordering::Relaxed) {
            self.remove(&mut self.names.lock(), name);
        }
    }

    /// Whether an attempt without a wait must leave the free lock to the waiters: the name was
    /// noted at least `limit` times in a row or held for [`LONG_TURN`], the last time less than
    /// [`GIVE_WAY`] ago. After that time, the count starts again.
    pub(crate) fn gives_way(&self, name: &LockName, limit: u32, now: Moment) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut names = self.names.lock();
        let Some(noted) = names.get(name).filter(|noted| noted.is_due(limit)) else {
            return false;
        };
        let gives_way = now < noted.last + GIVE_WAY;
        if !gives_way {
            self.remove(&mut names, name);
        }
        gives_way
    }

    /// Removes the name and returns `true` if the name was noted at least `limit` times, or held
    /// for [`LONG_TURN`]. The process then lets others go first.
    pub(crate) fn take_if_due(&self, name: &LockName, limit: u32) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut names = self.names.lock();
        let due = names.get(name).is_some_and(|noted| noted.is_due(limit));
        if due {
            self.remove(&mut names, name);
        }
        due
    }

    fn remove(&self, names: &mut HashMap<LockName, Noted>, name: &LockName) {
        names.remove(name);
        self.any.store(!names.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_due_once_after_it_was_noted_often_enough() {
        let noted = ContendedNames::default();
        let [name, other] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let now = Moment::from_boot(Duration::ZERO);
        assert!(!noted.take_if_due(&name, 1));
        noted.note(&name, Duration::ZERO, now);
        noted.note(&other, Duration::ZERO, now);
        assert!(!noted.take_if_due(&name, 2));
        noted.note(&name, Duration::ZERO, now);
        assert!(noted.take_if_due(&name, 2));
        assert!(!noted.take_if_due(&name, 1));
        assert!(noted.take_if_due(&other, 1));
    }

    #[test]
    fn a_name_is_due_before_the_limit_after_a_long_turn() {
        let noted = ContendedNames::default();
        let name = LockName::new("a").unwrap();
        let start = Moment::from_boot(Duration::ZERO);
        // The time between two grants does not count.
        for round in 1..=2 {
            noted.note(&name, LONG_TURN / 2, start + LONG_TURN * (round * 3));
            noted.note(&name, Duration::ZERO, start + LONG_TURN * (round * 3));
            assert!(!noted.take_if_due(&name, 16), "{round}");
            noted.note(&name, LONG_TURN / 2, start + LONG_TURN * (round * 4));
            assert!(noted.take_if_due(&name, 16), "{round}");
        }
    }

    #[test]
    fn an_attempt_without_a_wait_gives_way_for_a_while_after_several_grants_in_a_row() {
        let noted = ContendedNames::default();
        let name = LockName::new("a").unwrap();
        let at = |millis| Moment::from_boot(Duration::from_millis(millis));
        assert!(!noted.gives_way(&name, 2, at(0)));
        noted.note(&name, Duration::ZERO, at(0));
        assert!(!noted.gives_way(&name, 2, at(0)));
        // Nobody waits meanwhile, so the grants are not in a row.
        noted.forget(&name);
        noted.note(&name, Duration::ZERO, at(1000));
        assert!(!noted.gives_way(&name, 2, at(1000)));
        noted.note(&name, Duration::ZERO, at(2000));
        assert!(noted.gives_way(&name, 2, at(2000)));
        assert!(noted.gives_way(&name, 2, at(2099)));
        assert!(!noted.gives_way(&name, 2, at(2100)));
        assert!(
            !noted.gives_way(&name, 2, at(2050)),
            "the count starts again"
        );
    }

    #[test]
    fn the_number_of_noted_names_is_bounded() {
        let noted = ContendedNames::default();
        for number in 0..=MOST {
            let name = LockName::new(format!("{number}")).unwrap();
            noted.note(&name, Duration::ZERO, Moment::from_boot(Duration::ZERO));
        }
        assert_eq!(noted.names.lock().len(), 1);
    }
}
