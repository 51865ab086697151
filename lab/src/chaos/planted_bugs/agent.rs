//! Agents with a planted bug. Each worker has an agent of its own in its process: the server
//! itself, over a layer around an honest store.
//!
//! The leases of the layer count from before their requests, as those of a primary that the
//! sentinels have confirmed earlier. The layer asks the store for half of the lease, and tells the
//! agent that the whole lease counts from an earlier moment. An agent that keeps this moment
//! shortens the lease that it tells its client, so nobody believes in more than the store's half.

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::Result;
use async_trait::async_trait;
use distlock::{
    Attempt, Clock as _, DistLock, Moment, OwnerId, Store, SystemClock, Ttl,
    backend::{AcquireRequest, Contender, Grant},
};
use distlock_conformance::LockLayer;
use distlock_server::{LockServer, ServerConfig};

use super::kinds::StoreBug;

/// Opens a store through an agent with this bug, which serves until the process ends.
pub(super) async fn open(bug: StoreBug, url: &str) -> Result<Store> {
    let behind = distlock::open(url).await?;
    let lock = EarlyLeases {
        inner: behind.backend(),
        bug,
    };
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    let store = Store::new(lock.into_lock(), behind.records());
    let agent = LockServer::start(config, store).await?;
    let url = agent.url().to_owned();
    tokio::spawn(agent.run(pending()));
    Ok(distlock::open(&*url).await?)
}

/// Locks whose leases count from before their requests.
#[derive(Clone, Debug)]
struct EarlyLeases {
    inner: Arc<dyn DistLock>,
    bug: StoreBug,
}

impl EarlyLeases {
    /// Returns the request for the half of the lease that is left.
    fn half(request: &AcquireRequest) -> AcquireRequest {
        let mut half = request.clone();
        half.ttl = Ttl::new(request.ttl.duration() / 2).unwrap_or(request.ttl);
        half
    }

    /// Returns the grant of a half, requested at `sent`, as the grant of the whole lease. `waited`
    /// is the time from the joining of its waiter to that request.
    fn whole(&self, half: &AcquireRequest, grant: Grant, sent: Moment, waited: Duration) -> Grant {
        let (early, mut grant) = (half.ttl.duration(), grant);
        grant.valid_for += early;
        grant.counts_from = match self.bug {
            StoreBug::CountsFromIsDropped => None,
            _ => Some(grant.counts_from.map_or(sent, |from| from.min(sent)) - early),
        };
        if self.bug == StoreBug::LeaseFromJoining {
            // Right for a unary call, whose caller counts from the same moment. The caller here
            // counts from its last attempt.
            grant.valid_for += waited;
        }
        grant
    }
}

#[async_trait]
impl LockLayer for EarlyLeases {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> distlock::Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            bug: self.bug,
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> distlock::Result<Attempt<Grant>> {
        let (half, sent) = (Self::half(request), SystemClock.now());
        let attempt = self.inner.try_acquire(&half).await?;
        Ok(attempt.map(|grant| self.whole(&half, grant, sent, Duration::ZERO)))
    }

    async fn contend(&self, request: &AcquireRequest) -> distlock::Result<Box<dyn Contender>> {
        let half = Self::half(request);
        Ok(Box::new(EarlyContender {
            inner: self.inner.contend(&half).await?,
            lock: self.clone(),
            half,
            joined: SystemClock.now(),
        }))
    }
}

/// A waiter for one of these locks.
struct EarlyContender {
    inner: Box<dyn Contender>,
    lock: EarlyLeases,
    half: AcquireRequest,
    joined: Moment,
}

impl EarlyContender {
    fn whole(&self, attempt: Attempt<Grant>, sent: Moment) -> Attempt<Grant> {
        let waited = sent.since(self.joined);
        attempt.map(|grant| self.lock.whole(&self.half, grant, sent, waited))
    }
}

#[async_trait]
impl Contender for EarlyContender {
    async fn attempt(&mut self) -> distlock::Result<Attempt<Grant>> {
        let sent = SystemClock.now();
        let attempt = self.inner.attempt().await?;
        Ok(self.whole(attempt, sent))
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> distlock::Result<Attempt<Grant>> {
        let sent = SystemClock.now();
        let attempt = self.inner.attempt_as(owner).await?;
        Ok(self.whole(attempt, sent))
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> distlock::Result<()> {
        self.inner.leave().await
    }
}
