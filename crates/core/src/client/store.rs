//! A backend as it was opened: its locks and its records.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use crate::{
    client::locker::Locker,
    contract::{DistLock, records::Records},
    engine::{
        bounded::closed,
        clock::{Clock, SystemClock},
    },
    types::error::Result,
};

/// Both contracts of one store. Cheap to clone; clones share one [`Locker`].
#[derive(Clone)]
pub struct Store {
    parts: Arc<Parts>,
}

struct Parts {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    locker: OnceLock<Locker>,
}

impl Store {
    /// From any backend: anybody's own can take part.
    pub fn new(lock: Arc<dyn DistLock>, records: Arc<dyn Records>) -> Self {
        Self::with_clock(lock, records, Arc::new(SystemClock))
    }

    /// With another clock than the machine's.
    pub fn with_clock(
        lock: Arc<dyn DistLock>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            parts: Arc::new(Parts {
                lock,
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
                Locker::builder(Arc::clone(&parts.lock))
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

    /// The backend itself, for those who measure or test it.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.parts.lock)
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
            None => closed(&*self.parts.clock, self.parts.lock.close()).await,
        }
        closed(&*self.parts.clock, self.parts.records.close()).await;
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("lock", &self.parts.lock)
            .finish_non_exhaustive()
    }
}
