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
    Attempt, Clock as _, DistLock, Moment, Store, SystemClock, Ttl,
    backend::{AcquireRequest, Contender, Grant},
};
use distlock_conformance::LockLayer;
use distlock_server::{LockServer, ServerConfig};
use futures_util::future::BoxFuture;

use super::{attempts::AroundAttempts, kinds::StoreBug};

/// Opens a store through an agent with this bug, which serves until the process ends.
pub(super) async fn open(bug: StoreBug, url: &str) -> Result<Store> {
    let behind = distlock::open(url).await?;
    let lock = EarlyLeases {
        inner: behind.backend(),
        bug,
        joined: None,
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
    /// The moment at which the waiter joined whose layer this is.
    joined: Option<Moment>,
}

impl EarlyLeases {
    /// Returns the request for the half of the lease that is left.
    fn half(request: &AcquireRequest) -> AcquireRequest {
        let mut half = request.clone();
        half.ttl = Ttl::new(request.ttl.duration() / 2).unwrap_or(request.ttl);
        half
    }

    /// Returns the grant of a half, requested at `sent`, as the grant of the whole lease.
    fn whole(&self, half: &AcquireRequest, grant: Grant, sent: Moment) -> Grant {
        let (early, mut grant) = (half.ttl.duration(), grant);
        grant.valid_for += early;
        grant.counts_from = match self.bug {
            StoreBug::CountsFromIsDropped => None,
            _ => Some(grant.counts_from.map_or(sent, |from| from.min(sent)) - early),
        };
        if self.bug == StoreBug::LeaseFromJoining {
            // Right for a unary call, whose caller counts from the same moment. The caller here
            // counts from its last attempt.
            grant.valid_for += self.joined.map_or(Duration::ZERO, |it| sent.since(it));
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
            ..self.clone()
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> distlock::Result<Attempt<Grant>> {
        self.attempt_below(&Self::half(request)).await
    }

    async fn contend(&self, request: &AcquireRequest) -> distlock::Result<Box<dyn Contender>> {
        let mut layer = self.clone();
        layer.joined = Some(SystemClock.now());
        layer.contend_below(&Self::half(request)).await
    }
}

#[async_trait]
impl AroundAttempts for EarlyLeases {
    async fn around(
        &self,
        half: &AcquireRequest,
        attempt: BoxFuture<'_, distlock::Result<Attempt<Grant>>>,
    ) -> distlock::Result<Attempt<Grant>> {
        let sent = SystemClock.now();
        let attempt = attempt.await?;
        Ok(attempt.map(|grant| self.whole(half, grant, sent)))
    }
}
