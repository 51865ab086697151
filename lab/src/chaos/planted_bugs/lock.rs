//! Locks with a planted bug.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock::{
    Attempt, Clock as _, DistLock, Epoch, FencingToken, Forced, LockInfo, LockName, Moment,
    OwnerId, Result, SystemClock, Ttl,
    backend::{
        AcquireRequest, Contender, Grant, HandOver, Lease, LossFeed, ReleaseOutcome, Renewal,
        Renewed, TicketStep, unix_time,
    },
};
use distlock_conformance::LockLayer;
use distlock_core::sync::Mutex;
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::{attempts::AroundAttempts, kinds::StoreBug};

/// An honest lock with one bug. Reopened handles share the state of the bug.
#[derive(Clone, Debug)]
pub(super) struct BuggyLock {
    inner: Arc<dyn DistLock>,
    bug: StoreBug,
    worker: u32,
    state: Arc<BugState>,
}

/// The state that single bugs need: counted tokens, the newest grant, leaked memory and files.
#[derive(Debug, Default)]
struct BugState {
    counted: AtomicU64,
    last: Mutex<Option<LastGrant>>,
    kept: Mutex<Vec<Vec<u8>>>,
    files: Mutex<Vec<File>>,
}

/// Time-out of a renewal under `RenewalErrorIsSuccess`. A renewal without an answer in this time
/// counts as a success.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

/// Shortest TTL that a worker requests. A renewal with a shorter TTL belongs to a released lock,
/// which the renewal keeps for the rest of its minimum hold time.
const SHORTEST_LEASE: Duration = Duration::from_millis(200);

/// The newest grant of this process. `AnswersAreMixedUp` gives this grant to another caller.
#[derive(Clone, Debug)]
struct LastGrant {
    name: LockName,
    owner: OwnerId,
    at: Moment,
    token: FencingToken,
    epoch: Epoch,
    valid_for: Duration,
}

impl BuggyLock {
    pub(super) fn new(inner: Arc<dyn DistLock>, bug: StoreBug, worker: u32) -> Self {
        Self {
            inner,
            bug,
            worker,
            state: Arc::default(),
        }
    }

    /// Tells whether this is the planted bug.
    fn has_bug(&self, bug: StoreBug) -> bool {
        self.bug == bug
    }

    /// Returns the name that the store sees. `KeysByProcess` makes two names of one.
    fn stored_name(&self, name: &LockName) -> LockName {
        if !self.has_bug(StoreBug::KeysByProcess) {
            return name.clone();
        }
        LockName::new(format!("{name}-{}", self.worker % 2)).unwrap_or_else(|_| name.clone())
    }

    /// Returns the lease that the store knows. A token that the bug made up is left out.
    fn stored_lease(&self, lease: &Lease) -> Lease {
        let same_token = !matches!(
            self.bug,
            StoreBug::TokensStandStill
                | StoreBug::TokensByProcess
                | StoreBug::TokensBySkewedClocks
                | StoreBug::TokensWrap
                | StoreBug::HandOverKeepsToken
        );
        let mut stored = lease.clone();
        stored.name = self.stored_name(&lease.name);
        stored.token = lease.token.filter(|_| same_token);
        stored
    }

    /// Returns the TTL that is requested from the store.
    fn requested_ttl(&self, ttl: Ttl) -> Ttl {
        if self.has_bug(StoreBug::LeaseRoundedDown) {
            Ttl::new(ttl.duration() / 2).unwrap_or(ttl)
        } else {
            ttl
        }
    }

    /// Returns the request that is sent to the store.
    fn changed_request(&self, request: &AcquireRequest) -> AcquireRequest {
        let mut request = request.clone();
        request.name = self.stored_name(&request.name);
        request.ttl = self.requested_ttl(request.ttl);
        request
    }

    /// Returns the token that the bug reports instead of the store's token.
    fn reported_token(&self, token: FencingToken) -> FencingToken {
        let made = match self.bug {
            StoreBug::TokensStandStill => 1,
            StoreBug::TokensByProcess => self.state.counted.fetch_add(1, Ordering::SeqCst) + 1,
            StoreBug::TokensBySkewedClocks => {
                let micros = u64::try_from(unix_time(&SystemClock).as_micros());
                micros.unwrap_or_default() + u64::from(self.worker) * 5_000_000
            }
            StoreBug::TokensWrap => token.get() % (1 << 20) + 1,
            _ => return token,
        };
        FencingToken::new(made).unwrap_or(token)
    }

    /// Returns the validity that the bug reports for a request sent at `sent`.
    fn reported_validity(&self, valid_for: Duration, sent: Moment) -> Duration {
        match self.bug {
            StoreBug::ValidFromReceipt => valid_for + SystemClock.now().since(sent),
            StoreBug::ValidTooLong | StoreBug::LeadersStay => valid_for * 3,
            StoreBug::LeaseRoundedDown => valid_for * 2,
            _ => valid_for,
        }
    }

    /// Returns the grant that the bug reports for a request sent at `sent`.
    fn reported_grant(&self, mut grant: Grant, sent: Moment) -> Grant {
        grant.token = self.reported_token(grant.token);
        grant.valid_for = self.reported_validity(grant.valid_for, sent);
        grant
    }

    /// Delays some answers, like a slow network.
    async fn delay_some_answers(&self, ttl: Ttl) {
        if self.has_bug(StoreBug::ValidFromReceipt) && fastrand::u32(..3) == 0 {
            SystemClock.sleep(ttl.duration() * 2 / 3).await;
        }
    }

    /// Frees a lock, whoever holds it. `false` means that nobody held the lock.
    async fn force_release_holder(&self, name: &LockName) -> Result<bool> {
        let held = self.inner.inspect(name).await?.held;
        match held.and_then(|held| held.token) {
            Some(token) => Ok(self.inner.force_release(name, token).await? == Forced::Released),
            None => Ok(false),
        }
    }

    /// Tells whether the bug grants a lock that somebody holds, this time.
    fn opens_now(&self, name: &LockName) -> bool {
        match self.bug {
            StoreBug::FailsOpen => fastrand::u32(..20) == 0,
            StoreBug::LiveHoldersAreBuried => is_slot(name),
            _ => false,
        }
    }

    /// Applies the bugs that act before the request.
    async fn act_before_request(&self, request: &AcquireRequest) -> Result<()> {
        match self.bug {
            StoreBug::ChecksThenSets if self.inner.inspect(&request.name).await?.held.is_none() => {
                SystemClock.sleep(random_millis(5)).await;
                self.force_release_holder(&request.name).await?;
            }
            StoreBug::ReaperEatsLiveRows if fastrand::u32(..4) == 0 => {
                self.force_release_holder(&request.name).await?;
            }
            StoreBug::MemoryLeaks => self.state.kept.lock().push(vec![1; 2 << 20]),
            StoreBug::DescriptorsLeak => {
                let open = || File::open("/dev/null").ok();
                self.state
                    .files
                    .lock()
                    .extend([open(), open(), open()].into_iter().flatten());
            }
            _ => {}
        }
        Ok(())
    }

    /// Applies the bugs that change the answer.
    async fn change_answer(
        &self,
        request: &AcquireRequest,
        sent: Moment,
        answer: Attempt<Grant>,
    ) -> Result<Attempt<Grant>> {
        self.delay_some_answers(request.ttl).await;
        let Attempt::Busy(holder) = answer else {
            let grant = answer.map(|grant| self.reported_grant(grant, sent));
            if let Attempt::Acquired(grant) = &grant {
                *self.state.last.lock() = Some(LastGrant {
                    name: request.name.clone(),
                    owner: request.owner,
                    at: SystemClock.now(),
                    token: grant.token,
                    epoch: grant.epoch.clone(),
                    valid_for: grant.valid_for,
                });
            }
            return Ok(grant);
        };
        let left = holder.as_ref().and_then(|it| it.expires_in);
        let taken = match (self.bug, left) {
            _ if self.opens_now(&request.name) => {
                let token = holder.as_ref().and_then(|it| it.token);
                let token = token.and_then(|it| FencingToken::new(it.get() + 1).ok());
                let made_up = |token| Grant::new(token, Epoch::new(""), request.ttl.duration());
                return Ok(token.map_or(Attempt::Busy(holder), |it| Attempt::Acquired(made_up(it))));
            }
            (StoreBug::AnswersAreMixedUp, _) => {
                let last = self.state.last.lock().clone();
                if let Some(last) = last
                    && last.name == request.name
                    && last.owner != request.owner
                    && sent.since(last.at) < Duration::from_millis(5)
                {
                    let grant = Grant::new(last.token, last.epoch, last.valid_for);
                    return Ok(Attempt::Acquired(grant));
                }
                false
            }
            (StoreBug::TakesOverEarly, Some(left)) => left < request.ttl.duration() / 2,
            (StoreBug::DeletesTheExpired, Some(left)) if fastrand::bool() => {
                SystemClock.sleep(left + random_millis(60)).await;
                true
            }
            _ => false,
        };
        if !taken {
            return Ok(Attempt::Busy(holder));
        }
        self.force_release_holder(&request.name).await?;
        self.inner.try_acquire(request).await
    }
}

/// Tells whether a lock is the slot of a holder of a shared lock.
fn is_slot(name: &LockName) -> bool {
    name.is_reserved() && !name.as_str().contains("/line/")
}

/// Returns the answer to a successful renewal, although the renewal failed.
fn pretended_renewal(token: FencingToken, renewal: &Renewal) -> Renewed {
    Renewed::Extended {
        valid_for: renewal.ttl.duration(),
        epoch: Epoch::new(""),
        token,
        loss: LossFeed::silent(),
    }
}

/// Draws a time of at most `most` milliseconds.
fn random_millis(most: u64) -> Duration {
    Duration::from_millis(fastrand::u64(..=most))
}

#[async_trait]
impl LockLayer for BuggyLock {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.inner)
    }

    async fn reopen(&self) -> Result<Self> {
        Ok(Self {
            inner: self.inner.reopen().await?,
            ..self.clone()
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.attempt_below(&self.changed_request(request)).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.contend_below(&self.changed_request(request)).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let mut asked = *renewal;
        asked.ttl = self.requested_ttl(renewal.ttl);
        let mut lease = lease.clone();
        if self.has_bug(StoreBug::TicketsReused) && renewal.ticket == TicketStep::Redeem {
            asked.ticket = TicketStep::Keep;
            lease.nonce = None;
        }
        let lease = &lease;
        if let (StoreBug::MinimumIsIgnored, Some(token)) = (self.bug, lease.token)
            && renewal.ttl.duration() < SHORTEST_LEASE
        {
            self.inner.release(&self.stored_lease(lease)).await?;
            return Ok(pretended_renewal(token, renewal));
        }
        let sent = SystemClock.now();
        let lease_there = self.stored_lease(lease);
        let renewing = self.inner.renew(&lease_there, &asked);
        let renewed = match (self.bug, lease.token) {
            (StoreBug::RenewalErrorIsSuccess, Some(token)) => {
                match timeout(ANSWER_TIMEOUT, renewing).await {
                    Ok(Ok(renewed)) => renewed,
                    Ok(Err(_)) | Err(_) => return Ok(pretended_renewal(token, renewal)),
                }
            }
            _ => renewing.await?,
        };
        self.delay_some_answers(renewal.ttl).await;
        Ok(match renewed {
            Renewed::Extended {
                valid_for,
                epoch,
                token,
                loss,
            } => Renewed::Extended {
                valid_for: self.reported_validity(valid_for, sent),
                epoch,
                // Some bugs report a made-up token for a grant. Renewals must repeat the token.
                token: lease.token.unwrap_or(token),
                loss,
            },
            Renewed::NotHeld(reason) => match lease.token {
                Some(token) if self.has_bug(StoreBug::RenewalAlwaysSucceeds) => {
                    pretended_renewal(token, renewal)
                }
                _ => Renewed::NotHeld(reason),
            },
        })
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let mine = self.stored_lease(lease);
        let done = Ok(ReleaseOutcome::Released {
            others_waiting: None,
        });
        match self.bug {
            StoreBug::ReleaseDoesNothing => done,
            StoreBug::ReleaseWithoutOwner if self.force_release_holder(&mine.name).await? => done,
            StoreBug::ReleaseInTwoSteps => {
                let held = self.inner.inspect(&mine.name).await?.held;
                if held.and_then(|it| it.token) == mine.token {
                    // In half of the releases something happens between the two steps.
                    if fastrand::bool() {
                        SystemClock.sleep(random_millis(1_500)).await;
                    }
                    self.force_release_holder(&mine.name).await?;
                }
                done
            }
            _ => self.inner.release(&mine).await,
        }
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let sent = SystemClock.now();
        let next = self.changed_request(next);
        if self.has_bug(StoreBug::HandOverInTwoSteps) {
            let held = self.inner.inspect(&next.name).await?.held;
            if held.and_then(|it| it.token) == lease.token {
                SystemClock.sleep(random_millis(1_000)).await;
                self.force_release_holder(&next.name).await?;
                if let Attempt::Acquired(grant) = self.inner.try_acquire(&next).await? {
                    return Ok(HandOver::Done(grant));
                }
            }
        }
        let answer = self
            .inner
            .hand_over(&self.stored_lease(lease), &next)
            .await?;
        Ok(match answer {
            HandOver::Done(grant) => {
                let mut grant = self.reported_grant(grant, sent);
                if let (StoreBug::HandOverKeepsToken, Some(token)) = (self.bug, lease.token) {
                    grant.token = token;
                }
                HandOver::Done(grant)
            }
            other => other,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.inner.inspect(&self.stored_name(name)).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.inner
            .force_release(&self.stored_name(name), expected)
            .await
    }
}

#[async_trait]
impl AroundAttempts for BuggyLock {
    async fn around(
        &self,
        request: &AcquireRequest,
        attempt: BoxFuture<'_, Result<Attempt<Grant>>>,
    ) -> Result<Attempt<Grant>> {
        let sent = SystemClock.now();
        self.act_before_request(request).await?;
        self.change_answer(request, sent, attempt.await?).await
    }
}
