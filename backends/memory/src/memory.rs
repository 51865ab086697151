//! A store in memory: one lock table and the records beside it.
//!
//! Invariant: all handles of one [`Memory`], and all stores of one shared name, see the same locks
//! and records.

use std::{collections::BTreeMap, sync::Arc};

use distlock_core::{Clock, DistLock, Epoch, Records, SystemClock, sync::Mutex};
use uuid::Uuid;

use crate::{
    lock::{BACKEND, MemoryLock},
    records::MemoryRecords,
    table::Table,
};

/// One lock table and the records beside it. Clones share them.
#[derive(Clone, Debug)]
pub struct Memory {
    lock: Arc<MemoryLock>,
    records: Arc<MemoryRecords>,
}

impl Memory {
    /// Creates an empty store with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let epoch = Epoch::new(format!("{BACKEND}-{}", Uuid::new_v4()));
        Self::hosted(clock, epoch)
    }

    /// Creates an empty store with this clock and this epoch, for a program that keeps the history
    /// of the store beyond its own end.
    pub fn hosted(clock: Arc<dyn Clock>, epoch: Epoch) -> Self {
        Self {
            lock: Arc::new(MemoryLock::new(Arc::clone(&clock), epoch)),
            records: Arc::new(MemoryRecords::new(clock)),
        }
    }

    /// Returns the store of this name, which the whole process shares. The first call creates the
    /// store. The store uses the machine's clock.
    ///
    /// The store is kept until the process ends, even when no handle is left. If it were dropped, a
    /// holder that closes its client would free its locks, and fencing tokens could start again. So
    /// each name costs memory for the life of the process: take names from the configuration, never
    /// from requests.
    #[must_use]
    pub fn shared(name: &str) -> Self {
        static STORES: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());
        let mut stores = STORES.lock();
        if let Some(store) = stores.get(name) {
            return store.clone();
        }
        let store = Self::default();
        stores.insert(name.to_owned(), store.clone());
        store
    }

    /// The lock table itself, for a program that hosts it.
    #[must_use]
    pub fn table(&self) -> &Table {
        self.lock.table()
    }

    /// Opens a new handle on the lock table.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::new(self.lock.new_handle())
    }

    /// Opens a new handle on the records.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.records.new_handle())
    }
}

impl Default for Memory {
    /// Creates an empty store with the machine's clock.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}
