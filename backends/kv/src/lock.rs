//! A lock over versioned records: read, decide, and write on condition of the version that was
//! read.
//!
//! This module owns [`KvLock`], a [`DistLock`] over any [`Records`]. Invariant: each change names
//! the version that was read, so a decision about an old state changes nothing. This module must
//! never decide by the local clock whether a lease has expired; only the age that the store reports
//! counts.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Error, ErrorKind, Expect,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, LossFeed, Records,
    ReleaseOutcome, Renewal, Renewed, Result, Store, SystemClock, TicketStep, Verdict, sync::Mutex,
    unix_time,
};

use crate::{
    capabilities,
    lock_records::{self, Granted, LockRecords, PREFIX, TRIES, key, too_many_conflicts},
    reaper::{self, Reaper},
    record::Record,
    wait::KvContender,
};

/// A [`DistLock`] over [`Records`] whose store reports the age of each record.
///
/// A lock is one record under `lock/NAME`. The record holds the owner and the TTL. The lease has
/// expired when the record's age, by the store's clock, reaches the TTL. Every change is
/// conditional on the version that was read, so exactly one of several clients gets a free or
/// expired lock. The version of the record that a grant wrote is the fencing token: versions
/// strictly rise, also after a delete. A record that cannot be read is an error and never counts as
/// free.
///
/// An operation costs two round trips where a backend's own lock costs one, and waiters poll. Use
/// this lock where a store offers records only, or for a comparison.
///
/// The record of a holder that died stays until the lock is acquired again, or until a client of
/// this store reaps the record. By default a record is reaped one hour after its lease expired
/// ([`KvLock::with_reap_after`]).
#[derive(Clone)]
pub struct KvLock {
    records: LockRecords,
    clock: Arc<dyn Clock>,
    capabilities: Arc<Capabilities>,
    /// The source of jitter for the polls of waiters.
    random: Arc<Mutex<fastrand::Rng>>,
    /// Whether this handle opened the connection, and so must close it.
    opened_here: bool,
    reaper: Arc<Reaper>,
}

impl KvLock {
    /// Creates a lock over these records, with the machine's clock. The clock serves for pauses and
    /// for display, not for leases.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the store does not report the age of a record.
    pub fn new(records: Arc<dyn Records>) -> Result<Self> {
        let backend = records.backend();
        if !records.tells_ages() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "its records do not tell their age, so a lock over them could not expire",
            )
            .on(backend));
        }
        let capabilities = capabilities::over_records_of(backend);
        Ok(Self {
            records: LockRecords::new(records, capabilities.backend),
            clock: Arc::new(SystemClock),
            capabilities: Arc::new(capabilities),
            random: Arc::new(Mutex::new(fastrand::Rng::new())),
            opened_here: false,
            reaper: Arc::default(),
        })
    }

    /// Creates a lock over the records of a store, with the store's clock. The new lock has the
    /// capability `reach` of the store's own locks.
    ///
    /// # Errors
    /// As [`KvLock::new`].
    pub fn over(store: &Store) -> Result<Self> {
        let inner = store.backend();
        let lock = Self::new(store.records())?;
        Ok(Self {
            clock: store.clock(),
            capabilities: Arc::new(capabilities::over_store(inner.capabilities())),
            ..lock
        })
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Seeds the jitter of polls, for repeatable tests.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self {
            random: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))),
            ..self
        }
    }

    /// Sets the time for which a record stays after its lock has expired: 1 h by default. A value
    /// below one second counts as one second.
    #[must_use]
    pub fn with_reap_after(self, idle: Duration) -> Self {
        Self {
            reaper: Arc::new(Reaper::new(idle.max(Duration::from_secs(1)))),
            ..self
        }
    }

    /// Removes up to `limit` records of locks that have been expired for longer than `idle`.
    /// Returns the number of removed records.
    ///
    /// Failures of the store, and [`ErrorKind::Corrupt`] for a record that cannot be read. An
    /// unreadable record stays, and does not keep the others from being removed.
    ///
    /// Safe: each record is removed in a step of its own, on condition of the version that was
    /// read.
    pub async fn reap(&self, idle: Duration, limit: u32) -> Result<u32> {
        reaper::reap(&self.records, idle, limit).await
    }

    fn new_record(&self, request: &AcquireRequest) -> Record {
        Record::new(request, unix_time(&*self.clock))
    }
}

impl fmt::Debug for KvLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KvLock").field(&self.records).finish()
    }
}

/// The smallest number of records that one scan requests.
const PAGE: u32 = 128;

#[async_trait]
impl DistLock for KvLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(Self {
            records: self.records.reopen().await?,
            opened_here: true,
            ..self.clone()
        }))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let name = &request.name;
        for _ in 0..TRIES {
            let (stored, history) = self.records.read(name).await?;
            let granted = match stored {
                None => {
                    self.records
                        .write_grant(name, &self.new_record(request), Expect::Absent)
                        .await?
                }
                Some(current) if !current.is_live() => {
                    let expect = Expect::Version(current.version);
                    self.records
                        .write_grant(name, &self.new_record(request), expect)
                        .await?
                }
                Some(current) if current.record.is_of(request.owner) => {
                    let record = current.record.renewed(current.token, request.ttl);
                    let stored =
                        self.records
                            .write(name, &record, Expect::Version(current.version));
                    stored.await?.map(|_| Granted(current.token))
                }
                Some(current) => return Ok(Attempt::Busy(Some(current.info()))),
            };
            if let Some(Granted(token)) = granted {
                self.reaper.start_if_due(&self.records, &self.clock);
                let grant = Grant::new(token, history.epoch, request.ttl.duration());
                return Ok(Attempt::Acquired(grant));
            }
        }
        // Each attempt failed because another client changed the record first, so the lock counts
        // as busy.
        Ok(Attempt::Busy(None))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.records.checked_records()?;
        let (clock, random) = (Arc::clone(&self.clock), Arc::clone(&self.random));
        let lock = Arc::new(self.clone());
        let contender = KvContender::new(lock, clock, random, request.clone());
        Ok(Box::new(contender))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        // A raised token would be in the record only, and a release deletes the record.
        renewal.check_floor(&self.capabilities)?;
        for _ in 0..TRIES {
            let (current, history) = match self.records.read_held(lease).await? {
                Ok(held) => held,
                Err(reason) => return Ok(Renewed::NotHeld(reason)),
            };
            let mut record = current.record.renewed(current.token, renewal.ttl);
            match renewal.ticket {
                TicketStep::Keep => {}
                TicketStep::Issue(nonce) => record.ticket = Some(nonce),
                TicketStep::Redeem => record.ticket = None,
            }
            let expect = Expect::Version(current.version);
            if self
                .records
                .write(&lease.name, &record, expect)
                .await?
                .is_some()
            {
                return Ok(Renewed::Extended {
                    valid_for: renewal.ttl.duration(),
                    epoch: history.epoch,
                    token: current.token,
                    loss: LossFeed::silent(),
                });
            }
        }
        Err(too_many_conflicts())
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let released = ReleaseOutcome::Released {
            others_waiting: None,
        };
        let key = key(&lease.name)?;
        let mut unanswered = None;
        for _ in 0..TRIES {
            let current = match self.records.read_held(lease).await {
                Ok(Ok((current, _))) => current,
                // An earlier delete got no answer, and now the lease does not hold the lock any
                // more. So that delete is taken to have released the lock.
                Ok(Err(_)) if unanswered.is_some() => return Ok(released),
                Ok(Err(_)) => return Ok(ReleaseOutcome::NotHeld),
                Err(error) => return Err(unanswered.unwrap_or(error)),
            };
            match self.records.remove(&key, current.version).await {
                Ok(true) => return Ok(released),
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    unanswered = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(unanswered.unwrap_or_else(too_many_conflicts))
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        for _ in 0..TRIES {
            let (current, history) = match self.records.read_held(lease).await? {
                Ok(held) => held,
                Err(reason) => return Ok(HandOver::NotHeld(reason)),
            };
            let expect = Expect::Version(current.version);
            if let Some(Granted(token)) = self
                .records
                .write_grant(&lease.name, &self.new_record(next), expect)
                .await?
            {
                let grant = Grant::new(token, history.epoch, next.ttl.duration());
                return Ok(HandOver::Done(grant));
            }
        }
        Err(too_many_conflicts())
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let (stored, history) = self.records.read(name).await?;
        let mut info = match stored {
            Some(current) => current.lock_info(name.clone()),
            None => LockInfo::free(name.clone()),
        };
        info.epoch = Some(history.epoch);
        Ok(info)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let records = self.records.checked_records()?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut found: Vec<LockInfo> = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let epoch = self.records.history().await?.epoch;
        let prefix = format!("{PREFIX}{prefix}");
        let mut after = after.map(key).transpose()?;
        loop {
            let page_size = u32::try_from(limit - found.len())
                .unwrap_or(PAGE)
                .clamp(PAGE, PAGE * 8);
            let page = records.scan(&prefix, after.as_ref(), page_size).await?;
            let last = page.len() < page_size as usize;
            for (key, entry) in &page {
                let name = lock_records::name(key)?;
                let current = self.records.parse(&name, entry)?;
                if current.is_live() {
                    let mut info = current.lock_info(name);
                    info.epoch = Some(epoch.clone());
                    found.push(info);
                    if found.len() == limit {
                        return Ok(found);
                    }
                }
            }
            if last {
                return Ok(found);
            }
            after = page.into_iter().next_back().map(|(key, _)| key);
        }
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        let key = key(name)?;
        for _ in 0..TRIES {
            let current = match self.records.read(name).await? {
                (Some(current), _) if current.is_live() => current,
                _ => return Ok(Forced::NotHeld),
            };
            if current.token != expected {
                return Ok(Forced::OtherToken(current.token));
            }
            if self.records.remove(&key, current.version).await? {
                return Ok(Forced::Released);
            }
        }
        Err(too_many_conflicts())
    }

    async fn health(&self) -> Result<Health> {
        let epoch = self.records.history().await?.epoch;
        let mut health = Health::new(format!("records of {}", self.records.store_backend()));
        health.epoch = Some(epoch);
        health.found(
            "ages",
            Verdict::Pass,
            "the store tells how old a record is, so leases end by its clock",
        );
        Ok(health)
    }

    async fn close(&self) {
        // A caller that passed its records to `new` may use them elsewhere, so this handle closes
        // only records that `reopen` opened.
        self.records.close(self.opened_here).await;
    }
}
