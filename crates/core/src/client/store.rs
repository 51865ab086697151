//! An open store, with its locks and its records.
//!
//! This module owns the one locker that all clones of a store share. Invariant: the locker is
//! created at its first use, so a program that uses only records starts no keeper thread. The locks
//! and the records can be those of two stores.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{
    client::locker::Locker,
    clock::{Clock, SystemClock},
    contract::{DistLock, records::Records},
    engine::{bounded::close_bounded, unreleased::Unreleased},
    types::error::Result,
};

/// The locks and the records of one store, or the locks of one and the records of another (see
/// [`Store::with_records_of`]). A clone is cheap, and all clones share one [`Locker`].
#[derive(Clone)]
pub struct Store {
    parts: Arc<StoreParts>,
    /// The parts of the store that keeps the records: the same `Arc` unless it is another store.
    records: Arc<StoreParts>,
}

struct StoreParts {
    backend: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    locker: OnceLock<Locker>,
}

impl Store {
    /// A store with any backend, also a backend from outside this project.
    pub fn new(backend: Arc<dyn DistLock>, records: Arc<dyn Records>) -> Self {
        Self::with_clock(backend, records, Arc::new(SystemClock))
    }

    /// As [`Store::new`], with another clock than the machine's.
    pub fn with_clock(
        backend: Arc<dyn DistLock>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self::of_parts(Arc::new(StoreParts {
            backend,
            records,
            clock,
            locker: OnceLock::new(),
        }))
    }

    fn of_parts(parts: Arc<StoreParts>) -> Self {
        Self {
            records: Arc::clone(&parts),
            parts,
        }
    }

    /// The locks of this store with the records of `other`: for locks in a store that keeps no
    /// records, or whose records would not be safe enough. All programs that share the records must
    /// share the locks as well: the name of a lock protects nothing from a program whose locks are
    /// elsewhere.
    ///
    /// The locker is that of this store. [`Store::close`] closes both stores.
    #[must_use]
    pub fn with_records_of(mut self, other: &Self) -> Self {
        self.records = Arc::clone(&other.records);
        self
    }

    /// The store that keeps the records, if it is not the store of the locks.
    ///
    /// The epoch of the locks then says nothing of the records: this store has its own.
    #[must_use]
    pub fn records_store(&self) -> Option<Self> {
        let apart = !Arc::ptr_eq(&self.parts, &self.records);
        apart.then(|| Self::of_parts(Arc::clone(&self.records)))
    }

    /// The locker of this store. The first call starts the keeper thread.
    #[must_use]
    pub fn locker(&self) -> Locker {
        let parts = &self.parts;
        parts
            .locker
            .get_or_init(|| {
                Locker::builder(Arc::clone(&parts.backend))
                    .clock(Arc::clone(&parts.clock))
                    .build()
            })
            .clone()
    }

    /// The records of this store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records.records)
    }

    /// The backend itself, for measurements and tests.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.parts.backend)
    }

    /// The clock with which the store was opened.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.parts.clock)
    }

    /// Waits until the keeper thread of the locker is connected (see [`Locker::ready`]).
    ///
    /// # Errors
    /// As [`Locker::ready`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<()> {
        self.locker().ready().await
    }

    /// The locks that the store may still hold although they were released (see
    /// [`Locker::unreleased`]).
    #[must_use]
    pub fn unreleased(&self) -> Vec<Unreleased> {
        let locker = self.parts.locker.get();
        locker.map(Locker::unreleased).unwrap_or_default()
    }

    /// Closes the locker (see [`Locker::close`]) and the records' connections, in at most 10
    /// seconds. If the records are in another store, closes that store in the same way and at the
    /// same time.
    ///
    /// # Cancel safety
    /// Safe: a second call continues the steps of the first one.
    pub async fn close(&self) {
        if Arc::ptr_eq(&self.parts, &self.records) {
            return self.parts.close().await;
        }
        tokio::join!(self.parts.close(), self.records.close());
    }
}

impl StoreParts {
    async fn close(&self) {
        match self.locker.get() {
            Some(locker) => locker.close().await,
            None => close_bounded(&*self.clock, self.backend.close()).await,
        }
        close_bounded(&*self.clock, self.records.close()).await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.parts.backend)
            .field("records", &self.records.records)
            .finish_non_exhaustive()
    }
}
