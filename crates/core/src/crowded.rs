//! Names that other processes wait for, as far as this one knows.
//!
//! A process that releases a lock and wants it again at once would pass everybody who waits: it
//! knows of the release first. So it joins the line before it asks, once, for a name that it had
//! to wait for the time before, or that others waited for when it was released.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::name::LockName;

/// Bounded, because a name is only removed by the next acquire of it.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Crowded(Mutex<HashSet<LockName>>);

impl Crowded {
    pub(crate) fn note(&self, name: &LockName) {
        let mut names = self.names();
        if names.len() >= MOST {
            names.clear();
        }
        names.insert(name.clone());
    }

    /// Whether others may wait for it; asked by the next acquire of it.
    pub(crate) fn take(&self, name: &LockName) -> bool {
        let mut names = self.names();
        !names.is_empty() && names.remove(name)
    }

    fn names(&self) -> MutexGuard<'_, HashSet<LockName>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
