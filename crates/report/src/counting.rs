//! Counts what reaches a backend.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, FencingToken, Forced, Grant,
    HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome, Renewal, Renewed, Result,
};

/// A backend whose calls are counted, those of handles that were opened from it too.
///
/// Waiting is not a call: what a store is asked while somebody waits shows in its own statements.
#[derive(Clone, Debug)]
pub struct CountingLock {
    inner: Arc<dyn DistLock>,
    calls: Arc<AtomicU64>,
}

impl CountingLock {
    /// Counts from zero.
    #[must_use]
    pub fn new(inner: Arc<dyn DistLock>) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl DistLock for CountingLock {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(Self {
            inner: self.inner.reopen().await?,
            calls: Arc::clone(&self.calls),
        }))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.count();
        self.inner.try_acquire(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.count();
        Ok(Box::new(CountingContender {
            inner: self.inner.contend(request).await?,
            calls: Arc::clone(&self.calls),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.count();
        self.inner.renew(lease, renewal).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.count();
        self.inner.release(lease).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.count();
        self.inner.hand_over(lease, next).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.count();
        self.inner.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.count();
        self.inner.list(prefix, after, limit).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.count();
        self.inner.force_release(name, expected).await
    }

    async fn health(&self) -> Result<Health> {
        self.count();
        self.inner.health().await
    }

    fn requests_sent(&self) -> Option<u64> {
        self.inner.requests_sent()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

struct CountingContender {
    inner: Box<dyn Contender>,
    calls: Arc<AtomicU64>,
}

#[async_trait]
impl Contender for CountingContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.attempt().await
    }

    async fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.leave().await
    }
}
