//! The wait groups of this process, one for each file and prefix.
//!
//! A group lives as long as a handle uses it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use super::file::FileId;
use crate::wait::WaitGroup;

/// The wait group of a file's tables, the same for every handle of this process on that file.
pub(super) fn of(file: FileId, prefix: &str) -> Arc<WaitGroup> {
    type Groups = HashMap<(FileId, String), Weak<WaitGroup>>;
    static GROUPS: LazyLock<Mutex<Groups>> = LazyLock::new(Mutex::default);
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|_, group| group.strong_count() > 0);
    let key = (file, prefix.to_owned());
    if let Some(group) = groups.get(&key).and_then(Weak::upgrade) {
        return group;
    }
    let group = WaitGroup::steady();
    groups.insert(key, Arc::downgrade(&group));
    group
}
