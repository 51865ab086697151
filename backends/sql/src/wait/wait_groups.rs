//! The wait groups of this process, one for each set of tables.
//!
//! A group exists as long as at least one handle uses the group.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use super::wait_group::WaitGroup;

/// The wait groups of one dialect. `K` identifies a set of tables.
pub(crate) struct WaitGroups<K>(LazyLock<Mutex<HashMap<K, Weak<WaitGroup>>>>);

impl<K: Eq + Hash> WaitGroups<K> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The group of the tables `key`: every handle of this process on these tables gets the same
    /// group. If there is no group yet, `new` becomes the group.
    pub(crate) fn shared(&self, key: K, new: &Arc<WaitGroup>) -> Arc<WaitGroup> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, group| group.strong_count() > 0);
        if let Some(group) = groups.get(&key).and_then(Weak::upgrade) {
            return group;
        }
        groups.insert(key, Arc::downgrade(new));
        Arc::clone(new)
    }
}
