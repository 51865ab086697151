//! The wait groups of this process, one for each set of tables.
//!
//! A group lives as long as a handle uses it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use crate::wait::WaitGroup;

/// The wait group of the tables with this name, the same for every handle of this process on them.
pub(super) fn of(tables: &str) -> Arc<WaitGroup> {
    static GROUPS: LazyLock<Mutex<HashMap<String, Weak<WaitGroup>>>> =
        LazyLock::new(Mutex::default);
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|_, group| group.strong_count() > 0);
    if let Some(group) = groups.get(tables).and_then(Weak::upgrade) {
        return group;
    }
    let group = WaitGroup::adaptive();
    groups.insert(tables.to_owned(), Arc::downgrade(&group));
    group
}
