//! The store as a flow with a planted bug would use it. The wrappers undo one precaution of the
//! flow from outside.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock::backend::sync::Mutex;
use distlock::{
    Attempt, DistLock, Entry, Error, ErrorKind, Expect, LockName, OwnerId, RecordKey, Records,
    Result, Store, Ttl, Version, Written,
    backend::{AcquireRequest, Contender, Grant, HandOver, Lease, Renewal, Renewed},
};
use distlock_conformance::{LockLayer, RecordsLayer};
use tokio::sync::watch;

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// No planted bug.
    None,
    /// A kick ends the account's present session, whatever session the kick names.
    KicksByAccount,
    /// A logout removes its session from a remembered record, and writes that record over any newer
    /// record.
    DeletesWithoutComparing,
    /// A login does not notice the loss of its lock, and writes over any newer record.
    WritesWithoutItsLock,
    /// A login's write is confirmed first and done later.
    ConfirmsBeforeTheWrite,
    /// A frame that was written to a client counts as acknowledged.
    AcknowledgesForTheClient,
    /// A message for all devices of an account goes only to the newest device.
    SendsToTheNewest,
}

/// The real TTL of a lock at the store, while its holder believes that the TTL is a minute.
const REAL_TTL: Duration = Duration::from_secs(1);

/// The store as one node sees it.
#[derive(Clone, Debug)]
pub(crate) struct Saboteur {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    sabotage: Sabotage,
    shared: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the layer delays answers with an account's record, or early confirmed writes.
    held: watch::Sender<bool>,
    /// Whether a caller waits for a delayed answer.
    waits: watch::Sender<bool>,
    /// Whether reads return this node's own last write.
    from_memory: AtomicBool,
    written: Mutex<HashMap<RecordKey, Entry>>,
    early: Mutex<HashMap<RecordKey, Entry>>,
}

impl Saboteur {
    pub(crate) fn new(
        lock: Arc<dyn DistLock>,
        records: Arc<dyn Records>,
        sabotage: Sabotage,
    ) -> Self {
        Self {
            lock,
            records,
            sabotage,
            shared: Arc::default(),
        }
    }

    /// The store as this node sees it.
    pub(crate) fn store(&self) -> Store {
        Store::new(self.clone().into_lock(), self.clone().into_records())
    }

    /// Delays all answers with an account's record from now on, and fails the renewals of account
    /// locks. This is no planted bug, because a process can be stopped at any time.
    pub(crate) fn delay_answers(&self) {
        self.shared.held.send_replace(true);
    }

    pub(crate) fn stop_delaying(&self) {
        self.shared.held.send_replace(false);
    }

    /// Waits until a caller waits for a delayed answer.
    pub(crate) async fn wait_for_delayed_caller(&self) {
        let mut waits = self.shared.waits.subscribe();
        let waiting = waits.wait_for(|waits| *waits);
        tokio::time::timeout(crate::world::SOON, waiting)
            .await
            .expect("somebody reads")
            .unwrap();
    }

    /// With `DeletesWithoutComparing`, reads return this node's own last write from now on.
    pub(crate) fn read_own_writes_from_now(&self) {
        let careless = self.is(Sabotage::DeletesWithoutComparing);
        self.shared.from_memory.store(careless, Ordering::SeqCst);
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == sabotage
    }

    fn shortens_ttl_of(&self, name: &LockName) -> bool {
        self.is(Sabotage::WritesWithoutItsLock) && name.as_str().starts_with("user/")
    }

    fn request(&self, request: &AcquireRequest) -> AcquireRequest {
        let mut request = request.clone();
        if self.shortens_ttl_of(&request.name) {
            request.ttl = Ttl::new(REAL_TTL).unwrap();
        }
        request
    }

    async fn wait_while_held(&self) {
        if *self.shared.held.borrow() {
            self.shared.waits.send_replace(true);
            let mut held = self.shared.held.subscribe();
            let _ = held.wait_for(|held| !held).await;
        }
    }

    fn remembered(&self, key: &RecordKey) -> Option<Entry> {
        let early = self.shared.early.lock();
        if let Some(entry) = early.get(key) {
            return Some(entry.clone());
        }
        if self.shared.from_memory.load(Ordering::SeqCst) {
            return self.shared.written.lock().get(key).cloned();
        }
        None
    }

    /// Writes over any version.
    async fn force(&self, key: &RecordKey, value: &[u8]) -> Result<Written> {
        loop {
            let there = self.records.get(key).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            if let stored @ Written::Stored(_) = self.records.put(key, value, expect).await? {
                return Ok(stored);
            }
        }
    }

    /// Confirms a write at once, and does the write when answers are no longer delayed.
    fn write_later(&self, key: &RecordKey, value: &[u8]) -> Written {
        let version = Version::new(u64::MAX);
        let entry = Entry::new(version, value.to_vec(), None);
        let mut early = self.shared.early.lock();
        early.insert(key.clone(), entry);
        drop(early);
        let (mine, key, value) = (self.clone(), key.clone(), value.to_vec());
        tokio::spawn(async move {
            mine.wait_while_held().await;
            mine.force(&key, &value).await.unwrap();
            mine.shared.early.lock().remove(&key);
        });
        Written::Stored(version)
    }
}

#[async_trait]
impl RecordsLayer for Saboteur {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if let Some(entry) = self.remembered(key) {
            return Ok(Some(entry));
        }
        let entry = self.records.get(key).await?;
        if key.as_str().starts_with("sess/") && !self.is(Sabotage::ConfirmsBeforeTheWrite) {
            self.wait_while_held().await;
        }
        Ok(entry)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if !key.as_str().starts_with("sess/") {
            return self.records.put(key, value, expect).await;
        }
        let careless = self.shared.from_memory.load(Ordering::SeqCst)
            || self.is(Sabotage::WritesWithoutItsLock);
        let written = if careless {
            self.force(key, value).await?
        } else if self.is(Sabotage::ConfirmsBeforeTheWrite) && *self.shared.held.borrow() {
            self.write_later(key, value)
        } else {
            self.records.put(key, value, expect).await?
        };
        if let Written::Stored(version) = written {
            let entry = Entry::new(version, value.to_vec(), None);
            let mut all = self.shared.written.lock();
            all.insert(key.clone(), entry);
        }
        Ok(written)
    }
}

#[async_trait]
impl LockLayer for Saboteur {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock)
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let attempt = self.lock.try_acquire(&self.request(request)).await?;
        Ok(attempt.map(|grant| with_requested_ttl(grant, request.ttl)))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(SaboteurContender {
            inner: self.lock.contend(&self.request(request)).await?,
            ttl: request.ttl,
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        if *self.shared.held.borrow() && lease.name.as_str().starts_with("user/") {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "whoever is stopped renews nothing",
            ));
        }
        self.lock.renew(lease, renewal).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.lock.hand_over(lease, &self.request(next)).await
    }

    async fn close(&self) {}
}

/// The grant as its holder sees it: with the TTL that the holder requested.
fn with_requested_ttl(mut grant: Grant, asked_for: Ttl) -> Grant {
    grant.valid_for = asked_for.duration();
    grant
}

struct SaboteurContender {
    inner: Box<dyn Contender>,
    ttl: Ttl,
}

#[async_trait]
impl Contender for SaboteurContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        let attempt = self.inner.attempt().await?;
        Ok(attempt.map(|grant| with_requested_ttl(grant, self.ttl)))
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let attempt = self.inner.attempt_as(owner).await?;
        Ok(attempt.map(|grant| with_requested_ttl(grant, self.ttl)))
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
