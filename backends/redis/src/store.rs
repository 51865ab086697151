//! One handle on a store: its batches, its waiters, and whether it is closed.
//!
//! The handles of one store share knowledge (epochs and histories). The handles share no
//! connection, because a connection belongs to one runtime.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_backend_kit::{
    batch::{Batcher, Limits},
    operation::{Answer, Operation},
};
use distlock_core::{Clock, LockName, Result};
use futures_util::future::join_all;

use crate::{
    config::RedisConfig,
    connection::{Connection, Connector, WaiterRegistry},
    error::BACKEND,
    format::keys::{KeyLayout, SLOTS},
    operations::{
        Histories, KeyedOperation, WaiterChecks,
        executor::{BatchExecutor, ServerAccess},
    },
    routing::{OpenMode, Router},
    sentinels::LastMajority,
};

/// The number of batch queues for a cluster. Each queue has its own range of slots, so an
/// unreachable shard delays few operations of other shards.
const BATCHERS: u16 = 16;

/// The limit of batches in flight. While the server runs one batch, the client builds the next one
/// and reads the answers of another. With few callers, a higher limit would only make batches
/// smaller.
const IN_FLIGHT: usize = 4;

/// The queue length above which the queue is split into several batches. Splitting a shorter queue
/// gains nothing, because the fixed cost of each script dominates.
const UNDIVIDED: usize = 64;

/// The part that the locks and the records of a handle share. The connections close after both are
/// closed.
pub(crate) struct Store {
    access: Arc<ServerAccess>,
    batchers: Box<[Batcher<BatchExecutor>]>,
    survives_restart: bool,
    last_majority: Arc<LastMajority>,
    /// The number of open parts (locks and records).
    parts: AtomicUsize,
}

/// The knowledge that all handles of a store share.
#[derive(Clone, Debug)]
struct StoreKnowledge {
    waiter_checks: Arc<WaiterChecks>,
    histories: Arc<Histories>,
    last_majority: Arc<LastMajority>,
}

impl Store {
    /// Opens a handle with this number of `parts`, such as the locks and the records. Each part is
    /// closed on its own, and closing the last one closes the connections. Opening connects to
    /// every reachable primary.
    pub(crate) async fn open(
        config: RedisConfig,
        clock: Arc<dyn Clock>,
        parts: usize,
    ) -> Result<Arc<Self>> {
        let waiters = Arc::<WaiterRegistry>::default();
        let connector = Connector::new(config, clock, Arc::clone(&waiters))?;
        let knowledge = StoreKnowledge {
            waiter_checks: Arc::default(),
            histories: Arc::new(Histories::new()),
            last_majority: Arc::default(),
        };
        let mode = OpenMode::Initial;
        let (store, primaries) = Self::connect(connector, waiters, knowledge, parts, mode).await?;
        // One line for each opened store, not for each server, handle or connection.
        let evicting = primaries.iter().find_map(|connection| {
            let policy = connection.server.eviction.as_deref()?;
            Some((&connection.address, policy))
        });
        if let Some((at, policy)) = evicting {
            tracing::warn!(
                target: "distlock::store",
                "{at} deletes keys when its memory is full (maxmemory-policy {policy}), held locks \
                 among them, and two may hold one lock then: set maxmemory-policy noeviction"
            );
        }
        Ok(store)
    }

    /// Opens another handle on the same store. The new handle's connections run on the calling
    /// runtime.
    pub(crate) async fn reopen(&self) -> Result<Arc<Self>> {
        let waiters = Arc::<WaiterRegistry>::default();
        let connector = self
            .access
            .router
            .connector
            .for_handle(Arc::clone(&waiters));
        let knowledge = StoreKnowledge {
            waiter_checks: Arc::clone(&self.access.waiter_checks),
            histories: Arc::clone(&self.access.histories),
            last_majority: Arc::clone(&self.last_majority),
        };
        let mode = OpenMode::Additional;
        let (store, _) = Self::connect(connector, waiters, knowledge, 1, mode).await?;
        Ok(store)
    }

    async fn connect(
        connector: Connector,
        waiters: Arc<WaiterRegistry>,
        knowledge: StoreKnowledge,
        parts: usize,
        mode: OpenMode,
    ) -> Result<(Arc<Self>, Vec<Arc<Connection>>)> {
        let layout = KeyLayout::new(&connector.config().prefix);
        let router = Router::new(connector, &knowledge.last_majority);
        let primaries = router.open(mode).await?;
        let appends = |connection: &Arc<Connection>| connection.server.appends == Some(true);
        // If a primary cannot be reached, its settings are unknown.
        let survives_restart =
            primaries.missing.is_empty() && primaries.connections.iter().all(appends);
        let batchers = if router.is_cluster() { BATCHERS } else { 1 };
        let access = Arc::new(ServerAccess {
            router,
            layout,
            waiters,
            waiter_checks: knowledge.waiter_checks,
            histories: knowledge.histories,
        });
        let mut limits = Limits::default();
        limits.bytes = 1024 * 1024;
        limits.in_flight = IN_FLIGHT;
        limits.undivided = UNDIVIDED;
        // The next batch is sent before the answers of the last one reach their callers. This pays
        // because a script takes longer at the server than the round trip.
        limits.ahead = true;
        let batchers =
            (0..batchers).map(|_| Batcher::new(BatchExecutor(Arc::clone(&access)), limits));
        let store = Self {
            batchers: batchers.collect(),
            survives_restart,
            last_majority: knowledge.last_majority,
            access,
            parts: AtomicUsize::new(parts),
        };
        Ok((Arc::new(store), primaries.connections))
    }

    pub(crate) fn access(&self) -> &ServerAccess {
        &self.access
    }

    /// Returns whether every primary had an append-only file when the handle was opened.
    pub(crate) const fn survives_restart(&self) -> bool {
        self.survives_restart
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.access.router.connector.clock()
    }

    /// Submits an operation, on the lock of this name or on a record, to the next batch.
    pub(crate) fn submit<'a>(
        &'a self,
        name: Option<&'a LockName>,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        self.submit_keyed(name, KeyedOperation::new(&self.access.layout, operation))
    }

    /// As [`submit`](Self::submit), for an operation that concerns the lock's waiters as well: see
    /// [`KeyedOperation::with_waiters`].
    pub(crate) fn submit_with_waiters<'a>(
        &'a self,
        name: &'a LockName,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        let mut op = KeyedOperation::new(&self.access.layout, operation);
        op.with_waiters = true;
        self.submit_keyed(Some(name), op)
    }

    // This function is not async, because the future of an async function would keep the arguments
    // a second time.
    fn submit_keyed<'a>(
        &'a self,
        name: Option<&'a LockName>,
        op: KeyedOperation,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        let op = Box::new(op);
        async move {
            let operation = op.operation.kind().method();
            let batcher = match &*self.batchers {
                [only] => only,
                batchers => {
                    let slots_each = usize::from(SLOTS / BATCHERS);
                    &batchers[usize::from(op.target.bucket.slot()) / slots_each % batchers.len()]
                }
            };
            batcher.submit(op).await.map_err(|error| {
                let error = error.on(BACKEND).during(operation);
                match name {
                    Some(name) => error.about(name),
                    None => error,
                }
            })
        }
    }

    /// Closes one part. Closing the last part closes the connections.
    pub(crate) async fn close_part(&self) {
        if self.parts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        join_all(self.batchers.iter().map(Batcher::close)).await;
        self.access.router.close();
        self.access.waiters.wake_all();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.access.router.fmt(f)
    }
}
