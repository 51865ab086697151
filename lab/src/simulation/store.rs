//! The stores of a run. A store can forget, as a server does that restarts without its memory.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    Attempt, Clock as _, DistLock, Entry, Epoch, Expect, FencingToken, Forced, LockInfo, LockName,
    OwnerId, RecordKey, Records, Result, Version, Written,
    backend::{AcquireRequest, Contender, Grant, Lease, ReleaseOutcome, Renewal, Renewed},
};
use distlock_conformance::LockLayer;
use distlock_core::sync::Mutex;
use distlock_memory::Memory;

use super::{observed::StoredHolder, time::MachineClock, world::poll_once};

/// The lock by which a ring measures the clock of a member. It has a table of its own: two names of
/// one table can share a counter of tokens, and the table draws which.
const PROBE: &str = "distlock:ring";

/// A store in memory. Requests that arrive after a loss find what the store has then.
#[derive(Clone)]
pub(super) struct SimulatedStore {
    clock: MachineClock,
    /// Whether the clock is wrong, so that the store does not vote in a quorum.
    fast: bool,
    stored: Arc<Mutex<Stored>>,
}

/// What a store has: the locks and the records of two stores in memory, so that it can lose one of
/// them.
struct Stored {
    locks: Memory,
    records: Memory,
    /// The number in the epoch of the locks.
    epoch: u32,
    /// How often the locks were lost.
    losses: u32,
    /// The last record that was seen some time after its age had begun, and that time.
    stalled: Option<(Version, Duration)>,
}

/// What a store loses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// Everything, by a restart.
    Restart,
    /// The locks, by a restart.
    Locks,
    /// Everything, without a restart: the epoch stays.
    Flush,
    Records,
}

impl Loss {
    /// Returns the name in the trace.
    pub(super) const fn what(self) -> &'static str {
        match self {
            Self::Restart => "restarts empty",
            Self::Locks => "restarts without its locks",
            Self::Flush => "is emptied",
            Self::Records => "loses its records",
        }
    }
}

impl SimulatedStore {
    /// Creates an empty store.
    pub(super) fn new(clock: MachineClock, fast: bool) -> Self {
        let memory = || Memory::new(Arc::new(clock.clone()));
        let stored = Stored {
            locks: memory(),
            records: memory(),
            epoch: 1,
            losses: 0,
            stalled: None,
        };
        Self {
            stored: Arc::new(Mutex::new(stored)),
            clock,
            fast,
        }
    }

    /// Returns a handle on the locks.
    pub(super) fn lock(&self) -> Arc<dyn DistLock> {
        self.clone().into_lock()
    }

    /// Returns a handle on the records that the store has now.
    pub(super) fn records(&self) -> Arc<dyn Records> {
        self.stored.lock().records.records()
    }

    /// Reads a record.
    pub(super) async fn read(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let mut read = self.records().get(key).await?;
        if let Some(entry) = &mut read
            && let Some((version, stall)) = self.stored.lock().stalled
            && version == entry.version
        {
            entry.age = entry.age.map(|age| age + stall);
        }
        Ok(read)
    }

    /// Writes a record. Its age began `stall` ago: a server takes it before the commit.
    pub(super) async fn write(
        &self,
        key: &RecordKey,
        value: &[u8],
        expect: Expect,
        stall: Duration,
    ) -> Result<Written> {
        let written = self.records().put(key, value, expect).await?;
        if let Written::Stored(version) = written {
            self.stored.lock().stalled = Some((version, stall));
        }
        Ok(written)
    }

    /// Returns the locks among which this name is.
    fn locks_of(&self, name: &LockName) -> Arc<dyn DistLock> {
        match name.as_str() {
            PROBE => self.stored.lock().records.lock(),
            _ => self.below(),
        }
    }

    /// Forgets.
    pub(super) fn lose(&self, loss: Loss) {
        let memory = || Memory::new(Arc::new(self.clock.clone()));
        let mut stored = self.stored.lock();
        if !matches!(loss, Loss::Locks) {
            stored.records = memory();
        }
        if !matches!(loss, Loss::Records) {
            stored.locks = memory();
            stored.losses += 1;
        }
        if matches!(loss, Loss::Restart | Loss::Locks) {
            stored.epoch += 1;
        }
    }

    /// Reads the holder of a lock, without any passing of time.
    pub(super) fn holder(&self, name: &LockName) -> Option<StoredHolder> {
        let held = poll_once(self.below().inspect(name)).ok()?.held?;
        let expires = self.clock.now() + held.expires_in?;
        Some(StoredHolder {
            token: held.token?.get(),
            call: held.holder.strip_prefix('c')?.parse().ok()?,
            expires: self.clock.true_time(expires),
        })
    }

    /// Force-releases a lock. Returns whether this holder had it.
    pub(super) fn force_release(&self, name: &LockName, holder: &StoredHolder) -> bool {
        let Ok(token) = FencingToken::new(holder.token) else {
            return false;
        };
        let forced = poll_once(self.below().force_release(name, token));
        matches!(forced, Ok(Forced::Released))
    }

    /// Returns the number of waiters that the store counts.
    pub(super) fn waiter_count(&self, names: &[LockName]) -> u32 {
        let waiting = names.iter().map(|name| {
            let info = poll_once(self.below().inspect(name)).ok();
            info.and_then(|it| it.waiters).unwrap_or_default()
        });
        waiting.sum()
    }

    /// Tells whether the marker of a quorum says that this store votes. `silence` is the time that
    /// a marker must be old.
    pub(super) fn votes(&self, silence: Duration) -> bool {
        let Ok(key) = RecordKey::new("quorum") else {
            return false;
        };
        let Ok(Some(entry)) = poll_once(self.records().get(&key)) else {
            return false;
        };
        let marker: serde_json::Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let current = marker["epoch"].as_str() == Some(self.epoch().as_str());
        current && !self.fast && (marker["at_once"] == true || entry.age >= Some(silence))
    }

    fn with_epoch(&self, attempt: Attempt<Grant>) -> Attempt<Grant> {
        attempt.map(|mut grant| {
            grant.epoch = self.epoch();
            grant
        })
    }

    fn losses(&self) -> u32 {
        self.stored.lock().losses
    }

    fn epoch(&self) -> Epoch {
        Epoch::new(format!("epoch-{}", self.stored.lock().epoch))
    }
}

#[async_trait]
impl LockLayer for SimulatedStore {
    fn below(&self) -> Arc<dyn DistLock> {
        self.stored.lock().locks.lock()
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let attempt = self.locks_of(&request.name).try_acquire(request).await?;
        Ok(self.with_epoch(attempt))
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.locks_of(&lease.name).release(lease).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        Ok(Box::new(StoreContender {
            store: self.clone(),
            request: request.clone(),
            inner: self.below().contend(request).await?,
            losses: self.losses(),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let mut renewed = self.below().renew(lease, renewal).await?;
        if let Renewed::Extended { epoch, .. } = &mut renewed {
            *epoch = self.epoch();
        }
        Ok(renewed)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let mut info = self.below().inspect(name).await?;
        info.epoch = Some(self.epoch());
        Ok(info)
    }

    async fn close(&self) {}
}

/// A contender in the store queue. After a loss it joins again.
struct StoreContender {
    store: SimulatedStore,
    request: AcquireRequest,
    inner: Box<dyn Contender>,
    /// The number of losses when it joined.
    losses: u32,
}

impl StoreContender {
    async fn join_again_after_loss(&mut self) -> Result<()> {
        let losses = self.store.losses();
        if losses != self.losses {
            self.inner = self.store.below().contend(&self.request).await?;
            self.losses = losses;
        }
        Ok(())
    }
}

#[async_trait]
impl Contender for StoreContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.join_again_after_loss().await?;
        let attempt = self.inner.attempt_as(owner).await?;
        Ok(self.store.with_epoch(attempt))
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        // A store in memory never fails.
        let _ = self.join_again_after_loss().await;
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.inner.leave().await
    }
}

impl fmt::Debug for SimulatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimulatedStore")
    }
}
