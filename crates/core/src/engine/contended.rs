//! Names that other processes wait for, as far as this one knows.
//!
//! A process that releases a lock and wants it again at once would pass everybody who waits: it
//! knows of the release first. So now and then it joins the line before it asks, for a name that it
//! had to wait for the time before, or that others waited for when it was released. Where the store
//! tells of releases, that is each time. Where it is polled, a hand-over costs a pause between two
//! polls, so a process takes the lock several times in a row before it lets others go first.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::types::name::LockName;

/// Bounded, because a name is only removed by a later acquire of it.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct ContendedNames {
    names: Mutex<HashMap<LockName, u32>>,
    /// Whether there are any. Most programs never meet another one, and asking for the map each
    /// time is a hundredth of what a lock in memory costs.
    any: AtomicBool,
}

impl ContendedNames {
    pub(crate) fn note(&self, name: &LockName) {
        let mut names = self.names();
        if names.len() >= MOST {
            names.clear();
        }
        *names.entry(name.clone()).or_default() += 1;
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether it is time to let others go first: the name was noted `limit` times since the last
    /// time that it was.
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
        // Nothing panics while it is held.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
