//! The handles of this process that are on the same tables.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use crate::wait::WaitGroup;

/// The group of the tables with this name, the same for every handle in this process that is opened on them.
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
