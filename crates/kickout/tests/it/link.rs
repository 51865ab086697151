//! A connection to the store that a test can cut, and that can lose replies.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Error, ErrorKind, Expect,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, RecordKey, Records,
    ReleaseOutcome, Renewal, Renewed, Result, Store, Written,
};
use tokio::sync::Notify;

#[derive(Clone, Debug)]
pub(crate) struct Link {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    faults: Arc<Faults>,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    cut: AtomicBool,
    /// Number of replies to lose: of puts of `sess/` keys, after the puts were done.
    replies_lost_after: AtomicU32,
    /// If true, the next put of a `sess/` key is done, its reply is lost, and the connection is
    /// cut.
    cut_after_next: AtomicBool,
    /// If true, the next put of a `sess/` key is done and answered, and the connection is cut.
    cut_behind_next: AtomicBool,
    /// Number of requests to lose: of puts of `sess/` keys, before the puts are done.
    requests_lost: AtomicU32,
    /// Number of puts of `sess/` keys that meet a conflict.
    conflicts: AtomicU32,
    /// If true, the next put of a `sess/` key stays on its way, and the connection is cut.
    stuck_next: AtomicBool,
    stuck: Mutex<Option<(RecordKey, Vec<u8>, Expect)>>,
    /// Locks whose inspection gets no answer.
    mute: Mutex<HashSet<String>>,
    /// Keys whose puts are refused.
    blocked: Mutex<HashSet<String>>,
    /// Number of puts of `sess/` keys that met a hanging store.
    held_up: AtomicU32,
    hangs: AtomicBool,
    given_up: Notify,
}

impl Link {
    pub(crate) fn new(lock: Arc<dyn DistLock>, records: Arc<dyn Records>) -> Self {
        Self {
            lock,
            records,
            faults: Arc::default(),
        }
    }

    /// The store behind this connection.
    pub(crate) fn store(self, clock: impl Clock) -> Store {
        Store::with_clock(Arc::new(self.clone()), self.into_records(), Arc::new(clock))
    }

    pub(crate) fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults)
    }

    fn check(&self) -> Result<()> {
        if self.faults.cut.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the link is cut"));
        }
        Ok(())
    }
}

impl Faults {
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(crate) fn heal(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.hangs.store(false, Ordering::SeqCst);
    }

    pub(crate) fn lose_replies(&self, number: u32) {
        self.replies_lost_after.store(number, Ordering::SeqCst);
    }

    pub(crate) fn lose_requests(&self, number: u32) {
        self.requests_lost.store(number, Ordering::SeqCst);
    }

    pub(crate) fn conflict(&self, number: u32) {
        self.conflicts.store(number, Ordering::SeqCst);
    }
}

impl Faults {
    /// The next put of a `sess/` key stays on its way, and the connection is cut.
    pub(crate) fn stick_next(&self) {
        self.stuck_next.store(true, Ordering::SeqCst);
    }

    /// The next put of a `sess/` key is done, its reply is lost, and the connection is cut.
    pub(crate) fn cut_after_next(&self) {
        self.cut_after_next.store(true, Ordering::SeqCst);
    }

    /// The next put of a `sess/` key is done and answered, and the connection is cut.
    pub(crate) fn cut_behind_next(&self) {
        self.cut_behind_next.store(true, Ordering::SeqCst);
    }

    /// From now on this record cannot be written, like one whose row another client keeps locked.
    pub(crate) fn block(&self, key: &str) {
        self.blocked.lock().unwrap().insert(key.to_owned());
    }

    /// From now on an inspection of this lock gets no answer.
    pub(crate) fn mute(&self, lock: &str) {
        self.mute.lock().unwrap().insert(lock.to_owned());
    }

    pub(crate) fn unblock(&self, key: &str) {
        self.blocked.lock().unwrap().remove(key);
    }

    /// From now on puts of `sess/` keys get no answer.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// Number of puts that met a hanging store.
    pub(crate) fn held_up(&self) -> u32 {
        self.held_up.load(Ordering::SeqCst)
    }

    /// The waiting puts fail.
    pub(crate) fn give_up(&self) {
        self.given_up.notify_waiters();
    }

    /// The put that stayed on its way. A test can let it arrive.
    pub(crate) fn stuck(&self) -> Option<(RecordKey, Vec<u8>, Expect)> {
        self.stuck.lock().unwrap().take()
    }
}

fn take(counter: &AtomicU32) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

fn unknown() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the reply was lost")
}

#[async_trait]
impl DistLock for Link {
    fn capabilities(&self) -> &Capabilities {
        self.lock.capabilities()
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(self.clone()))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.check()?;
        self.lock.try_acquire(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.check()?;
        self.lock.contend(request).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.check()?;
        self.lock.renew(lease, renewal).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.check()?;
        self.lock.release(lease).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.check()?;
        self.lock.hand_over(lease, next).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.check()?;
        if self.faults.mute.lock().unwrap().contains(name.as_str()) {
            return std::future::pending().await;
        }
        self.lock.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.check()?;
        self.lock.list(prefix, after, limit).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.check()?;
        self.lock.force_release(name, expected).await
    }

    async fn health(&self) -> Result<Health> {
        self.check()?;
        self.lock.health().await
    }

    async fn close(&self) {}
}

#[async_trait]
impl RecordsLayer for Link {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn before(&self) -> Result<()> {
        self.check()
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if !key.as_str().starts_with("sess/") {
            return self.records.put(key, value, expect).await;
        }
        if self.faults.hangs.load(Ordering::SeqCst) {
            let given_up = self.faults.given_up.notified();
            self.faults.held_up.fetch_add(1, Ordering::SeqCst);
            given_up.await;
            return Err(Error::new(ErrorKind::Unavailable, "the store hangs"));
        }
        if self.faults.blocked.lock().unwrap().contains(key.as_str()) {
            return Err(Error::new(ErrorKind::Unavailable, "the row is locked"));
        }
        if self.faults.stuck_next.swap(false, Ordering::SeqCst) {
            let put = (key.clone(), value.to_vec(), expect);
            *self.faults.stuck.lock().unwrap() = Some(put);
            self.faults.cut();
            return Err(unknown());
        }
        if take(&self.faults.requests_lost) {
            return Err(unknown());
        }
        if take(&self.faults.conflicts) {
            return Ok(Written::Conflict);
        }
        let written = self.records.put(key, value, expect).await?;
        if self.faults.cut_after_next.swap(false, Ordering::SeqCst) {
            self.faults.cut();
            return Err(unknown());
        }
        if self.faults.cut_behind_next.swap(false, Ordering::SeqCst) {
            self.faults.cut();
        }
        if take(&self.faults.replies_lost_after) {
            return Err(unknown());
        }
        Ok(written)
    }
}
