//! An open store, with its locks and its records.
//!
//! This module owns the one locker that all clones of a store share. Invariant: the locker is
//! created at its first use, so a program that uses only records starts no keeper thread.

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

/// The locks and the records of one store. A clone is cheap, and all clones share one [`Locker`].
#[derive(Clone)]
pub struct Store {
    parts: Arc<StoreParts>,
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
        Self {
            parts: Arc::new(StoreParts {
                backend,
                records,
                clock,
                locker: OnceLock::new(),
            }),
        }
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
        Arc::clone(&self.parts.records)
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
    /// seconds.
    ///
    /// # Cancel safety
    /// Safe: a second call continues the steps of the first one.
    pub async fn close(&self) {
        match self.parts.locker.get() {
            Some(locker) => locker.close().await,
            None => close_bounded(&*self.parts.clock, self.parts.backend.close()).await,
        }
        close_bounded(&*self.parts.clock, self.parts.records.close()).await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.parts.backend)
            .finish_non_exhaustive()
    }
}
