//! The table behind the lock contract.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Epoch, ExpiryClock,
    Fairness, FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, LossFeed,
    Reach, ReleaseOutcome, Renewal, Renewed, Result, Verdict, Wakeup,
};

use crate::{
    line::Place,
    table::{Now, Table},
    wait::MemoryContender,
};

/// One lock table. Clones and reopened handles share it.
#[derive(Clone, Debug)]
pub struct MemoryLock {
    shared: Arc<Shared>,
}

/// What all handles on one table share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) table: Table,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    epoch: Epoch,
}

impl MemoryLock {
    /// An empty table, whose history has this name.
    pub(crate) fn new(clock: Arc<dyn Clock>, epoch: Epoch) -> Self {
        let mut capabilities = Capabilities::new(crate::BACKEND);
        capabilities.fairness = Fairness::Fifo;
        capabilities.wakeup = Wakeup::Push;
        // The table itself holds 1 ms; below this a guard has no time to do anything.
        capabilities.min_ttl = Duration::from_millis(10);
        capabilities.survives_restart = false;
        capabilities.expiry_clock = ExpiryClock::Host;
        capabilities.reach = Reach::Process;
        Self {
            shared: Arc::new(Shared {
                table: Table::new(),
                clock,
                capabilities,
                epoch,
            }),
        }
    }
}

impl Shared {
    pub(crate) fn attempt(
        &self,
        request: &AcquireRequest,
        place: Option<Place>,
    ) -> Result<Attempt<Grant>> {
        let attempt = self
            .table
            .try_acquire(Now::of(&*self.clock), request, place)?;
        Ok(attempt.map(|token| self.grant(token, request)))
    }

    fn grant(&self, token: FencingToken, request: &AcquireRequest) -> Grant {
        Grant::new(token, self.epoch.clone(), request.ttl.duration())
    }
}

#[async_trait]
impl DistLock for MemoryLock {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(self.clone()))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.shared.attempt(request, None)
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(MemoryContender::new(
            Arc::clone(&self.shared),
            request.clone(),
        )))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let now = self.shared.clock.now();
        Ok(match self.shared.table.renew(now, lease, renewal) {
            Ok(token) => Renewed::Extended {
                valid_for: renewal.ttl.duration(),
                epoch: self.shared.epoch.clone(),
                token,
                loss: LossFeed::silent(),
            },
            Err(reason) => Renewed::NotHeld(reason),
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        Ok(self.shared.table.release(self.shared.clock.now(), lease))
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let now = Now::of(&*self.shared.clock);
        Ok(match self.shared.table.hand_over(now, lease, next)? {
            Ok(token) => HandOver::Done(self.shared.grant(token, next)),
            Err(reason) => HandOver::NotHeld(reason),
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let mut info = self.shared.table.inspect(self.shared.clock.now(), name);
        info.epoch = Some(self.shared.epoch.clone());
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let now = self.shared.clock.now();
        let mut infos = self.shared.table.list(now, prefix, after, limit);
        for info in &mut infos {
            info.epoch = Some(self.shared.epoch.clone());
        }
        Ok(infos)
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let now = self.shared.clock.now();
        Ok(self.shared.table.force_release(now, name, expected))
    }

    async fn health(&self) -> Result<Health> {
        let mut health = Health::new(crate::BACKEND);
        health.epoch = Some(self.shared.epoch.clone());
        health.found(
            "reach",
            Verdict::Pass,
            "excludes the tasks of this one process, and nobody else",
        );
        Ok(health)
    }

    async fn close(&self) {
        // Nothing is open, and other handles may go on with the same table.
    }
}
