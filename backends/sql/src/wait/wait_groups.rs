//! The wait groups of this process, one for each set of tables.
//!
//! A group lives as long as a handle uses it.

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

    /// The group of these tables, the same for every handle of this process on them. `new` becomes
    /// the group if there is none.
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
