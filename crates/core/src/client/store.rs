//! A backend as it was opened: its locks and its records.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{
    client::locker::Locker,
    contract::{DistLock, records::Records},
    engine::{
        bounded::close_bounded,
        clock::{Clock, SystemClock},
    },
    types::error::Result,
};

/// Both contracts of one store. Cheap to clone; clones share one [`Locker`].
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
    /// From any backend: anybody's own can take part.
    pub fn new(backend: Arc<dyn DistLock>, records: Arc<dyn Records>) -> Self {
        Self::with_clock(backend, records, Arc::new(SystemClock))
    }

    /// With another clock than the machine's.
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

    /// Takes locks. The first call starts the renewal thread.
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

    /// Reads and writes records.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.parts.records)
    }

    /// The backend itself, for measurements and tests.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.parts.backend)
    }

    /// The earlier name of [`Store::backend`].
    #[doc(hidden)]
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        self.backend()
    }

    /// The clock it was opened with.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.parts.clock)
    }

    /// Waits until everything is connected.
    ///
    /// # Errors
    /// As connecting does.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<()> {
        self.locker().ready().await
    }

    /// Closes the locker (see [`Locker::close`]) and the records' connections, in at most 10
    /// seconds.
    ///
    /// # Cancel safety
    /// Safe: calling it again goes on where it stopped.
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
