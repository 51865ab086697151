//! What a case works with: independent clients of one store, names of its own, and times that suit the store.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    Attempt, Capabilities, DistLock, FencingToken, LeaseKind, LockName, Locker, Moment, OwnerId,
    RecordKey, Store,
};

use super::{
    steps::request,
    time::{SLACK, now},
};
use crate::{Outcome, Subject, failure::fail, worker::Worker};

/// One case's view of the subject.
#[derive(Clone)]
pub(crate) struct Context {
    subject: Subject,
    prefix: Arc<str>,
    opened: Arc<Mutex<Vec<Store>>>,
}

impl Context {
    pub(crate) fn new(subject: Subject) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Random, so that several runs of the suite can share a store.
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

    /// What every name of this case starts with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name of this case.
    pub(crate) fn name(&self, tail: &str) -> String {
        format!("{}{tail}", self.prefix)
    }

    pub(crate) fn lock_name(&self, tail: &str) -> Outcome<LockName> {
        Ok(LockName::new(self.name(tail))?)
    }

    pub(crate) fn key(&self, tail: &str) -> Outcome<RecordKey> {
        Ok(RecordKey::new(self.name(tail))?)
    }

    /// A lease that must be kept for several times its length. A busy machine may stand still for
    /// half of that without losing it.
    pub(crate) fn kept(&self) -> Duration {
        self.capabilities().min_ttl.max(Duration::from_secs(2))
    }

    /// A lease that is meant to run out.
    pub(crate) fn short(&self) -> Duration {
        self.capabilities().min_ttl.max(Duration::from_millis(800))
    }

    /// A lease that must not run out while a case runs.
    pub(crate) fn long(&self) -> Duration {
        (self.capabilities().min_ttl * 2).max(Duration::from_secs(30))
    }

    /// When the store must have freed a lock that was granted for `ttl` and is not renewed.
    pub(crate) fn gone_after(&self, ttl: Duration) -> Duration {
        let session = self.capabilities().session_timeout;
        let ttl = session.map_or(ttl, |session| ttl.max(session));
        ttl + self.capabilities().ttl_granularity + SLACK
    }

    /// For how long a lock that is wanted for `ttl` is granted at the most.
    pub(crate) fn lease(&self, ttl: Duration) -> Duration {
        self.capabilities()
            .max_lease
            .map_or(ttl, |lease| lease.min(ttl))
    }

    /// Whether a guard that asked for `ttl` may tell this one. A lease that hangs on a session may be a little shorter: it
    /// counts from when the session was last heard of.
    pub(crate) fn is_lease(&self, told: Duration, ttl: Duration) -> bool {
        let most = self.lease(ttl);
        let least = match self.capabilities().lease {
            LeaseKind::Session => most * 4 / 5,
            _ => most,
        };
        (least..=most).contains(&told)
    }

    /// When a lease of `ttl` would be over for its holder if nothing had been done about it. Where leases hang on sessions
    /// none outlasts this by much.
    pub(crate) fn over_after(&self, ttl: Duration) -> Duration {
        match self.capabilities().max_lease {
            Some(_) => ttl * 5 / 4,
            None => self.gone_after(ttl),
        }
    }

    /// Another independent client of the store.
    pub(crate) async fn store(&self) -> Outcome<Store> {
        let store = self.subject.open().await?;
        lock(&self.opened).push(store.clone());
        Ok(store)
    }

    /// The caller's side of another independent client.
    pub(crate) async fn locker(&self) -> Outcome<Locker> {
        Ok(self.store().await?.locker())
    }

    /// The implementer's side of another independent client.
    pub(crate) async fn raw(&self) -> Outcome<Arc<dyn DistLock>> {
        Ok(self.store().await?.lock())
    }

    /// Two independent clients.
    pub(crate) async fn two_lockers(&self) -> Outcome<(Locker, Locker)> {
        Ok((self.locker().await?, self.locker().await?))
    }

    /// A worker process that has opened the store.
    pub(crate) async fn worker(&self) -> Outcome<Worker> {
        match self.subject.workers() {
            Some(workers) => Worker::start(workers).await,
            None => fail!("this case needs worker processes, and none were given"),
        }
    }

    /// Takes a lock as somebody who then dies without a word.
    pub(crate) async fn crashed_holder(&self, name: &str, ttl: Duration) -> Outcome<Crashed> {
        if self.capabilities().lease == LeaseKind::Session {
            // In this process the session would live on.
            let mut worker = self.worker().await?;
            let grant = worker.acquire(name, ttl, Duration::ZERO).await?;
            worker.kill().await?;
            return Ok(Crashed {
                asked: Moment::from_boot(grant.asked),
                token: FencingToken::new(grant.token)?,
            });
        }
        let raw = self.raw().await?;
        let asked = now();
        match raw
            .try_acquire(&request(name, OwnerId::new(), ttl)?)
            .await?
        {
            Attempt::Acquired(grant) => Ok(Crashed {
                asked,
                token: grant.token,
            }),
            Attempt::Busy(holder) => fail!("{name:?} is held by {holder:?}"),
        }
    }

    /// Frees this case's locks, removes its records, closes its clients.
    pub(crate) async fn tidy(&self) -> Outcome {
        let store = self.store().await?;
        let raw = store.lock();
        for held in raw.list(&self.prefix, None, 10_000).await? {
            if let Some(token) = held.held.and_then(|holder| holder.token) {
                raw.force_release(&held.name, token).await?;
            }
        }
        let records = store.records();
        for (key, entry) in records.scan(&self.prefix, None, 10_000).await? {
            records.delete(&key, entry.version).await?;
        }
        let opened = std::mem::take(&mut *lock(&self.opened));
        for store in opened {
            store.close().await;
        }
        Ok(())
    }
}

/// What is known of a holder that died.
#[derive(Debug)]
pub(crate) struct Crashed {
    /// Before its request was sent.
    pub(crate) asked: Moment,
    pub(crate) token: FencingToken,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
