//! Locks and records in the memory of one process, behind the distlock contract.
//!
//! For tests, for tools that need exclusion between the tasks of one process only, and as the table inside a lock server. It
//! needs no set-up and loses everything when the process ends.
//!
//! ```
//! use std::sync::Arc;
//!
//! use distlock_core::{Store, SystemClock};
//! use distlock_memory::Memory;
//!
//! # tokio_test(async {
//! let memory = Memory::new(Arc::new(SystemClock));
//! let locker = Store::new(memory.lock(), memory.records()).locker();
//! let guard = locker.lock("order:42").acquire().await?;
//! println!("held with token {}", guard.token());
//! assert!(guard.release().await.is_clean());
//! # Ok::<(), distlock_core::Error>(())
//! # });
//! # fn tokio_test(f: impl Future<Output = Result<(), distlock_core::Error>>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f).unwrap();
//! # }
//! ```
//!
//! [`Memory::new`] is a store of its own. [`Memory::shared`] is the one of that name that all of
//! the process share.
//!
//! - `table`: the lock table, a synchronous state machine with the time passed in. Public, so that a server can host it.
//! - `line`: who waits for a lock, in order. `row`: one held lock.
//! - `lock`, `wait`: the asynchronous shell around the table.
//! - `records`: the versioned key-value store.
//!
//! Guarantees: leases are counted on the boot-time clock; tokens rise per name while the process lives (and across restarts
//! as long as the wall clock agrees); waiting callers are served in the order in which they joined, except that one who does
//! not come within half a second of being called is passed over; a release wakes one waiter, of that name.

mod line;
mod lock;
mod records;
mod row;
mod table;
mod wait;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use distlock_core::{Clock, DistLock, Epoch, Records, SystemClock};
use uuid::Uuid;

pub use line::Place;
pub use lock::MemoryLock;
pub use records::MemoryRecords;
pub use table::{Armed, Now, Table};

const BACKEND: &str = "memory";

/// One lock table and the records beside it. Clones share them.
#[derive(Clone, Debug)]
pub struct Memory {
    lock: Arc<MemoryLock>,
    records: Arc<MemoryRecords>,
}

impl Memory {
    /// Empty, on this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let epoch = Epoch::new(format!("{BACKEND}-{}", Uuid::new_v4()));
        Self {
            lock: Arc::new(MemoryLock::new(Arc::clone(&clock), epoch)),
            records: Arc::new(MemoryRecords::new(clock)),
        }
    }

    /// The store of this name that the whole process shares, on the machine's clock. The first call
    /// makes it.
    ///
    /// It is kept until the process ends, also when nobody has a handle: otherwise a lock would
    /// become free, and its fencing tokens could start again, because its holder's client was
    /// closed. So each name costs memory for as long as the process lives: names belong into the
    /// configuration and are not made from requests.
    #[must_use]
    pub fn shared(name: &str) -> Self {
        static STORES: Mutex<BTreeMap<String, Memory>> = Mutex::new(BTreeMap::new());
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(name) {
            return store.clone();
        }
        let store = Self::default();
        stores.insert(name.to_owned(), store.clone());
        store
    }

    /// A new handle on the lock table.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::new(self.lock.another())
    }

    /// A new handle on the records.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::new(self.records.another())
    }
}

impl Default for Memory {
    /// Empty, on the machine's clock.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}
