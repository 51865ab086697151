//! One handle on the server's store: its batches, and its two parts, the locks and the records.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_backend_kit::{
    batch::{Batcher, Limits},
    operation::{Answer, Operation},
};
use distlock_core::{Clock, DistLock, Error, LockName, Records, Result};
use distlock_wire::CALL_BYTES;

use crate::{
    batch::BatchExecutor, config::RemoteConfig, error::BACKEND, link::Link, lock::RemoteLock,
    records::RemoteRecords,
};

/// The most operations of a batch. The server takes more without an answer than all batches in
/// flight have.
const OPERATIONS: usize = 512;

/// The limit of batches in flight: one travels to the server, one is carried out, and the answers
/// of another one travel back.
const IN_FLIGHT: usize = 3;

/// The queue length above which the queue is split into several batches.
const UNDIVIDED: usize = 64;

/// An opened store of a server.
#[derive(Debug)]
pub struct Remote {
    lock: Arc<RemoteLock>,
    records: Arc<RemoteRecords>,
}

impl Remote {
    /// Connects to one of the servers.
    ///
    /// # Errors
    /// [`Unavailable`](distlock_core::ErrorKind::Unavailable) when no server serves, and the error
    /// of a server that refuses this client.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(config: RemoteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let link = Link::open(config, clock).await;
        let link = link.map_err(|error| error.on(BACKEND).during("open"))?;
        let session = link.session().await?;
        let handle = RemoteHandle::new(link, 2);
        Ok(Self {
            lock: Arc::new(RemoteLock::new(
                Arc::clone(&handle),
                session.capabilities.clone(),
            )),
            records: Arc::new(RemoteRecords::new(handle, session.tells_ages)),
        })
    }

    /// The locks of the store.
    #[must_use]
    pub fn lock(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock) as Arc<dyn DistLock>
    }

    /// The records of the store.
    #[must_use]
    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as Arc<dyn Records>
    }
}

/// The part that the locks and the records of a handle share.
pub(crate) struct RemoteHandle {
    pub(crate) link: Arc<Link>,
    batcher: Batcher<BatchExecutor>,
    /// The number of open parts (locks and records).
    parts: AtomicUsize,
}

impl RemoteHandle {
    fn new(link: Arc<Link>, parts: usize) -> Arc<Self> {
        let mut limits = Limits::default();
        limits.operations = OPERATIONS;
        limits.bytes = CALL_BYTES;
        limits.in_flight = IN_FLIGHT;
        limits.undivided = UNDIVIDED;
        limits.ahead = true;
        Arc::new(Self {
            batcher: Batcher::new(BatchExecutor(Arc::clone(&link)), limits),
            link,
            parts: AtomicUsize::new(parts),
        })
    }

    /// Another handle with one part.
    pub(crate) async fn reopen(&self) -> Result<Arc<Self>> {
        let link = self.link.reopen().await;
        let link = link.map_err(|error| error.on(BACKEND).during("reopen"))?;
        Ok(Self::new(link, 1))
    }

    /// Submits an operation to the next batch.
    pub(crate) async fn submit(
        &self,
        name: Option<&LockName>,
        operation: Operation,
    ) -> Result<Answer> {
        let method = operation.kind().method();
        let answer = self.batcher.submit(Box::new(operation)).await;
        answer.map_err(|error| located(error, method, name))
    }

    /// Closes one part. Closing the last part ends the session.
    pub(crate) async fn close_part(&self) {
        if self.parts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        self.batcher.close().await;
        self.link.close();
    }
}

impl fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt(f)
    }
}

/// The same error, with the backend, the method and the lock.
pub(crate) fn located(error: Error, method: &'static str, name: Option<&LockName>) -> Error {
    let error = error.on(BACKEND).during(method);
    match name {
        Some(name) => error.about(name),
        None => error,
    }
}
