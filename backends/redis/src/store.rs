//! One handle on a store: its batches, its waiters, and whether it is closed.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use distlock_core::{
    Clock, LockName, Result,
    batch::{Batcher, Limits},
};
use futures_util::future::join_all;

use crate::{
    config::RedisConfig,
    connection::{Dialer, Link, Waiters},
    error::BACKEND,
    format::names::{Names, SLOTS},
    operations::{Answer, Histories, Looks, Op, Verbatim, What},
    routing::{Opening, Router},
};

use crate::operations::executor::{Ways, Writer};
use crate::sentinels::View;

/// How many lines of batches a cluster gets: with slots of their own each, so that a shard that is down keeps few others
/// waiting.
const LINES: u16 = 16;

/// How many batches may be out at the same time: while the server works on one, the next is being put together and the
/// answers to another are read. More would only be smaller, as long as there is no crowd.
const IN_FLIGHT: usize = 4;

/// How many operations make a batch that is worth dividing: with fewer, what each script costs besides tells.
const UNDIVIDED: usize = 32;

/// What a handle's locks and records share. Connections close with the last of them.
pub(crate) struct Store {
    ways: Arc<Ways>,
    lines: Box<[Batcher<Writer>]>,
    survives_restart: bool,
    view: Arc<View>,
    /// Parts that are still open: locks and records.
    parts: AtomicUsize,
}

/// What all handles of a store know together.
#[derive(Clone, Debug)]
struct Memory {
    looks: Arc<Looks>,
    histories: Arc<Histories>,
    verbatim: Arc<Verbatim>,
    view: Arc<View>,
}

impl Store {
    /// A handle with `parts` that are closed one by one, connected to every primary that can be
    /// reached.
    pub(crate) async fn open(
        config: RedisConfig,
        clock: Arc<dyn Clock>,
        parts: usize,
    ) -> Result<Arc<Self>> {
        let waiters = Arc::<Waiters>::default();
        let dialer = Dialer::new(config, clock, Arc::clone(&waiters))?;
        let memory = Memory {
            looks: Arc::default(),
            histories: Arc::new(Histories::new()),
            verbatim: Arc::default(),
            view: Arc::default(),
        };
        Self::connect(dialer, waiters, memory, parts, Opening::First).await
    }

    /// Another handle on the same store, with connections of its own that live on the calling runtime.
    pub(crate) async fn reopen(&self) -> Result<Arc<Self>> {
        let waiters = Arc::<Waiters>::default();
        let dialer = self.ways.router.dialer.again(Arc::clone(&waiters));
        let memory = Memory {
            looks: Arc::clone(&self.ways.looks),
            histories: Arc::clone(&self.ways.histories),
            verbatim: Arc::clone(&self.ways.verbatim),
            view: Arc::clone(&self.view),
        };
        Self::connect(dialer, waiters, memory, 1, Opening::Again).await
    }

    async fn connect(
        dialer: Dialer,
        waiters: Arc<Waiters>,
        memory: Memory,
        parts: usize,
        opening: Opening,
    ) -> Result<Arc<Self>> {
        let names = Names::new(&dialer.config().prefix);
        let router = Router::new(dialer, &memory.view);
        let primaries = router.open(opening).await?;
        let appends = |link: &Arc<Link>| link.server.appends == Some(true);
        // Of one that cannot be reached nobody knows.
        let survives_restart = primaries.missing.is_empty() && primaries.links.iter().all(appends);
        let lines = if router.is_cluster() { LINES } else { 1 };
        let ways = Arc::new(Ways {
            router,
            names,
            waiters,
            looks: memory.looks,
            histories: memory.histories,
            verbatim: memory.verbatim,
        });
        let mut limits = Limits::default();
        limits.bytes = 1024 * 1024;
        limits.in_flight = IN_FLIGHT;
        limits.undivided = UNDIVIDED;
        // A script costs the server more than the way there costs anybody.
        limits.ahead = true;
        let lines = (0..lines).map(|_| Batcher::new(Writer(Arc::clone(&ways)), limits));
        Ok(Arc::new(Self {
            lines: lines.collect(),
            survives_restart,
            view: memory.view,
            ways,
            parts: AtomicUsize::new(parts),
        }))
    }

    pub(crate) fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Whether every primary kept its data in an append-only file when we connected.
    pub(crate) const fn survives_restart(&self) -> bool {
        self.survives_restart
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.ways.router.dialer.clock()
    }

    /// Sends an operation on the lock of this name, or on a record, with the next batch.
    // Not an async function: what it is given would be kept in its future a second time.
    pub(crate) fn submit<'a>(
        &'a self,
        name: Option<&'a LockName>,
        what: What,
    ) -> impl Future<Output = Result<Answer>> + Send + use<'a> {
        let op = Box::new(Op::new(&self.ways.names, what));
        async move {
            let operation = op.operation();
            let line = match &*self.lines {
                [only] => only,
                lines => {
                    let slots_each = usize::from(SLOTS / LINES);
                    &lines[usize::from(op.target.bucket.slot()) / slots_each % lines.len()]
                }
            };
            line.submit(op).await.map_err(|error| {
                let error = error.on(BACKEND).during(operation);
                match name {
                    Some(name) => error.about(name),
                    None => error,
                }
            })
        }
    }

    /// Closes one part; the last one closes the connections.
    pub(crate) async fn close_part(&self) {
        if self.parts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        join_all(self.lines.iter().map(Batcher::close)).await;
        self.ways.router.hang_up();
        self.ways.waiters.wake_all();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ways.router.fmt(f)
    }
}
