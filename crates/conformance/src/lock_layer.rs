//! A layer over a lock through which tests inject faults, plant bugs and record calls.
//!
//! Invariant: a method that a layer does not override reaches the lock below unchanged, also a
//! method that the contract gets later.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, FencingToken, Forced, Grant,
    HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome, Renewal, Renewed, Result,
};

/// A layer between the engine and a backend. The layer overrides the methods that it changes. All
/// other calls go to the lock below.
#[async_trait]
pub trait LockLayer: Clone + fmt::Debug + Send + Sync + 'static {
    /// The lock below this layer.
    fn below(&self) -> Arc<dyn DistLock>;

    /// This layer as a [`DistLock`].
    fn into_lock(self) -> Arc<dyn DistLock> {
        let capabilities = self.capabilities(self.below().capabilities().clone());
        Arc::new(Layered {
            layer: self,
            capabilities,
        })
    }

    /// Like [`DistLock::capabilities`]. `below` are those of the lock below.
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        below
    }

    /// Runs before every request, with the name of its method. An error keeps the request from the
    /// lock below.
    async fn before(&self, method: &'static str) -> Result<()> {
        let _ = method;
        Ok(())
    }

    /// Runs after every request that failed.
    async fn after_error(&self) {}

    /// Like [`DistLock::reopen`]. By default it returns a clone of this layer, which shares the
    /// lock below and opens no connection.
    async fn reopen(&self) -> Result<Self> {
        Ok(self.clone())
    }

    /// Like [`DistLock::try_acquire`].
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.below().try_acquire(request).await
    }

    /// Like [`DistLock::contend`].
    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.below().contend(request).await
    }

    /// Like [`DistLock::renew`].
    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.below().renew(lease, renewal).await
    }

    /// Like [`DistLock::release`].
    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.below().release(lease).await
    }

    /// Like [`DistLock::hand_over`].
    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.below().hand_over(lease, next).await
    }

    /// Like [`DistLock::inspect`].
    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.below().inspect(name).await
    }

    /// Like [`DistLock::list`].
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.below().list(prefix, after, limit).await
    }

    /// Like [`DistLock::force_release`].
    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.below().force_release(name, expected).await
    }

    /// Like [`DistLock::health`].
    async fn health(&self) -> Result<Health> {
        self.below().health().await
    }

    /// Like [`DistLock::close`].
    async fn close(&self) {
        self.below().close().await;
    }
}

/// A layer, used as a [`DistLock`].
#[derive(Debug)]
struct Layered<L> {
    layer: L,
    capabilities: Capabilities,
}

impl<L: LockLayer> Layered<L> {
    async fn pass<T>(
        &self,
        method: &'static str,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.layer.before(method).await?;
        let answer = request.await;
        if answer.is_err() {
            self.layer.after_error().await;
        }
        answer
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<L: LockLayer> DistLock for Layered<L> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(self.layer.reopen().await?.into_lock())
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.pass("try_acquire", self.layer.try_acquire(request))
            .await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.pass("contend", self.layer.contend(request)).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.pass("renew", self.layer.renew(lease, renewal)).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.pass("release", self.layer.release(lease)).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.pass("hand_over", self.layer.hand_over(lease, next))
            .await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.pass("inspect", self.layer.inspect(name)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.pass("list", self.layer.list(prefix, after, limit))
            .await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.pass("force_release", self.layer.force_release(name, expected))
            .await
    }

    async fn health(&self) -> Result<Health> {
        self.pass("health", self.layer.health()).await
    }

    fn requests_sent(&self) -> Option<u64> {
        self.layer.below().requests_sent()
    }

    async fn close(&self) {
        self.layer.close().await;
    }
}
