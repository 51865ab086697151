//! A backend that records which methods are called. With such a backend a case shows that no
//! request has reached the store.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, FencingToken, Forced, Grant,
    HandOver, Health, Lease, LockInfo, LockName, ReleaseOutcome, Renewal, Renewed, Result,
};

/// A backend that passes its calls on to another backend. It records the name of each called method
/// that sends a request to the store, but not `reopen` and `close`.
#[derive(Debug)]
pub(crate) struct RecordingBackend {
    backend: Arc<dyn DistLock>,
    called: Arc<Mutex<Vec<&'static str>>>,
}

impl RecordingBackend {
    /// Records the calls to this backend.
    pub(crate) fn new(backend: Arc<dyn DistLock>) -> Self {
        Self {
            backend,
            called: Arc::default(),
        }
    }

    /// The methods that were called so far.
    pub(crate) fn called_methods(&self) -> Vec<&'static str> {
        self.lock().clone()
    }

    fn record_call(&self, method: &'static str) {
        self.lock().push(method);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DistLock for RecordingBackend {
    fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(Self {
            backend: self.backend.reopen().await?,
            called: Arc::clone(&self.called),
        }))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.record_call("try_acquire");
        self.backend.try_acquire(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.record_call("contend");
        self.backend.contend(request).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.record_call("renew");
        self.backend.renew(lease, renewal).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.record_call("release");
        self.backend.release(lease).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.record_call("hand_over");
        self.backend.hand_over(lease, next).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.record_call("inspect");
        self.backend.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.record_call("list");
        self.backend.list(prefix, after, limit).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.record_call("force_release");
        self.backend.force_release(name, expected).await
    }

    async fn health(&self) -> Result<Health> {
        self.record_call("health");
        self.backend.health().await
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}
