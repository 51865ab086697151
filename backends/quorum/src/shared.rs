//! What all handles on one opened quorum use: its members, its agreement and its leases.
//!
//! This module sends single requests to members. Invariant: no request to one member keeps a
//! request to another waiting.

use std::{
    cmp::Reverse,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use distlock_backend_kit::{Member, MemberHandle, Members};
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Entry, Epoch, Error, ErrorKind, FencingToken,
    Forced, Grant, Lease, LockInfo, LockName, Moment, ReleaseOutcome, Renewal, Renewed, Result,
    Ttl, at_most,
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use uuid::Uuid;

use crate::{
    leases::Leases,
    marker::{self, Agreement, Marker, Standing, clock_limit},
    reads::MarkerReads,
    wait::Place,
};

/// The name of the backend in messages.
pub(crate) const NAME: &str = "quorum";

/// The shortest and the longest pause between two tries to release a lock at one member.
const RELEASE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The time after which a request whose answer was lost no longer arrives at its member: clients
/// give up a connection without answers after some seconds.
const LATEST_ARRIVAL: Duration = Duration::from_secs(30);

/// The longest time that an inspection, or an opening with a majority, waits for a member.
pub(crate) const LATE: Duration = Duration::from_secs(1);

/// Starts a task that goes on when its caller does not. A simulation passes its own.
pub(crate) type Spawn = Arc<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

/// One handle on a quorum.
pub(crate) struct Shared {
    pub(crate) members: Members,
    /// For each member.
    pub(crate) reads: Vec<MarkerReads>,
    pub(crate) agreement: Agreement,
    pub(crate) digest: Uuid,
    pub(crate) quorum: Uuid,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    /// The leases that this process holds. All handles share them.
    pub(crate) leases: Arc<Leases>,
    /// Whether a task admits members again.
    pub(crate) admitting: AtomicBool,
    pub(crate) spawn: Spawn,
}

impl Shared {
    pub(crate) fn majority(&self) -> usize {
        self.members.all().len() / 2 + 1
    }

    pub(crate) fn member(&self, at: usize) -> &Arc<Member> {
        &self.members.all()[at]
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch::new(self.quorum.to_string())
    }

    /// The TTL that the members are asked for: no member may hold a lease for longer than the
    /// agreed time, because a member that forgot is silent for that time only.
    pub(crate) fn capped(&self, ttl: Ttl) -> Ttl {
        Ttl::new(self.agreement.max_lease).map_or(ttl, |most| ttl.min(most))
    }

    /// Sends one request to one member.
    async fn ask<T>(
        &self,
        at: usize,
        request: impl AsyncFnOnce(MemberHandle) -> Result<T>,
    ) -> Result<T> {
        let member = self.member(at);
        let begun = member.begin().or_else(|error| {
            // While most members are slow, as when this machine stands still for a moment, leaving
            // them out would fail what a single store would do late.
            let answer = |member: &&Arc<Member>| member.answers();
            if self.members.all().iter().filter(answer).count() < self.majority() {
                member.begin_although_silent()
            } else {
                Err(error)
            }
        });
        let (handle, sent) = begun?;
        sent.ended(request(handle).await)
    }

    /// Asks one member for the lock, with the place of a waiter where it is at this member.
    pub(crate) async fn try_acquire(
        &self,
        at: usize,
        request: &AcquireRequest,
        place: Option<&Place>,
    ) -> Result<Attempt<Grant>> {
        // An earlier round may still wait for its answer at this place.
        let place = place.filter(|place| place.at == at);
        let mut in_use = place.and_then(|place| place.contender.try_lock().ok());
        let contender = in_use.as_mut().and_then(|it| it.as_mut());
        self.ask(at, async |to| match contender {
            // A member may reserve a free lock for the first in its queue. Without the place, the
            // waiter would be refused because of its own entry.
            Some(contender) => contender.attempt_as(request.owner).await,
            None => to.lock.try_acquire(request).await,
        })
        .await
    }

    pub(crate) async fn renew(
        &self,
        at: usize,
        lease: &Lease,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        self.ask(at, async |to| to.lock.renew(lease, renewal).await)
            .await
    }

    pub(crate) async fn release(&self, at: usize, lease: &Lease) -> Result<ReleaseOutcome> {
        self.ask(at, async |to| to.lock.release(lease).await).await
    }

    /// Reads a member's marker as it is stored.
    pub(crate) async fn marker(&self, at: usize) -> Result<Option<Entry>> {
        let key = Marker::key()?;
        self.ask(at, async |to| to.records.get(&key).await).await
    }

    /// Reads what a member's marker says. `epoch` is that of a grant which the member answered
    /// before.
    pub(crate) async fn standing(self: &Arc<Self>, at: usize, epoch: &Epoch) -> Result<Standing> {
        let member = self.member(at);
        let marked = self.reads[at].read(self, at).await?;
        let (marked, name) = (marked.as_deref(), member.name());
        marker::standing(marked, self.quorum, self.digest, name, epoch)
            .map_err(|error| member.of_this(error))
    }

    /// Whether a member's marker still is one of this quorum. Its age does not matter: a member
    /// that answers a renewal of its owner has not forgotten the lease.
    pub(crate) async fn is_ours(self: &Arc<Self>, at: usize) -> Result<bool> {
        let marked = self.reads[at].read(self, at).await?;
        let (quorum, digest, name) = (self.quorum, self.digest, self.member(at).name());
        Ok(marked.is_some_and(|it| it.marker.is_of(quorum, digest, name).is_ok()))
    }

    /// Releases a lock at one member, again and again until the member has answered or the lease
    /// has ended there. `may_arrive` says that a grant whose answer was lost may reach the member
    /// after this release: then that nothing is held proves nothing for a while.
    pub(crate) async fn release_until(
        &self,
        at: usize,
        lease: &Lease,
        until: Moment,
        may_arrive: bool,
    ) {
        let (mut pause, longest) = RELEASE_PAUSES;
        let mut late = self.clock.now();
        if may_arrive {
            late = late + LATEST_ARRIVAL;
        }
        loop {
            let until = match self.release(at, lease).await {
                Ok(ReleaseOutcome::Released { .. }) => return,
                Ok(ReleaseOutcome::NotHeld) => until.min(late),
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(error) => {
                    let (lock, member) = (&lease.name, self.member(at).name());
                    let said = "a lease is not released at a member yet: it is tried again, and \
                                the lease ends there by itself at the latest";
                    tracing::debug!(?lock, member, %error, "{said}");
                    until
                }
            };
            if self.clock.now() + pause >= until {
                return;
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    pub(crate) async fn inspect(&self, at: usize, name: &LockName) -> Result<LockInfo> {
        self.ask(at, async |to| to.lock.inspect(name).await).await
    }

    pub(crate) async fn list(
        &self,
        at: usize,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.ask(at, async |to| to.lock.list(prefix, after, limit).await)
            .await
    }

    pub(crate) async fn force_release(
        &self,
        at: usize,
        name: &LockName,
        expected: FencingToken,
    ) -> Result<Forced> {
        self.ask(at, async |to| to.lock.force_release(name, expected).await)
            .await
    }

    /// The token of the lease, from the tokens that the members tell; `answered` is the number of
    /// members that answered at all. A majority has the token of the lease, but a member that did
    /// not answer may be one of it.
    ///
    /// The other members granted after the round was decided. A lower token is raised to that of
    /// the lease a moment later, and a higher one stays. So of tokens that equally many members
    /// tell, the lowest is that of the lease.
    pub(crate) fn of_lease(&self, told: &[FencingToken], answered: usize) -> Option<FencingToken> {
        let away = self.members.all().len() - answered;
        if told.len() + away < self.majority() {
            return None;
        }
        let count = |token| told.iter().filter(|&&it| it == token).count();
        let order = |&token: &FencingToken| (count(token), Reverse(token));
        told.iter().copied().max_by_key(order)
    }

    /// The last token of a free lock: the one that a majority tells. A late grant that was undone
    /// leaves its token on a member, and some stores tell no token of a free lock, so what fewer
    /// members tell may never have been a lease's.
    pub(crate) fn last_of(&self, told: &[FencingToken]) -> Option<FencingToken> {
        let count = |token| told.iter().filter(|&&it| it == token).count();
        let agreed = |&token: &FencingToken| count(token) >= self.majority();
        told.iter().copied().find(agreed)
    }

    /// The answers of all members that answer within [`LATE`], and of a majority if that takes
    /// longer.
    ///
    /// # Errors
    /// The error of a member when no majority answered.
    pub(crate) async fn of_majority<T>(
        &self,
        asked: impl Iterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<Vec<T>> {
        let late = self.clock.now() + LATE;
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut told, mut failed) = (Vec::new(), None);
        loop {
            let next = if told.len() < self.majority() {
                asked.next().await
            } else {
                let left = late.since(self.clock.now());
                at_most(&*self.clock, left, asked.next()).await.flatten()
            };
            match next {
                Some(Ok(answer)) => told.push(answer),
                Some(Err(error)) => failed = Some(error),
                None => break,
            }
        }
        if told.len() >= self.majority() {
            return Ok(told);
        }
        Err(self.no_majority(failed, false))
    }

    /// What two clocks cost that are far from each other, and what to do.
    pub(crate) fn clocks_apart(&self, behind: usize, ahead: usize, by: Duration) -> String {
        format!(
            "the clock of member {:?} is {:.1} s ahead of that of member {:?}, and members that \
             vote together may be {:?} apart (a quarter of max_lease): set the clock that is wrong",
            self.member(ahead).name(),
            by.as_secs_f64(),
            self.member(behind).name(),
            clock_limit(self.agreement.max_lease)
        )
    }

    /// The error of an operation that a majority of the members did not answer.
    pub(crate) fn no_majority(&self, cause: Option<Error>, unknown: bool) -> Error {
        let kind = if unknown {
            ErrorKind::OutcomeUnknown
        } else {
            ErrorKind::Unavailable
        };
        let error = Error::new(kind, "too few members of the quorum answer").on(NAME);
        match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}
