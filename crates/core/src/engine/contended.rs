//! Names that other processes wait for, as far as this process knows.
//!
//! A process that releases a lock and wants it again at once would overtake all other waiters,
//! because it learns of the release first. So it sometimes joins the store queue before it asks:
//! for a name that it had to wait for the last time, or that others waited for at its release.
//! Where the store sends notifications, it does so each time. Where waiters poll, each change of
//! holder costs a pause, so a process takes the lock several times in a row first.
//!
//! This module owns the names and how often each was noted. It never decides to wait.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::types::name::LockName;

/// Bounded, because only a later acquire of a name removes it.
const MOST: usize = 4096;

/// The names, with the number of times that each was noted.
#[derive(Debug, Default)]
pub(crate) struct ContendedNames {
    names: Mutex<HashMap<LockName, u32>>,
    /// Whether there are any. Most programs never meet another process, and locking the map each
    /// time costs a hundredth of an acquire in memory.
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

    /// Whether this process lets others go first now: the name was noted `limit` times since it
    /// last did.
    pub(crate) fn is_due(&self, name: &LockName, limit: u32) -> bool {
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
