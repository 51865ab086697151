//! The public type of an opened store, for every dialect: its locks and its records.
//!
//! The module also starts the reaper of each handle, and names the backend and the operation in the
//! errors of opening, reaping and migrating.

#![expect(
    private_bounds,
    reason = "callers name a store by the alias of its dialect"
)]

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::Migrated;
use distlock_core::{Clock, DistLock, Records, Result};

use crate::{
    dialect::Dialect, lock::SqlLock, reaper, records::SqlRecords, store::Store, tables::migrated,
};

/// An opened database: a SQLite file, or a database on a server. The aliases of this type name the
/// dialects.
///
/// The locks and the records share their connections, which close when both the locks and the
/// records are closed or dropped. The caller's own transactions never use these connections.
#[derive(Debug)]
pub struct SqlStore<D: Dialect> {
    store: Arc<Store<D>>,
    lock: Arc<SqlLock<D>>,
    records: Arc<SqlRecords<D>>,
}

impl<D: Dialect> Clone for SqlStore<D> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            lock: Arc::clone(&self.lock),
            records: Arc::clone(&self.records),
        }
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Connects, or opens the file. Creates the tables where none is there (and an absent SQLite
    /// file, readable only by its owner), unless the option `migrate` is false. Never changes
    /// tables that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong option, path or file, for a database that does not
    /// exist, and for tables that are absent or not as expected; the error names the remedy.
    /// [`ErrorKind::AccessDenied`] when the server refuses the user or the client's TLS
    /// certificate, and for a file or folder that this process must not read and write.
    /// [`ErrorKind::Unsupported`] for a server that is too old. [`ErrorKind::Unavailable`] when no
    /// server that takes writes can be reached in time, when the options demand TLS but the server
    /// offers no TLS or has a certificate that is not trusted, and when other processes keep a
    /// SQLite file busy.
    ///
    /// # Cancel safety
    ///
    /// Safe: created tables stay, and the next call uses them. If MySQL or MariaDB has created only
    /// some of the tables, [`Self::migrate`] creates the others.
    ///
    /// [`ErrorKind::AccessDenied`]: distlock_core::ErrorKind::AccessDenied
    /// [`ErrorKind::InvalidConfig`]: distlock_core::ErrorKind::InvalidConfig
    /// [`ErrorKind::Unavailable`]: distlock_core::ErrorKind::Unavailable
    /// [`ErrorKind::Unsupported`]: distlock_core::ErrorKind::Unsupported
    pub async fn open(config: D::Config, clock: Arc<dyn Clock>) -> Result<Self> {
        let dialect = during::<D, _>("open", D::open(config, clock).await)?;
        let store = reaped(Store::new(dialect, 2), reaper::first_pause());
        Ok(Self {
            lock: Arc::new(SqlLock::new(Arc::clone(&store))),
            records: Arc::new(SqlRecords::new(Arc::clone(&store))),
            store,
        })
    }

    /// The locks of this store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// The records of this store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }

    pub(crate) fn into_store(self, clock: Arc<dyn Clock>) -> distlock_core::Store {
        distlock_core::Store::with_clock(self.lock, self.records, clock)
    }

    /// The number of requests that this store and all handles reopened from it have sent so far.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.store.dialect().context().counters.statements()
    }

    /// The number of statements that were sent again (MySQL and Postgres). Either the server
    /// stopped the first send for another transaction, or the connection was lost.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.store.dialect().context().counters.retries()
    }

    /// Removes the rows that have been idle for longer than the option `reap_after`, and returns
    /// the number of removed rows. A background task does the same four times in each `reap_after`.
    ///
    /// # Errors
    ///
    /// Failures of the store. Rows that were removed before a failure stay removed.
    ///
    /// # Cancel safety
    ///
    /// Safe: each page is removed as a whole or not at all.
    pub async fn reap(&self) -> Result<u64> {
        let reaped = reaper::reap(self.store.dialect(), Duration::ZERO).await;
        during::<D, _>("reap", reaped)
    }

    /// Creates what is missing of the tables (on SQLite only where all are missing), fills an
    /// emptied meta table, and creates an absent SQLite file. Never changes tables that exist.
    ///
    /// # Errors
    ///
    /// The same errors as [`Self::open`].
    ///
    /// # Cancel safety
    ///
    /// Safe: a repeated call completes the migration.
    pub async fn migrate(config: D::Config, clock: Arc<dyn Clock>) -> Result<Migrated> {
        let created = D::migrate(config, clock).await;
        during::<D, _>("migrate", created).map(migrated)
    }
}

/// One more handle on a store, for locks or for records. This handle reaps too, because the runtime
/// of the first handle may end before the runtime of this handle.
pub(crate) async fn reopen<D: Dialect>(store: &Store<D>) -> Result<Arc<Store<D>>> {
    let dialect = during::<D, _>("reopen", store.dialect().reopen().await)?;
    let pause = reaper::pause(&dialect);
    Ok(reaped(Store::new(dialect, 1), pause))
}

/// Starts the reaper of a handle.
fn reaped<D: Dialect>(store: Arc<Store<D>>, pause: Duration) -> Arc<Store<D>> {
    let task = reaper::reap_periodically(Arc::downgrade(&store), pause);
    store.track_task(tokio::spawn(task).abort_handle());
    store
}

/// Names the backend and the operation in an error.
fn during<D: Dialect, T>(operation: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.on(D::NAME).during(operation))
}
