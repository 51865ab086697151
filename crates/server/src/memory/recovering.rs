//! The lock contract over the hosted table.
//!
//! This layer forwards every call. Before a call that grants a token it asks the host, and after it
//! it notes the token. Invariant: a call that changes a lock is confirmed only if its change is in
//! the export of a stop that comes afterwards.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, DistLock, Error, ErrorKind, ExpiryClock,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, LossReason, OwnerId,
    Reach, ReleaseOutcome, Renewal, Renewed, Result, Verdict,
};

use super::host::{Host, recovering};
use crate::meters;

/// One handle on the hosted table.
#[derive(Debug)]
pub(super) struct Recovering {
    inner: Arc<dyn DistLock>,
    host: Arc<Host>,
    capabilities: Capabilities,
}

impl Recovering {
    pub(super) fn new(inner: Arc<dyn DistLock>, host: Arc<Host>) -> Self {
        let mut capabilities = inner.capabilities().clone();
        // The next start has the exported locks, or grants nothing while they may run.
        capabilities.survives_restart = true;
        capabilities.expiry_clock = ExpiryClock::Server;
        capabilities.reach = Reach::Network;
        Self {
            inner,
            host,
            capabilities,
        }
    }

    /// The answer to the renewal of a lease that does not hold its lock.
    fn not_held(&self, reason: LossReason) -> Renewed {
        match reason {
            // The table is empty after a crash, which is not the work of an operator.
            LossReason::Removed if self.host.recovery_left().is_some() => {
                Renewed::NotHeld(LossReason::HistoryChanged)
            }
            reason => Renewed::NotHeld(reason),
        }
    }
}

/// An attempt whose token is below the durable ceiling. A grant with another token is taken back
/// before anybody learns of it.
async fn settled(
    host: &Arc<Host>,
    locks: &dyn DistLock,
    attempt: Attempt<Grant>,
    (name, owner): (&LockName, OwnerId),
) -> Result<Attempt<Grant>> {
    if let Attempt::Acquired(grant) = &attempt
        && let Err(error) = host.settle(grant.token).await
    {
        let lease = Lease::new(name.clone(), owner, Some(grant.token));
        locks.release(&lease).await?;
        return Err(error);
    }
    host.check_exported()?;
    Ok(attempt)
}

/// Counts an attempt that the table has refused.
fn counted(attempt: Result<Attempt<Grant>>) -> Result<Attempt<Grant>> {
    // The table refuses for now only if it is full.
    if attempt.as_ref().is_err_and(Error::is_retryable) {
        meters::count_refusal("names");
    }
    attempt
}

#[tonic::async_trait]
#[deny(clippy::missing_trait_methods)]
impl DistLock for Recovering {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        let inner = self.inner.reopen().await?;
        Ok(Arc::new(Self::new(inner, Arc::clone(&self.host))))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.host.admit().await?;
        let attempt = counted(self.inner.try_acquire(request).await)?;
        let held = (&request.name, request.owner);
        settled(&self.host, &*self.inner, attempt, held).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        let inner = self.inner.contend(request).await?;
        Ok(Box::new(RecoveringContender {
            inner,
            locks: Arc::clone(&self.inner),
            host: Arc::clone(&self.host),
            name: request.name.clone(),
            owner: request.owner,
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        if let Some(floor) = renewal.token_floor {
            // Only a holder may use tokens up: the ceiling never falls again.
            if let Err(reason) = self.host.check(lease) {
                return Ok(self.not_held(reason));
            }
            self.host.admit_floor(floor).await?;
        }
        let renewed = self.inner.renew(lease, renewal).await?;
        self.host.check_exported()?;
        match renewed {
            Renewed::Extended { token, .. } => {
                self.host.note(token);
                Ok(renewed)
            }
            Renewed::NotHeld(reason) => Ok(self.not_held(reason)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let outcome = self.inner.release(lease).await?;
        self.host.check_exported()?;
        Ok(outcome)
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.host.admit_token().await?;
        let outcome = self.inner.hand_over(lease, next).await?;
        if let HandOver::Done(grant) = &outcome
            && let Err(error) = self.host.settle(grant.token).await
        {
            // The former holder has the lock no more, and nobody learns of the token.
            let lease = Lease::new(next.name.clone(), next.owner, Some(grant.token));
            self.inner.release(&lease).await?;
            return Err(
                Error::new(ErrorKind::OutcomeUnknown, "the lock is free now").caused_by(error),
            );
        }
        self.host.check_exported()?;
        Ok(outcome)
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let info = self.inner.inspect(name).await?;
        match self.host.recovery_left() {
            // The lock may be held by somebody who has not shown the proof yet.
            Some(left) if info.held.is_none() => Err(recovering(left)),
            _ => Ok(info),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        match self.host.recovery_left() {
            Some(left) => Err(recovering(left)),
            None => self.inner.list(prefix, after, limit).await,
        }
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        // Before the answer: after a crash the holder must not have the lock again by its proof.
        // During the recovery the holder may not have shown it yet.
        let held = self.inner.inspect(name).await?.held;
        let is_held = held.is_some_and(|it| it.token == Some(expected));
        if is_held || self.host.recovery_left().is_some() {
            self.host.note_forced(name, expected).await?;
        }
        let outcome = self.inner.force_release(name, expected).await?;
        self.host.check_exported()?;
        Ok(outcome)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = self.inner.health().await?;
        health.findings.clear();
        match self.host.recovery_left() {
            Some(left) => health.found(
                "recovery",
                Verdict::Warn,
                format!("nobody new is granted a lock for {} s", left.as_secs() + 1),
            ),
            None => health.found("recovery", Verdict::Pass, "locks are granted"),
        }
        Ok(health)
    }

    fn requests_sent(&self) -> Option<u64> {
        self.inner.requests_sent()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// One waiter for a lock of the hosted table.
struct RecoveringContender {
    inner: Box<dyn Contender>,
    locks: Arc<dyn DistLock>,
    host: Arc<Host>,
    name: LockName,
    owner: OwnerId,
}

#[tonic::async_trait]
#[deny(clippy::missing_trait_methods)]
impl Contender for RecoveringContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.host.admit().await?;
        let attempt = counted(self.inner.attempt().await)?;
        settled(&self.host, &*self.locks, attempt, (&self.name, self.owner)).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.host.admit().await?;
        let attempt = counted(self.inner.attempt_as(owner).await)?;
        settled(&self.host, &*self.locks, attempt, (&self.name, owner)).await
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        // A lock of the table is free during the recovery, so the wait would end at once.
        if let Some(left) = self.host.recovery_left() {
            return self.host.sleep(left.min(at_most)).await;
        }
        self.inner.wait(at_most).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.inner.leave().await
    }
}
