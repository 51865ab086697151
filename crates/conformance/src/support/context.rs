//! The context of one case: independent clients of the store, names of its own, and TTLs that suit
//! the store.
//!
//! Invariant: each name that a context gives starts with the prefix of its case, so cases and runs
//! can share a store. [`Context::clean_up`] removes everything under that prefix.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    Attempt, Capabilities, DistLock, FencingToken, LeaseKind, LockName, Locker, Moment, OwnerId,
    RecordKey, Store, sync::Mutex,
};

use super::steps::request;
use crate::{
    Outcome, Subject,
    failure::fail,
    time::{SLACK, now},
    worker::Worker,
};

/// The subject for one case, with the prefix of its names and the clients that the case has opened.
#[derive(Clone)]
pub(crate) struct Context {
    subject: Subject,
    /// The start of every name of this case.
    prefix: Arc<str>,
    /// The clients that the case has opened. The clean-up closes these clients.
    opened: Arc<Mutex<Vec<Store>>>,
}

impl Context {
    pub(crate) fn new(subject: Subject) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The prefix is random, so that several runs of the suite can share a store.
        let run = fastrand::u32(..);
        Self {
            subject,
            prefix: format!("conformance-{run:08x}-{number}:").into(),
            opened: Arc::default(),
        }
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.subject.capabilities()
    }

    /// The prefix of every name of this case.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name of this case that ends with `tail`.
    pub(crate) fn name(&self, tail: &str) -> String {
        format!("{}{tail}", self.prefix)
    }

    pub(crate) fn lock_name(&self, tail: &str) -> Outcome<LockName> {
        Ok(LockName::new(self.name(tail))?)
    }

    pub(crate) fn key(&self, tail: &str) -> Outcome<RecordKey> {
        Ok(RecordKey::new(self.name(tail))?)
    }

    /// The TTL of a lock that is renewed several times. A busy machine may delay a renewal by half
    /// of this TTL without a loss.
    pub(crate) fn kept_ttl(&self) -> Duration {
        self.capabilities().min_ttl.max(Duration::from_secs(2))
    }

    /// The TTL of a lease that expires during the case.
    pub(crate) fn short_ttl(&self) -> Duration {
        self.capabilities().min_ttl.max(Duration::from_millis(800))
    }

    /// The TTL of a lease that must not expire while a case runs.
    pub(crate) fn long_ttl(&self) -> Duration {
        (self.capabilities().min_ttl * 2).max(Duration::from_secs(30))
    }

    /// The time within which the store must free a lock that was granted for `ttl` and is not
    /// renewed. This time includes [`SLACK`], for a busy machine.
    pub(crate) fn freed_within(&self, ttl: Duration) -> Duration {
        let session = self.capabilities().session_timeout;
        let ttl = session.map_or(ttl, |session| ttl.max(session));
        ttl + self.capabilities().ttl_granularity + SLACK
    }

    /// The longest lease that the store grants to a request with this TTL.
    pub(crate) fn longest_lease(&self, ttl: Duration) -> Duration {
        self.capabilities()
            .max_lease
            .map_or(ttl, |lease| lease.min(ttl))
    }

    /// Whether a guard that was requested with `ttl` may report a lease of the length `reported`. A
    /// lease that ends with a session may be a little shorter, because such a lease counts from the
    /// last answer that kept the session alive.
    pub(crate) fn is_expected_lease(&self, reported: Duration, ttl: Duration) -> bool {
        let most = self.longest_lease(ttl);
        let least = match self.capabilities().lease {
            LeaseKind::Session => most * 4 / 5,
            _ => most,
        };
        (least..=most).contains(&reported)
    }

    /// The time after which a lease of `ttl` has ended for its holder, unless the holder extended
    /// the lease. This time is shorter where the store limits leases, because there an extended
    /// lease must still outlast this time.
    pub(crate) fn lease_over_after(&self, ttl: Duration) -> Duration {
        match self.capabilities().max_lease {
            Some(_) => ttl * 5 / 4,
            None => self.freed_within(ttl),
        }
    }

    /// Opens another independent client of the store.
    pub(crate) async fn store(&self) -> Outcome<Store> {
        let store = self.subject.open().await?;
        self.opened.lock().push(store.clone());
        Ok(store)
    }

    /// Opens another independent client, and returns the interface that callers use.
    pub(crate) async fn locker(&self) -> Outcome<Locker> {
        Ok(self.store().await?.locker())
    }

    /// Opens another independent client, and returns the interface that the engine uses. Nothing
    /// renews a lock that a case takes through this interface.
    pub(crate) async fn backend(&self) -> Outcome<Arc<dyn DistLock>> {
        Ok(self.store().await?.backend())
    }

    /// Opens two independent clients.
    pub(crate) async fn two_lockers(&self) -> Outcome<(Locker, Locker)> {
        Ok((self.locker().await?, self.locker().await?))
    }

    /// Starts a worker process that has opened the store.
    pub(crate) async fn worker(&self) -> Outcome<Worker> {
        match self.subject.workers() {
            Some(workers) => Worker::start(workers).await,
            None => fail!("this case needs worker processes, and none were given"),
        }
    }

    /// Takes a lock as a holder that then dies without a release: a killed process, or a request
    /// whose lease nobody renews.
    pub(crate) async fn acquire_and_crash(
        &self,
        name: &str,
        ttl: Duration,
    ) -> Outcome<CrashedHolder> {
        if self.capabilities().lease == LeaseKind::Session {
            // A session of this process would stay alive, so the holder is a worker process that is
            // killed.
            let mut worker = self.worker().await?;
            let grant = worker.acquire(name, ttl, Duration::ZERO).await?;
            worker.kill().await?;
            return Ok(CrashedHolder {
                asked: Moment::from_boot(grant.asked),
                token: FencingToken::new(grant.token)?,
            });
        }
        let backend = self.backend().await?;
        let asked = now();
        match backend
            .try_acquire(&request(name, OwnerId::new(), ttl)?)
            .await?
        {
            Attempt::Acquired(grant) => Ok(CrashedHolder {
                asked,
                token: grant.token,
            }),
            Attempt::Busy(holder) => fail!("{name:?} is held by {holder:?}"),
        }
    }

    /// Frees the locks of this case, removes its records and closes its clients.
    pub(crate) async fn clean_up(&self) -> Outcome {
        let store = self.store().await?;
        let backend = store.backend();
        for held in backend.list(&self.prefix, None, 10_000).await? {
            if let Some(token) = held.held.and_then(|holder| holder.token) {
                backend.force_release(&held.name, token).await?;
            }
        }
        let records = store.records();
        for kind in [
            "",
            "shared/rw/",
            "shared/sem/",
            "shared/waiting/rw/",
            "shared/waiting/sem/",
        ] {
            let prefix = format!("{kind}{}", self.prefix);
            for (key, entry) in records.scan(&prefix, None, 10_000).await? {
                records.delete(&key, entry.version).await?;
            }
        }
        let opened = std::mem::take(&mut *self.opened.lock());
        for store in opened {
            store.close().await;
        }
        Ok(())
    }
}

/// A holder that died without a release.
#[derive(Debug)]
pub(crate) struct CrashedHolder {
    /// The moment before the request for the lock was sent.
    pub(crate) asked: Moment,
    /// The token of the dead holder's grant.
    pub(crate) token: FencingToken,
}
