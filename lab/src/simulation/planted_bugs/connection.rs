//! A connection with a planted bug.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    Attempt, DistLock, Epoch, FencingToken, LockName, OwnerId, Result,
    backend::{
        AcquireRequest, Contender, Grant, HandOver, Lease, LossFeed, ReleaseOutcome, Renewal,
        Renewed,
    },
};
use distlock_conformance::LockLayer;
use distlock_core::sync::Mutex;

use super::kinds::EngineBug;
use crate::simulation::{executor::Owner, world::World};

/// A connection with one bug.
#[derive(Clone)]
pub(super) struct BuggyConnection {
    inner: Arc<dyn DistLock>,
    bug: EngineBug,
    world: Arc<World>,
    process: usize,
    /// Whether the keeper uses this connection.
    background: bool,
    requests: Arc<Mutex<BTreeMap<OwnerId, AcquireRequest>>>,
    last: Arc<Mutex<Option<NewestGrant>>>,
}

/// The newest grant of a process.
#[derive(Clone)]
struct NewestGrant {
    name: LockName,
    owner: OwnerId,
    at: Duration,
    token: FencingToken,
    epoch: Epoch,
    valid_for: Duration,
}

impl BuggyConnection {
    pub(super) fn new(
        inner: Arc<dyn DistLock>,
        bug: EngineBug,
        world: &Arc<World>,
        process: usize,
    ) -> Self {
        Self {
            inner,
            bug,
            world: Arc::clone(world),
            process,
            background: false,
            requests: Arc::default(),
            last: Arc::default(),
        }
    }

    /// Tells whether this is the planted bug.
    fn has_bug(&self, bug: EngineBug) -> bool {
        self.bug == bug
    }

    /// Returns the validity that the bug reports for a request sent at `sent`.
    fn reported_validity(&self, valid_for: Duration, sent: Duration) -> Duration {
        if self.has_bug(EngineBug::ValidFromReceipt) {
            valid_for + (self.world.now() - sent)
        } else {
            valid_for
        }
    }

    /// Returns the grant that the bug reports for a request sent at `sent`.
    fn changed_grant(&self, mut grant: Grant, sent: Duration) -> Grant {
        grant.valid_for = self.reported_validity(grant.valid_for, sent);
        grant
    }

    /// Returns the answer that the bug gives to an attempt. `AnswersMixedUp` gives the newest grant
    /// of the process to another caller as well.
    fn changed_attempt(
        &self,
        request: &AcquireRequest,
        sent: Duration,
        attempt: Attempt<Grant>,
    ) -> Attempt<Grant> {
        if !self.has_bug(EngineBug::AnswersMixedUp) {
            return attempt.map(|grant| self.changed_grant(grant, sent));
        }
        let mut last = self.last.lock();
        match attempt {
            Attempt::Acquired(grant) => {
                *last = Some(NewestGrant {
                    name: request.name.clone(),
                    owner: request.owner,
                    at: self.world.now(),
                    token: grant.token,
                    epoch: grant.epoch.clone(),
                    valid_for: grant.valid_for,
                });
                Attempt::Acquired(grant)
            }
            Attempt::Busy(holder) => match &*last {
                Some(last)
                    if last.name == request.name
                        && last.owner != request.owner
                        && last.at + Duration::from_millis(2) > self.world.now() =>
                {
                    let epoch = last.epoch.clone();
                    Attempt::Acquired(Grant::new(last.token, epoch, last.valid_for))
                }
                _ => Attempt::Busy(holder),
            },
        }
    }

    /// Takes the lock again, like a renewal that does not compare the owner.
    fn take_again_later(&self, lease: &Lease) {
        let Some(request) = self.requests.lock().get(&lease.owner).cloned() else {
            return;
        };
        let (inner, time) = (Arc::clone(&self.inner), self.world.time.clone());
        let owner = Owner::Process(self.process);
        self.world.spawner.spawn(owner, "late renewal", async move {
            time.sleep(Duration::from_millis(1)).await;
            drop(inner.try_acquire(&request).await);
        });
    }
}

/// Returns the answer to a successful release.
fn released_outcome() -> ReleaseOutcome {
    ReleaseOutcome::Released {
        others_waiting: None,
    }
}

/// Returns the answer to a successful renewal. `None` means that the lease has no token.
fn pretended_renewal(lease: &Lease, renewal: &Renewal) -> Option<Renewed> {
    Some(Renewed::Extended {
        valid_for: renewal.ttl.duration(),
        epoch: Epoch::new(""),
        token: lease.token?,
        loss: LossFeed::silent(),
    })
}

#[async_trait]
impl LockLayer for BuggyConnection {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            background: true,
            ..self.clone()
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.requests.lock().insert(request.owner, request.clone());
        let sent = self.world.now();
        let attempt = self.inner.try_acquire(request).await?;
        Ok(self.changed_attempt(request, sent, attempt))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.requests.lock().insert(request.owner, request.clone());
        Ok(Box::new(BuggyConnectionContender {
            inner: self.inner.contend(request).await?,
            connection: self.clone(),
            request: request.clone(),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let sent = self.world.now();
        let pretended = pretended_renewal(lease, renewal);
        match (self.bug, pretended) {
            (EngineBug::RenewalNotSent, Some(renewed)) => return Ok(renewed),
            (EngineBug::RenewalsSkipped, _) => return std::future::pending().await,
            (EngineBug::RenewalErrorIsSuccess, Some(renewed)) => {
                return Ok(self.inner.renew(lease, renewal).await.unwrap_or(renewed));
            }
            _ => {}
        }
        Ok(match self.inner.renew(lease, renewal).await? {
            Renewed::Extended {
                valid_for,
                epoch,
                token,
                loss,
            } => Renewed::Extended {
                valid_for: self.reported_validity(valid_for, sent),
                epoch,
                token,
                loss,
            },
            lost @ Renewed::NotHeld(_) => lost,
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        match self.bug {
            EngineBug::BackgroundReleaseLost if self.background => return Ok(released_outcome()),
            EngineBug::CancelledKeepsItsGrant if lease.token.is_none() => {
                return Ok(released_outcome());
            }
            EngineBug::ReleaseWithoutOwner => {
                let held = self.inner.inspect(&lease.name).await?.held;
                if let Some(token) = held.and_then(|it| it.token) {
                    self.inner.force_release(&lease.name, token).await?;
                    self.world.record_applied(0, &lease.name, "freed");
                }
                return Ok(released_outcome());
            }
            _ => {}
        }
        let outcome = self.inner.release(lease).await?;
        if self.has_bug(EngineBug::RenewalAfterRelease) {
            self.take_again_later(lease);
        }
        Ok(outcome)
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.requests.lock().insert(next.owner, next.clone());
        let sent = self.world.now();
        Ok(match self.inner.hand_over(lease, next).await? {
            HandOver::Done(grant) => HandOver::Done(self.changed_grant(grant, sent)),
            other => other,
        })
    }
}

/// A contender of a connection with a bug.
struct BuggyConnectionContender {
    inner: Box<dyn Contender>,
    connection: BuggyConnection,
    request: AcquireRequest,
}

#[async_trait]
impl Contender for BuggyConnectionContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        let sent = self.connection.world.now();
        let attempt = self.inner.attempt().await?;
        Ok(self
            .connection
            .changed_attempt(&self.request, sent, attempt))
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let sent = self.connection.world.now();
        let mut request = self.request.clone();
        request.owner = owner;
        let attempt = self.inner.attempt_as(owner).await?;
        Ok(self.connection.changed_attempt(&request, sent, attempt))
    }

    fn is_first(&self) -> bool {
        self.inner.is_first()
    }

    async fn wait(&mut self, at_most: Duration) {
        if self.connection.has_bug(EngineBug::WakeUpLost) {
            self.connection.world.time.sleep(at_most).await;
        } else {
            self.inner.wait(at_most).await;
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        if self.connection.has_bug(EngineBug::LeavesStayInLine) {
            std::mem::forget(self.inner);
            return Ok(());
        }
        self.inner.leave().await
    }
}

impl fmt::Debug for BuggyConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuggyConnection({:?})", self.bug)
    }
}
