//! The names that other processes probably wait for.
//!
//! A process that releases a lock and wants the same lock again at once would overtake all other
//! waiters, because this process learns of the release first. So the process sometimes joins the
//! store queue before its first attempt. The process does so for a name that it had to wait for at
//! its last acquire, or that other processes waited for at its last release. With a store that
//! sends notifications, the process does so each time. With a store that waiters poll, each change
//! of the holder costs a pause, so the process takes the lock several times in a row before it lets
//! others go first.
//!
//! This module owns the names and counts how often each name was noted. The module itself never
//! waits.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::types::name::LockName;

/// The most names. The number is bounded, because only a later acquire of a name removes that name.
const MOST: usize = 4096;

/// The names, with the number of times that each was noted.
#[derive(Debug, Default)]
pub(crate) struct ContendedNames {
    names: Mutex<HashMap<LockName, u32>>,
    /// Whether the map has any name. Most programs never compete with another process, and locking
    /// the map at each acquire would cost 1 % of the time of an acquire on the memory backend.
    any: AtomicBool,
}

impl ContendedNames {
    /// Notes that other processes wait for a name.
    pub(crate) fn note(&self, name: &LockName) {
        let mut names = self.names();
        if names.len() >= MOST {
            names.clear();
        }
        *names.entry(name.clone()).or_default() += 1;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Removes the name and returns `true` if the name was noted at least `limit` times. The
    /// process then lets others go first.
    pub(crate) fn take_if_due(&self, name: &LockName, limit: u32) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut names = self.names();
        let due = names.get(name).is_some_and(|times| *times >= limit);
        if due {
            names.remove(name);
            self.any.store(!names.is_empty(), Ordering::Relaxed);
        }
        due
    }

    fn names(&self) -> MutexGuard<'_, HashMap<LockName, u32>> {
        // No code panics while it holds the mutex.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_due_once_after_it_was_noted_often_enough() {
        let noted = ContendedNames::default();
        let [name, other] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        assert!(!noted.take_if_due(&name, 1));
        noted.note(&name);
        noted.note(&other);
        assert!(!noted.take_if_due(&name, 2));
        noted.note(&name);
        assert!(noted.take_if_due(&name, 2));
        assert!(!noted.take_if_due(&name, 1));
        assert!(noted.take_if_due(&other, 1));
    }

    #[test]
    fn the_number_of_noted_names_is_bounded() {
        let noted = ContendedNames::default();
        for number in 0..=MOST {
            noted.note(&LockName::new(format!("{number}")).unwrap());
        }
        assert_eq!(noted.names().len(), 1);
    }
}
