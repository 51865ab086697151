//! Layers with a bug in their attempts, whether of a caller or of a waiter.

use std::time::Duration;

use async_trait::async_trait;
use distlock::{
    Attempt, OwnerId, Result,
    backend::{AcquireRequest, Contender, Grant},
};
use distlock_conformance::LockLayer;
use futures_util::future::BoxFuture;

/// A layer with a step around each attempt.
#[async_trait]
pub(super) trait AroundAttempts: LockLayer {
    /// Awaits the attempt of this request at the lock below, and returns the answer for the caller.
    async fn around(
        &self,
        request: &AcquireRequest,
        attempt: BoxFuture<'_, Result<Attempt<Grant>>>,
    ) -> Result<Attempt<Grant>>;

    /// Makes one attempt at the lock below.
    async fn attempt_below(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let below = self.below();
        self.around(request, below.try_acquire(request)).await
    }

    /// Returns a waiter at the lock below. Only its attempts pass this layer.
    async fn contend_below(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(LayeredContender {
            inner: self.below().contend(request).await?,
            layer: self.clone(),
            request: request.clone(),
        }))
    }
}

struct LayeredContender<L> {
    inner: Box<dyn Contender>,
    layer: L,
    request: AcquireRequest,
}

#[async_trait]
impl<L: AroundAttempts> Contender for LayeredContender<L> {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        let attempt = self.inner.attempt();
        self.layer.around(&self.request, attempt).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let mut request = self.request.clone();
        request.owner = owner;
        let attempt = self.inner.attempt_as(owner);
        self.layer.around(&request, attempt).await
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.inner.leave().await
    }
}
