//! The contract between the client engine and a backend.
//!
//! This module owns the trait [`DistLock`], the trait [`Contender`], and the requests and answers
//! that cross them. A backend supplies the requests to its store, their answers and the
//! capabilities of the store. The engine in this crate owns time, pauses between polls, renewal,
//! retries, the local queue and loss. The engine is written once, so the semantics of a lock cannot
//! differ by backend.
//!
//! Invariant: every answer is a fact that the store established in one atomic step. No type of this
//! module may wait, retry or read a clock.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    clock::Moment,
    contract::{capabilities::Capabilities, loss::LossFeed},
    types::{
        error::{Error, ErrorKind, Result},
        ident::{HolderInfo, HolderLabel, Meta, OwnerId},
        name::LockName,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// A store that decides who holds a lock.
///
/// Each operation on a lock has one of three results. The operation happened: `Ok` with a positive
/// answer. The operation did not happen: `Ok` with a negative answer, or an error for which
/// [`Error::did_not_happen`] is true. The operation may have happened:
/// [`ErrorKind::OutcomeUnknown`], because the request was sent and its answer was lost. A backend
/// must never turn an unknown outcome into one of the other two: the engine would leave a granted
/// lock behind, or would treat a lock as held that another owner may hold.
///
/// # Rules for every backend
///
/// - The store compares the owner, and the nonce of a ticket ([`Lease::nonce`]), in the same atomic
///   step that changes the lock. If a backend reads, compares the owner in its own process and then
///   writes, another owner can take the lock between the read and the write.
/// - The store's clock decides when a lease has ended. An expired lock counts as free in every
///   operation, also while its stored row or key still exists.
/// - The token of a grant is higher than every earlier token of its lock name, also after a
///   release, after an expiry and after a restart of the store. [`FencingToken::hybrid`] is the
///   rule for a store whose counter may be lost.
/// - A duration in an answer (`valid_for`) is counted from the moment the request was sent. The
///   store must keep the lease at least that long.
/// - A stored value that cannot be read is [`ErrorKind::Corrupt`] and never "free".
/// - A process that knows the id of an owner can renew and release its lock. So the id must not
///   appear in an error, a log or an answer to [`DistLock::inspect`].
/// - Names are compared byte for byte. A store that folds, trims or splits names needs an encoding,
///   such as [`encode`](crate::encode).
/// - No method waits for a lock to become free. Each method ends within the backend's request
///   timeout, also when the store hangs.
///
/// A backend is finished when the conformance suite passes with the [`Capabilities`] that it
/// declares.
///
/// # Cancel safety
/// A drop of a future of this trait may leave its operation running at the store. So the engine
/// drops no such future while its operation is in flight and may have been granted: when a caller
/// goes away, the engine lets the future finish in the background and then undoes the operation.
///
/// [`Error::did_not_happen`]: crate::Error::did_not_happen
/// [`ErrorKind::Corrupt`]: crate::ErrorKind::Corrupt
/// [`ErrorKind::OutcomeUnknown`]: crate::ErrorKind::OutcomeUnknown
#[async_trait]
pub trait DistLock: fmt::Debug + Send + Sync + 'static {
    /// The facts about this store. The engine, the conformance suite, the command line and the
    /// report read them.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a second handle on the same store. The connections of the new handle belong to the
    /// calling runtime.
    ///
    /// The engine calls this method on its keeper thread and uses the handle for renewals,
    /// background releases and clean-up. If those requests used a connection of the user's runtime,
    /// a blocked runtime would stop the renewals, and the lease would end.
    ///
    /// # Errors
    /// Those of connecting to the store.
    async fn reopen(&self) -> Result<std::sync::Arc<dyn DistLock>>;

    /// Tries once to take the lock.
    ///
    /// - The lock is free, or its lease has expired: the request's owner gets it, with a new token.
    /// - The request's owner holds it already: the answer is the same token, and the TTL starts
    ///   again in the same step. So a repeated request recognises a grant whose answer was lost.
    /// - Another owner holds it: the answer is [`Attempt::Busy`], and nothing changes.
    ///
    /// # Errors
    /// Only failures of the store. A lock that somebody else holds is [`Attempt::Busy`], not an
    /// error.
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>>;

    /// Prepares a wait: joins the store queue, or subscribes to the store's notifications.
    ///
    /// The engine makes an attempt after this call and before it waits. Otherwise a release between
    /// the last attempt and the subscription would be missed, and the waiter would sleep until its
    /// next poll.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>>;

    /// Extends a lease that its owner still holds and that has not expired by the store's clock.
    ///
    /// A renewal must never create a lock or revive an expired lock. The request may reach the
    /// store late, after another owner has held and released the lock. If the renewal recreated the
    /// lock then, the store would hold the lock for an owner that has already reported the lock as
    /// lost.
    ///
    /// # Errors
    /// Only failures of the store. A lease that its owner no longer holds is [`Renewed::NotHeld`].
    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed>;

    /// Frees the lock if the lease's owner holds it. The call is idempotent: the engine repeats a
    /// release whose answer was lost.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome>;

    /// Passes a held lock to the next owner in one step that compares the present owner. The new
    /// token is higher. `next` is a request for the lock of the lease: the caller sees to it that
    /// the two names are the same.
    ///
    /// # Errors
    /// Only failures of the store. After
    /// [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) the next owner sends its
    /// request with [`DistLock::try_acquire`], which recognises a hand-over that has happened.
    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver>;

    /// Reads the state of one lock, without changing it.
    ///
    /// # Errors
    /// Only failures of the store, and [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
    async fn inspect(&self, name: &LockName) -> Result<LockInfo>;

    /// Lists the held locks whose names start with `prefix`, in byte order of their names. The list
    /// starts with the first name after `after` and has `limit` locks at most.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>>;

    /// Frees a lock of any owner, if its token is still `expected`. The token protects a lock that
    /// was granted again after the operator had looked at it.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced>;

    /// Connects, asks for the server's version, and checks every setting of the server that a
    /// promise of this library depends on.
    ///
    /// # Errors
    /// Only when the store does not answer at all. A setting that these credentials may not read is
    /// a finding with [`Verdict::Unknown`].
    async fn health(&self) -> Result<Health>;

    /// The number of statements, commands or requests that this opened store has sent so far,
    /// including those of waiting contenders. All handles of one opened store share the number: the
    /// first handle, and every handle that [`reopen`](Self::reopen) made from a handle of this
    /// store. Another opened store of this process has its own number. The metric
    /// `distlock_store_requests_total` is the sum over all of them. `None`: this backend has no
    /// server or file, or it counts as the store that it uses.
    fn requests_sent(&self) -> Option<u64> {
        None
    }

    /// Closes the connections and stops the background tasks. The call is idempotent.
    ///
    /// Afterwards every operation of this handle, and [`Contender::attempt`] of its contenders,
    /// answers [`ErrorKind::Closed`](crate::ErrorKind::Closed) and sends nothing to the store (see
    /// `OpenFlag` of the backend kit). Other handles on the same store keep working, also handles
    /// that were reopened from this one.
    async fn close(&self);
}

/// One waiter at the store, with its entry in the store queue or its subscription.
///
/// A contender may be dropped at any time, also without a call of [`Contender::leave`]. The engine
/// calls [`Contender::leave`] when a wait ends without a grant. When the caller goes away, the
/// engine moves the contender to the keeper thread and calls [`Contender::leave`] there.
#[async_trait]
pub trait Contender: Send {
    /// Tries once to take the lock, with the same owner each time. The attempt also succeeds if an
    /// earlier attempt of this owner was granted and its answer was lost.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn attempt(&mut self) -> Result<Attempt<Grant>>;

    /// Tries once to take the lock for another owner, with this contender's queue entry. TTL, label
    /// and meta text are those of the request that joined the queue. A grant uses the entry up, and
    /// the next wait joins again.
    ///
    /// The engine makes no such attempt. A backend over several stores makes it: it waits at one of
    /// them, and asks all of them under a new owner each time. A store may reserve a free lock for
    /// the first entry of its queue. There, a plain attempt of the new owner would be refused
    /// because of the entry of its own contender.
    ///
    /// # Errors
    /// Failures of the store; and [`ErrorKind::Unsupported`] where the queue entry is what holds
    /// the lock, so it has one owner for ever. These are the stores with
    /// [`LeaseKind::Session`](crate::LeaseKind::Session).
    ///
    /// # Cancel safety
    /// As for [`DistLock`]: a drop may leave the attempt running at the store, so `owner` may get
    /// the lock afterwards. A caller that goes away lets the attempt finish and then releases for
    /// `owner`.
    ///
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>>;

    /// Whether an attempt can succeed now, because no other contender is ahead in the store queue.
    /// The engine makes no attempt for a contender that is not first, except to find out what
    /// became of an attempt without an answer.
    ///
    /// Returns `true` for every contender of a store that keeps no queue, or that itself orders the
    /// attempts. A wrapper around a contender must return the inner contender's answer.
    fn is_first(&self) -> bool;

    /// Waits for a reason to make another attempt, for `at_most` at most. Reasons are a
    /// notification, the time of the next poll, and the first position in the store queue.
    ///
    /// # Cancel safety
    /// Safe. A wake-up that arrives while no call is waiting is kept for the next call.
    async fn wait(&mut self, at_most: Duration);

    /// Removes the queue entry or the subscription. A lock that was granted stays held. The call is
    /// idempotent.
    ///
    /// # Errors
    /// Failures of the store. The call consumes the contender, so the engine cannot repeat it. A
    /// backend repeats the request itself if an entry that stays would block the queue.
    async fn leave(self: Box<Self>) -> Result<()>;
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// The owner that asks. Every retry of one acquisition has the same owner.
    pub owner: OwnerId,
    /// The requested TTL.
    pub ttl: Ttl,
    /// The holder's label, for people.
    pub holder: HolderLabel,
    /// Free text that the store keeps beside the lock.
    pub meta: Option<Meta>,
    /// Whether the contender of this request passes nobody: while the store keeps no queue entry
    /// for it, it is not [first](Contender::is_first). Other contenders then act as if there were
    /// no queue.
    pub in_order: bool,
}

impl AcquireRequest {
    /// A request without meta text.
    #[must_use]
    pub const fn new(name: LockName, owner: OwnerId, ttl: Ttl, holder: HolderLabel) -> Self {
        Self {
            name,
            owner,
            ttl,
            holder,
            meta: None,
            in_order: false,
        }
    }
}

/// The answer to one attempt.
#[derive(Debug)]
pub enum Attempt<T> {
    /// The owner of the request holds the lock.
    Acquired(T),
    /// Another owner holds the lock, or another contender is ahead in the store queue. The value
    /// describes the holder, if the store knows the holder.
    Busy(Option<HolderInfo>),
}

impl<T> Attempt<T> {
    /// Converts the acquired value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Acquired(value) => Attempt::Acquired(f(value)),
            Self::Busy(holder) => Attempt::Busy(holder),
        }
    }

    /// The acquired value; `None` when the lock was busy.
    pub fn acquired(self) -> Option<T> {
        match self {
            Self::Acquired(value) => Some(value),
            Self::Busy(_) => None,
        }
    }
}

/// A granted lock, as the store reports it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token, which is higher than every earlier token of this lock name.
    pub token: FencingToken,
    /// The store's history that the token belongs to.
    pub epoch: Epoch,
    /// The owner that holds the lock, if it is another owner than that of the request. The lease,
    /// its renewals and its release go on under this owner. A backend that grants in rounds sets
    /// this field, because each round has an owner of its own.
    ///
    /// The engine learns this owner only from an answer. After an attempt without an answer, the
    /// engine asks again or releases as the owner of the request. So a backend that sets this field
    /// undoes such an attempt itself, under its own owners, also when the engine drops the future.
    pub owner: Option<OwnerId>,
    /// The duration of the lease, counted from the moment at which the granting request was sent.
    pub valid_for: Duration,
    /// The last moment at which the answering server was known to be the one that decides about
    /// locks, in a store where another server can take over that role. The engine counts
    /// `valid_for` from this moment if it is earlier than the sending. `None`: no other server can
    /// take over.
    pub counts_from: Option<Moment>,
    /// The feed of the store's notifications about this lease.
    pub loss: LossFeed,
    /// After a hand-over: whether other contenders wait at the store. `None`: the store does not
    /// know. While no other contender waits, hand-overs inside one process delay nobody, so the
    /// engine does not limit their number.
    pub others_waiting: Option<bool>,
}

impl Grant {
    /// A grant to the owner of the request, for which the store sends no notification of a loss.
    #[must_use]
    pub const fn new(token: FencingToken, epoch: Epoch, valid_for: Duration) -> Self {
        Self {
            token,
            epoch,
            owner: None,
            valid_for,
            counts_from: None,
            loss: LossFeed::silent(),
            others_waiting: None,
        }
    }

    /// The owner that holds the lock after this request was granted.
    #[must_use]
    pub fn owner_after(&self, request: &AcquireRequest) -> OwnerId {
        self.owner.unwrap_or(request.owner)
    }

    /// The moment from which the lease is counted, if the request was sent at `sent`.
    pub(crate) fn counted_from(&self, sent: Moment) -> Moment {
        self.counts_from.map_or(sent, |from| from.min(sent))
    }
}

/// The identity of a held lock at the store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Lease {
    /// The lock.
    pub name: LockName,
    /// The owner that the store compares.
    pub owner: OwnerId,
    /// The token of the grant. `None`: the answer to the acquire was never received.
    pub token: Option<FencingToken>,
    /// The nonce of the ticket through which the caller uses the lock; `None` for the lease of a
    /// guard. The store compares it like the owner: the lease holds the lock only while this nonce
    /// is stored beside the lock. Only a renewal and a release get a lease with a nonce, and always
    /// with its token.
    pub nonce: Option<Uuid>,
}

impl Lease {
    /// A lease of this owner, with its token if the token is known, and without a ticket.
    #[must_use]
    pub const fn new(name: LockName, owner: OwnerId, token: Option<FencingToken>) -> Self {
        Self {
            name,
            owner,
            token,
            nonce: None,
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The nonce is a secret, because it redeems the ticket.
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("owner", &self.owner)
            .field("token", &self.token)
            .field("has_nonce", &self.nonce.is_some())
            .finish()
    }
}

/// The parameters of a renewal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The new TTL, counted from the moment at which the store executes the renewal.
    pub ttl: Ttl,
    /// The change to the lock's ticket, made in the same step.
    pub ticket: TicketStep,
    /// If the lease holds the lock, the token of the lock and the counter of its name become at
    /// least this high, in the same step. So every later grant of the name has a higher token, also
    /// after a release and after an expiry, and also while the store's clock is below this number.
    /// A lower floor changes nothing. Only a store with [`Capabilities::token_floor`] accepts a
    /// floor.
    pub token_floor: Option<FencingToken>,
}

impl Renewal {
    /// A renewal that changes neither the ticket nor the token.
    #[must_use]
    pub const fn plain(ttl: Ttl) -> Self {
        Self {
            ttl,
            ticket: TicketStep::Keep,
            token_floor: None,
        }
    }

    /// A renewal that raises the token of the lock to at least `floor`.
    ///
    /// The lease of such a renewal should have no token. With a token, a renewal that is repeated
    /// after a lost answer would find the raised token, and would be answered as not held.
    #[must_use]
    pub const fn raising(ttl: Ttl, floor: FencingToken) -> Self {
        Self {
            ttl,
            ticket: TicketStep::Keep,
            token_floor: Some(floor),
        }
    }

    /// Checks that a store with these capabilities can do this renewal. A backend without
    /// [`Capabilities::token_floor`] calls this method before each renewal: a floor that is ignored
    /// would let a later grant have a lower token.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a floor without [`Capabilities::token_floor`].
    pub fn check_floor(&self, capabilities: &Capabilities) -> Result<()> {
        if self.token_floor.is_none() || capabilities.token_floor {
            return Ok(());
        }
        let backend = capabilities.backend;
        let problem = format!("{backend} cannot raise the token of a lock");
        Err(Error::new(ErrorKind::Unsupported, problem).on(backend))
    }
}

/// The change that a renewal makes to the lock's ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TicketStep {
    /// The ticket stays as it is.
    Keep,
    /// Writes this random value (nonce) beside the lock, and replaces an earlier nonce.
    Issue(Uuid),
    /// Removes the nonce. The lease has the nonce ([`Lease::nonce`]), so one ticket can be redeemed
    /// only once.
    Redeem,
}

impl fmt::Debug for TicketStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "Keep",
            Self::Issue(_) => "Issue(***)",
            Self::Redeem => "Redeem",
        })
    }
}

/// The answer to a renewal.
#[derive(Debug)]
pub enum Renewed {
    /// The owner still holds the lock, and the lease is extended.
    Extended {
        /// The duration of the lease, counted from the moment at which the renewal was sent.
        valid_for: Duration,
        /// The store's present history. If the epoch has changed while the lock is still held, the
        /// engine logs the change; that is not a loss.
        epoch: Epoch,
        /// The token that is stored beside the lock: the raised token after a renewal with a
        /// [floor](Renewal::token_floor). After a redeemed ticket, this is the token of the guard
        /// that issued the ticket.
        token: FencingToken,
        /// The feed of the store's notifications about this lease.
        loss: LossFeed,
    },
    /// The owner no longer holds the lock, for this reason. Nothing changed.
    NotHeld(LossReason),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The owner held the lock, and it is free now.
    Released {
        /// Whether other contenders wait at the store. `None`: the store does not know. After a run
        /// of hand-overs inside one process, the engine lets other processes go first once, unless
        /// the value is `Some(false)`.
        others_waiting: Option<bool>,
    },
    /// The owner did not hold the lock. Nothing changed.
    NotHeld,
}

/// The answer to a hand-over.
#[derive(Debug)]
pub enum HandOver {
    /// The next owner holds the lock.
    Done(Grant),
    /// The owner did not hold the lock. Nothing changed.
    NotHeld(LossReason),
    /// This store has no hand-over. The engine releases the lock, and the next owner makes an
    /// attempt.
    Unsupported,
}

/// The answer to a forced release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// The lock was held with that token, and it is free now.
    Released,
    /// The lock was free already.
    NotHeld,
    /// The lock is held with another token, and nothing changed.
    OtherToken(FencingToken),
}

/// The state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// The holder. `None`: the lock is free.
    pub held: Option<HolderInfo>,
    /// The last token that the store granted for this name, if it is known.
    pub last_token: Option<FencingToken>,
    /// The store's present history.
    pub epoch: Option<Epoch>,
    /// The number of contenders in the store queue. `None`: the store keeps no queue (its waiters
    /// poll), its queue cannot be read, or the request was for a list. A contender stands for all
    /// waiters of its process, and the waiters of the holder's own process are not in the queue.
    pub waiters: Option<u32>,
    /// The first contenders of the store queue, in the order of the queue. The list is filled if
    /// the store keeps a queue and the request was for one lock. A contender has the label of the
    /// holder that it would be, and no grant. Its meta text is known only where the store keeps
    /// it (ZooKeeper).
    pub queue: Vec<HolderInfo>,
}

impl LockInfo {
    /// A free lock, with nothing else known about it.
    #[must_use]
    pub const fn free(name: LockName) -> Self {
        Self {
            name,
            held: None,
            last_token: None,
            epoch: None,
            waiters: None,
            queue: Vec::new(),
        }
    }

    /// A held lock.
    #[must_use]
    pub fn held(name: LockName, holder: HolderInfo) -> Self {
        let last_token = holder.token;
        Self {
            held: Some(holder),
            last_token,
            ..Self::free(name)
        }
    }
}

/// The reason of a loss. A guard keeps the first reason that is reported to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed without a renewal: the process was paused, or the caller renews manually
    /// and did not renew in time.
    Expired,
    /// An operator force-released the lock. Only a store that records forced releases can report
    /// this reason ([`Capabilities::tells_force_release`]). With another store the reason is
    /// [`LossReason::Removed`]. Once another owner holds the lock, the reason is
    /// [`LossReason::TakenOver`].
    ForceReleased,
    /// The store's history changed, and the new history does not have the lock.
    HistoryChanged,
    /// The name belongs to another store of the ring now, which may grant the lock once the lease
    /// has ended.
    Moved,
    /// The lock was deleted by hand, or was force-released in a store that does not record forced
    /// releases.
    Removed,
    /// The session with the store ended.
    SessionLost,
    /// Another owner holds the lock.
    TakenOver,
    /// The store could not be reached in time to renew the lease.
    Unreachable,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease expired",
            Self::ForceReleased => "it was force-released",
            Self::HistoryChanged => "the store lost its history",
            Self::Moved => "its name moved to another member of the ring",
            Self::Removed => "it was removed from the store",
            Self::SessionLost => "the session with the store ended",
            Self::TakenOver => "somebody else took it over",
            Self::Unreachable => "the store could not be reached to renew it",
        })
    }
}

/// The result of [`DistLock::health`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Product and version, for example `SQLite 3.50.4` or `Redis 7.0.15`.
    pub server: String,
    /// The store's present history.
    pub epoch: Option<Epoch>,
    /// One finding for each setting that was checked.
    pub findings: Vec<Finding>,
}

impl Health {
    /// A server without findings yet.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            epoch: None,
            findings: Vec::new(),
        }
    }

    /// Adds a finding.
    pub fn found(&mut self, check: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.findings.push(Finding {
            check,
            verdict,
            detail: detail.into(),
            may_forget: false,
            loses: Duration::ZERO,
        });
    }

    /// Adds a finding with [`Finding::loses`].
    pub fn loses(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        time: Duration,
    ) {
        self.found(check, verdict, detail);
        if let Some(finding) = self.findings.last_mut() {
            finding.loses = time;
        }
    }

    /// Adds a finding with [`Finding::may_forget`].
    pub fn may_forget(&mut self, check: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.found(check, verdict, detail);
        if let Some(finding) = self.findings.last_mut() {
            finding.may_forget = true;
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The name of the checked setting, for example `journal mode`.
    pub check: &'static str,
    /// The verdict on the setting.
    pub verdict: Verdict,
    /// The value that was found, and the remedy where the verdict is not [`Verdict::Pass`].
    pub detail: String,
    /// Whether, because of this setting, a crash or a lack of memory may take back locks that the
    /// store has granted, and the store's epoch stays the same.
    pub may_forget: bool,
    /// How long before a crash a write may have been acknowledged and be lost all the same, in a
    /// store whose epoch changes then. Zero if no such write is lost; [`Duration::MAX`] if any may
    /// be.
    #[serde(skip)]
    pub loses: Duration,
}

/// The verdict of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The setting is as it must be.
    Pass,
    /// These credentials may not read the setting.
    Unknown,
    /// A promise is weaker than it could be.
    Warn,
    /// A promise does not hold.
    Fail,
}
