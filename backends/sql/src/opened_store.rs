//! The locks and records of an opened database, for every dialect.
//!
//! The module names the backend and the operation in the errors of opening, reaping and migrating.

use std::{sync::Arc, time::Duration};

use distlock_core::{DistLock, Records, Result};

use crate::{
    dialect::Dialect, lock::SqlLock, reaper, records::SqlRecords, store::Store,
    store_handle::open_store,
};

/// The locks and records of one store.
#[derive(Debug)]
pub(crate) struct OpenedStore<D: Dialect> {
    store: Arc<Store<D>>,
    lock: Arc<SqlLock<D>>,
    records: Arc<SqlRecords<D>>,
}

impl<D: Dialect> Clone for OpenedStore<D> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            lock: Arc::clone(&self.lock),
            records: Arc::clone(&self.records),
        }
    }
}

impl<D: Dialect> OpenedStore<D> {
    /// `dialect` is the result of connecting.
    pub(crate) fn new(dialect: Result<D>) -> Result<Self> {
        let store = open_store(during::<D, _>("open", dialect)?);
        Ok(Self {
            lock: Arc::new(SqlLock::new(Arc::clone(&store))),
            records: Arc::new(SqlRecords::new(Arc::clone(&store))),
            store,
        })
    }

    pub(crate) fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    pub(crate) fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }

    pub(crate) fn statements(&self) -> u64 {
        self.store.dialect().counters().statements()
    }

    pub(crate) fn retries(&self) -> u64 {
        self.store.dialect().counters().retries()
    }

    pub(crate) async fn reap(&self) -> Result<u64> {
        during::<D, _>(
            "reap",
            reaper::reap(self.store.dialect(), Duration::ZERO).await,
        )
    }
}

/// Names the backend and the operation in an error.
pub(crate) fn during<D: Dialect, T>(operation: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.on(D::NAME).during(operation))
}
