//! Clients that claim a lock after a crash of the lock server, although they never held it.
//!
//! A server that does not check proofs cannot be told from a server whose key everybody knows. So
//! the claims of the bug are signed with the server's own key, which is in its state file. Those of
//! its twin are signed with another key, and the server must refuse them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use distlock::{
    Attempt, DistLock, Error, ErrorKind, FencingToken, Store, SystemClock,
    backend::{AcquireRequest, Contender, Grant, Lease, Renewal, Renewed, micros, unix_time},
};
use distlock_conformance::LockLayer;
use distlock_wire::v1::{RenewLease, lock_service_client::LockServiceClient};
use futures_util::future::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use sha2::Sha256;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use uuid::Uuid;

use super::{attempts::AroundAttempts, kinds::StoreBug};
use crate::chaos::worker_settings::WorkerSettings;

/// Time-out for the answer to a claim.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Opens the store of a client that makes claims.
pub(super) async fn open(bug: StoreBug, settings: &WorkerSettings) -> Result<Store> {
    let store = distlock::open(settings.url.as_str()).await?;
    let state = settings.server_state.clone();
    let forger = Forger {
        server: settings.url.replace("distlock://", "http://"),
        state: state.context("a server with a state file")?,
        knows_key: bug == StoreBug::ProofsAreNotChecked,
    };
    let lock = ClaimingLock {
        inner: store.backend(),
        forger: Arc::new(forger),
    };
    let clock = Arc::new(SystemClock);
    Ok(Store::with_clock(lock.into_lock(), store.records(), clock))
}

/// Makes proofs of leases that the server has not granted.
#[derive(Debug)]
struct Forger {
    server: String,
    state: PathBuf,
    knows_key: bool,
}

/// What a proof needs of the state of a server.
#[derive(Deserialize)]
struct ServerState {
    server: Uuid,
    start: u64,
    key: [u8; 32],
}

impl Forger {
    /// Renews the lease that the owner of the request never had. `None` means that the server
    /// refuses the proof.
    async fn claim(&self, request: &AcquireRequest) -> Result<Option<Grant>> {
        // Tokens are the time of the grant, so this one is higher than that of the holder.
        let token = FencingToken::new(micros(unix_time(&SystemClock)))?;
        let lease = Lease::new(request.name.clone(), request.owner, Some(token));
        let mut renewal = RenewLease::new(&lease, &Renewal::plain(request.ttl));
        renewal.proof = self.proof(&lease, token, request.ttl.duration())?;
        let endpoint = Endpoint::from_shared(self.server.clone())?;
        let mut server = LockServiceClient::new(endpoint.connect().await?);
        let answer = server.renew(renewal).await?.into_inner();
        Ok(match Renewed::try_from(answer)? {
            Renewed::Extended {
                valid_for,
                epoch,
                token,
                ..
            } => Some(Grant::new(token, epoch, valid_for)),
            Renewed::NotHeld(_) => None,
        })
    }

    /// Returns the proof that the server itself would have made of this lease.
    fn proof(&self, lease: &Lease, token: FencingToken, ttl: Duration) -> Result<Vec<u8>> {
        let text = std::fs::read_to_string(&self.state)?;
        let (_, body) = text.split_once('\n').context("a state after its head")?;
        let mut state: ServerState = serde_json::from_str(body)?;
        if !self.knows_key {
            state.key = [7; 32];
        }
        let numbers = [state.start, micros(ttl), token.get()].map(u64::to_be_bytes);
        let mut digest = Hmac::<Sha256>::new_from_slice(&state.key)?;
        digest.update(b"distlock lease 1");
        digest.update(state.server.as_bytes());
        digest.update(numbers.as_flattened());
        digest.update(lease.owner.as_uuid().as_bytes());
        digest.update(lease.name.as_str().as_bytes());
        let mut proof = numbers.concat();
        proof.extend(digest.finalize().into_bytes());
        Ok(proof)
    }
}

/// Locks of a server, with claims while the server grants nothing.
#[derive(Clone, Debug)]
struct ClaimingLock {
    inner: Arc<dyn DistLock>,
    forger: Arc<Forger>,
}

#[async_trait]
impl LockLayer for ClaimingLock {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> distlock::Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            forger: Arc::clone(&self.forger),
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> distlock::Result<Attempt<Grant>> {
        self.attempt_below(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> distlock::Result<Box<dyn Contender>> {
        self.contend_below(request).await
    }
}

#[async_trait]
impl AroundAttempts for ClaimingLock {
    /// Claims the lock if the server grants nothing to anybody new.
    async fn around(
        &self,
        request: &AcquireRequest,
        attempt: BoxFuture<'_, distlock::Result<Attempt<Grant>>>,
    ) -> distlock::Result<Attempt<Grant>> {
        let answer = attempt.await;
        let is_recovering = |error: &Error| error.kind() == ErrorKind::Unavailable;
        if answer.as_ref().is_err_and(is_recovering)
            && let Ok(Ok(Some(grant))) = timeout(ANSWER_TIMEOUT, self.forger.claim(request)).await
        {
            return Ok(Attempt::Acquired(grant));
        }
        answer
    }
}
