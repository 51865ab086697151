//! Counts the calls that reach a backend.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, Deleted, DistLock, Entry, Expect,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, OwnerId, RecordKey,
    Records, ReleaseOutcome, Renewal, Renewed, Result, Store, Version, Written,
};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A backend that counts the calls made to it. Handles that were opened from it share its count.
///
/// Waiting is not counted as a call. The store itself counts the requests that it gets while a
/// caller waits: see `requests_sent`.
#[derive(Clone, Debug)]
pub struct CountingLock {
    inner: Arc<dyn DistLock>,
    calls: Arc<Calls>,
}

/// A counter on a cache line of its own. Otherwise each count would slow down reads of the data
/// beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Calls(AtomicU64);

impl Calls {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl CountingLock {
    /// Wraps `inner`, with the count at zero.
    #[must_use]
    pub fn new(inner: Arc<dyn DistLock>) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }

    /// The number of calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    fn count(&self) {
        self.calls.count();
    }
}

#[deny(clippy::missing_trait_methods)]
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

    // The methods of the measured path, this one and `release`, return the inner future as it is.
    // An `async` method would put it into a second box.
    fn try_acquire<'a, 'b, 'async_trait>(
        &'a self,
        request: &'b AcquireRequest,
    ) -> BoxFuture<'async_trait, Result<Attempt<Grant>>>
    where
        'a: 'async_trait,
        'b: 'async_trait,
        Self: 'async_trait,
    {
        self.count();
        self.inner.try_acquire(request)
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

    fn release<'a, 'b, 'async_trait>(
        &'a self,
        lease: &'b Lease,
    ) -> BoxFuture<'async_trait, Result<ReleaseOutcome>>
    where
        'a: 'async_trait,
        'b: 'async_trait,
        Self: 'async_trait,
    {
        self.count();
        self.inner.release(lease)
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
    calls: Arc<Calls>,
}

#[async_trait]
impl Contender for CountingContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.calls.count();
        self.inner.attempt().await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.calls.count();
        self.inner.attempt_as(owner).await
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.calls.count();
        self.inner.leave().await
    }
}

/// Records that count the calls made to them. Handles that were opened from them share the count.
/// Scans are not counted, because they belong to background work.
#[derive(Clone, Debug)]
pub struct CountingRecords {
    inner: Arc<dyn Records>,
    calls: Arc<Calls>,
}

impl CountingRecords {
    /// Wraps `inner`, with the count at zero.
    #[must_use]
    pub fn new(inner: Arc<dyn Records>) -> Self {
        Self {
            inner,
            calls: Arc::default(),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Records for CountingRecords {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn tells_ages(&self) -> bool {
        self.inner.tells_ages()
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        Ok(Arc::new(Self {
            inner: self.inner.reopen().await?,
            calls: Arc::clone(&self.calls),
        }))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.calls.count();
        self.inner.get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.calls.count();
        self.inner.get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.calls.count();
        self.inner.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.calls.count();
        self.inner.delete(key, expect).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.inner.scan(prefix, after, limit).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// A whole store that counts the calls to its locks and records.
#[derive(Clone, Debug)]
pub struct CountingStore {
    lock: CountingLock,
    records: CountingRecords,
}

impl CountingStore {
    /// Wraps `inner`, with the counts at zero. Only calls through [`store`](Self::store) are
    /// counted.
    #[must_use]
    pub fn new(inner: &Store) -> Self {
        Self {
            lock: CountingLock::new(inner.backend()),
            records: CountingRecords::new(inner.records()),
        }
    }

    /// A store whose calls are counted here. Every call of this method gives a store with a locker
    /// of its own.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::new(Arc::new(self.lock.clone()), Arc::new(self.records.clone()))
    }

    /// The number of calls to locks and records so far, without scans.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock.calls() + self.records.calls.get()
    }
}
