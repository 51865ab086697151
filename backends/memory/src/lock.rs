//! The lock contract on top of the table.
//!
//! This module owns one handle. The handle reads the clock, refuses operations after `close`, and
//! converts the table's answers. The handle must never keep state of its own about a lock.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Epoch, ExpiryClock,
    Fairness, FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, LossFeed,
    Reach, ReleaseOutcome, Renewal, Renewed, Result, Verdict, Wakeup,
};

use crate::{
    store_queue::QueueEntry,
    table::{Now, Table},
    wait::MemoryContender,
};

/// The backend's short name.
pub(crate) const BACKEND: &str = "memory";

/// The table, and the clock, capabilities and epoch that all its handles share.
#[derive(Debug)]
pub(crate) struct SharedTable {
    pub(crate) table: Table,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) capabilities: Capabilities,
    pub(crate) epoch: Epoch,
}

impl SharedTable {
    /// Makes one attempt, at the clock's present time.
    pub(crate) fn try_acquire(
        &self,
        request: &AcquireRequest,
        entry: Option<QueueEntry>,
    ) -> Result<Attempt<Grant>> {
        let attempt = self
            .table
            .try_acquire(Now::of(&*self.clock), request, entry)?;
        Ok(attempt.map(|token| self.new_grant(token, request)))
    }

    /// Returns the grant of this request, with the store's epoch.
    pub(crate) fn new_grant(&self, token: FencingToken, request: &AcquireRequest) -> Grant {
        Grant::new(token, self.epoch.clone(), request.ttl.duration())
    }
}

/// One handle on a lock table. All handles share the table.
#[derive(Debug)]
pub struct MemoryLock {
    shared: Arc<SharedTable>,
    open: OpenFlag,
}

impl MemoryLock {
    /// Creates an empty table with this epoch, and a handle on it.
    pub(crate) fn new(clock: Arc<dyn Clock>, epoch: Epoch) -> Self {
        let mut capabilities = Capabilities::new(BACKEND);
        capabilities.fairness = Fairness::OnRequest;
        capabilities.wakeup = Wakeup::Push;
        // The table itself accepts 1 ms. A guard with less than 10 ms has no time for any work.
        capabilities.min_ttl = Duration::from_millis(10);
        capabilities.survives_restart = false;
        capabilities.expiry_clock = ExpiryClock::Host;
        capabilities.reach = Reach::Process;
        capabilities.token_floor = true;
        capabilities.store_queue = true;
        capabilities.tells_force_release = true;
        Self {
            shared: Arc::new(SharedTable {
                table: Table::new(),
                clock,
                capabilities,
                epoch,
            }),
            open: OpenFlag::default(),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.shared.table
    }

    /// Opens another handle on the same table. The new handle is open even if this handle was
    /// closed.
    pub(crate) fn new_handle(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            open: OpenFlag::default(),
        }
    }

    /// Returns the shared table; an error of kind `Closed` when this handle was closed.
    fn checked_table(&self) -> Result<&Arc<SharedTable>> {
        self.open.check(BACKEND)?;
        Ok(&self.shared)
    }
}

#[async_trait]
impl DistLock for MemoryLock {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        self.open.check(BACKEND)?;
        Ok(Arc::new(self.new_handle()))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.checked_table()?.try_acquire(request, None)
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let shared = Arc::clone(self.checked_table()?);
        Ok(Box::new(MemoryContender::new(
            shared,
            self.open.clone(),
            request.clone(),
        )))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let shared = self.checked_table()?;
        let now = shared.clock.now();
        Ok(match shared.table.renew(now, lease, renewal) {
            Ok(token) => Renewed::Extended {
                valid_for: renewal.ttl.duration(),
                epoch: shared.epoch.clone(),
                token,
                loss: LossFeed::silent(),
            },
            Err(reason) => Renewed::NotHeld(reason),
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let shared = self.checked_table()?;
        Ok(shared.table.release(shared.clock.now(), lease))
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let shared = self.checked_table()?;
        let now = Now::of(&*shared.clock);
        Ok(match shared.table.hand_over(now, lease, next)? {
            Ok(token) => HandOver::Done(shared.new_grant(token, next)),
            Err(reason) => HandOver::NotHeld(reason),
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let shared = self.checked_table()?;
        let mut info = shared.table.inspect(shared.clock.now(), name);
        info.epoch = Some(shared.epoch.clone());
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let shared = self.checked_table()?;
        let mut infos = shared.table.list(shared.clock.now(), prefix, after, limit);
        for info in &mut infos {
            info.epoch = Some(shared.epoch.clone());
        }
        Ok(infos)
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let shared = self.checked_table()?;
        let now = shared.clock.now();
        Ok(shared.table.force_release(now, name, expected))
    }

    async fn health(&self) -> Result<Health> {
        let mut health = Health::new(BACKEND);
        health.epoch = Some(self.checked_table()?.epoch.clone());
        health.found(
            "reach",
            Verdict::Pass,
            "excludes the tasks of this one process, and nobody else",
        );
        Ok(health)
    }

    async fn close(&self) {
        // Only this handle closes; other handles may still use the table.
        self.open.close();
    }
}
