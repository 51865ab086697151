//! The contract between the client engine and a backend.
//!
//! This module owns the trait [`DistLock`], the trait [`Contender`], and the requests and answers
//! that cross them. A backend supplies the mechanism and the facts about its store. The engine in
//! this crate owns time, pauses between polls, renewal, retries, the local queue and loss. The
//! engine is written once, so the semantics of a lock cannot differ by backend.
//!
//! Invariant: every answer is a fact that the store established in one atomic step. No type of this
//! module waits, retries or reads a clock, and none may start to.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    contract::{capabilities::Capabilities, loss::LossFeed},
    engine::clock::Moment,
    types::{
        error::Result,
        ident::{HolderLabel, Meta, OwnerId},
        name::LockName,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// A store that arbitrates locks.
///
/// Each operation on a lock has one of three results. It happened: `Ok` with a positive answer. It
/// did not happen: `Ok` with a negative answer, or an error for which [`Error::did_not_happen`] is
/// true. It may have happened: [`ErrorKind::OutcomeUnknown`], because the request was sent and its
/// answer was lost. A backend must never turn an unknown outcome into one of the other two: the
/// engine would leave a granted lock behind, or believe in a lock that it does not hold.
///
/// # Rules for every backend
///
/// - The store compares the owner in the same atomic step that changes the lock. A backend that
///   reads, compares here and then writes lets another owner in between the read and the write.
/// - A lease ends by the store's clock. An expired lock counts as free in every operation, whether
///   or not its stored form was reaped.
/// - The token of a grant is higher than every earlier token of its lock name, also after a
///   release, an expiry and a restart of the store. [`FencingToken::hybrid`] is the rule for a
///   store whose counter may be lost.
/// - A duration in an answer (`valid_for`) is counted from the moment the request was sent. The
///   store must keep the lease at least that long.
/// - A stored value that cannot be read is [`ErrorKind::Corrupt`] and never "free".
/// - An owner's id is the right to renew and release. It must not appear in an error, a log or an
///   answer to [`DistLock::inspect`].
/// - Names are compared byte for byte. A store that folds, trims or splits names needs an encoding,
///   such as [`encode`](crate::encode).
/// - No method waits for a lock to become free. Each method ends within the backend's request
///   timeout, also when the store hangs.
///
/// A backend is finished when the conformance suite passes with the [`Capabilities`] that it
/// declares.
///
/// # Cancel safety
/// Dropping a future of this trait may leave its operation running at the store. So the engine
/// never just drops one. When a caller goes away, the engine lets the future finish in the
/// background and then undoes the operation.
///
/// [`Error::did_not_happen`]: crate::Error::did_not_happen
/// [`ErrorKind::Corrupt`]: crate::ErrorKind::Corrupt
/// [`ErrorKind::OutcomeUnknown`]: crate::ErrorKind::OutcomeUnknown
#[async_trait]
pub trait DistLock: fmt::Debug + Send + Sync + 'static {
    /// The facts about this store. The engine, the conformance suite, the command line and the
    /// report read them.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a second handle on the same store. Its connections belong to the calling runtime.
    ///
    /// The engine calls this method on its keeper thread and uses the handle for renewals,
    /// background releases and clean-up. If those used a connection of the user's runtime, a
    /// blocked runtime would stop the renewals and the lease would end.
    ///
    /// # Errors
    /// Those of connecting to the store.
    async fn reopen(&self) -> Result<std::sync::Arc<dyn DistLock>>;

    /// Tries once to take the lock.
    ///
    /// - The lock is free, or its lease has expired: the request's owner gets it, with a new token.
    /// - The request's owner holds it already: the answer is the same token, and the TTL starts
    ///   again in the same step. This is how a repeated request recognises a grant whose answer was
    ///   lost.
    /// - Another owner holds it: the answer is [`Attempt::Busy`], and nothing changes.
    ///
    /// # Errors
    /// Only failures of the store. A lock that somebody else holds is [`Attempt::Busy`], not an
    /// error.
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>>;

    /// Prepares a wait: joins the store queue, or subscribes to the store's notifications.
    ///
    /// The engine calls it before the first attempt of a wait. In the other order, a release
    /// between the attempt and the subscription would be missed, and the waiter would sleep until
    /// its next poll.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>>;

    /// Extends a lease that its owner still holds and that has not expired by the store's clock.
    ///
    /// It never creates a lock and never revives an expired one. A renewal may reach the store
    /// late, after another owner has held and released the lock. If it recreated the lock then, its
    /// owner would hold a lock that it has given up as lost.
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
    /// token is higher.
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

    /// Lists the held locks whose names start with `prefix`, in byte order of their names. It
    /// starts behind the name `after` and gives `limit` locks at most.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>>;

    /// Frees a lock of any owner, if its token is still `expected`. The token keeps an operator
    /// from freeing a lock that was granted again after the operator looked at it.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced>;

    /// Connects, asks for the server's version, and checks every setting of the server that a
    /// promise rests on.
    ///
    /// # Errors
    /// Only when the store cannot be asked at all. A setting that may not be read is a finding with
    /// [`Verdict::Unknown`].
    async fn health(&self) -> Result<Health>;

    /// The number of statements, commands or requests that this opened store has sent so far,
    /// waiting included. It counts this handle, the handle that it was reopened from, and all
    /// handles that were reopened from either. Another opened store of this process has its own
    /// count. Benchmarks and tests read it. `None`: this backend does not count.
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
/// calls that method when a wait ends without a grant. When the caller goes away, the engine moves
/// the contender to the keeper thread and calls the method there.
#[async_trait]
pub trait Contender: Send {
    /// Tries once to take the lock, as the same owner each time. It recognises a grant that an
    /// earlier attempt won without receiving the answer.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn attempt(&mut self) -> Result<Attempt<Grant>>;

    /// Whether an attempt can succeed now: no other contender is ahead in the store queue. The
    /// engine makes no attempt for a contender that is not first.
    ///
    /// A contender is always first where the store keeps no queue, or where the store itself orders
    /// the attempts. A wrapper around a contender must return the inner contender's answer.
    fn is_first(&self) -> bool;

    /// Waits for a reason to make another attempt, at most for `at_most`. Becoming the first in the
    /// store queue is a reason.
    ///
    /// # Cancel safety
    /// Safe. A wake-up that arrives while no call is waiting is kept for the next call.
    async fn wait(&mut self, at_most: Duration);

    /// Removes the queue entry or the subscription. It does not release a lock that was granted.
    /// The call is idempotent.
    ///
    /// # Errors
    /// Failures of the store. The engine then tries again.
    async fn leave(self: Box<Self>) -> Result<()>;
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// The owner that asks. It is the same on every retry of one acquisition.
    pub owner: OwnerId,
    /// The TTL that is asked for.
    pub ttl: Ttl,
    /// The holder's label, for people.
    pub holder: HolderLabel,
    /// Free text that the store keeps beside the lock.
    pub meta: Option<Meta>,
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
        }
    }
}

/// The answer to one attempt.
#[derive(Debug)]
pub enum Attempt<T> {
    /// The owner of the request holds the lock.
    Acquired(T),
    /// Another owner holds the lock, or another contender is ahead in the store queue. The value
    /// describes the holder, where the store can tell.
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
    /// Higher than every earlier token of this lock name.
    pub token: FencingToken,
    /// The store's history that the token belongs to.
    pub epoch: Epoch,
    /// How long the lease lasts, counted from the moment the granting request was sent.
    pub valid_for: Duration,
    /// The last moment at which the server was known to be the one that arbitrates, where another
    /// server can take its place. The engine counts `valid_for` from here if that is earlier than
    /// the sending. `None`: no other server can take its place.
    pub counts_from: Option<Moment>,
    /// The feed of the store's notifications about this lease.
    pub loss: LossFeed,
    /// After a hand-over: whether other contenders wait at the store. `None`: the store cannot
    /// tell. While none waits, a run of hand-overs inside one process delays nobody, so the engine
    /// continues it.
    pub others_waiting: Option<bool>,
}

impl Grant {
    /// A grant for which the store sends no notification of a loss.
    #[must_use]
    pub const fn new(token: FencingToken, epoch: Epoch, valid_for: Duration) -> Self {
        Self {
            token,
            epoch,
            valid_for,
            counts_from: None,
            loss: LossFeed::silent(),
            others_waiting: None,
        }
    }

    /// The moment from which the lease is counted, if the request was sent at `sent`.
    pub(crate) fn counted_from(&self, sent: Moment) -> Moment {
        self.counts_from.map_or(sent, |from| from.min(sent))
    }
}

/// The identity of a held lock at the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lease {
    /// The lock.
    pub name: LockName,
    /// The owner that the store compares.
    pub owner: OwnerId,
    /// Its token. `None`: the grant's answer was never received.
    pub token: Option<FencingToken>,
}

impl Lease {
    /// A lease of this owner, with its token where that is known.
    #[must_use]
    pub const fn new(name: LockName, owner: OwnerId, token: Option<FencingToken>) -> Self {
        Self { name, owner, token }
    }
}

/// The parameters of a renewal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The new TTL, counted from the moment the store executes the renewal.
    pub ttl: Ttl,
    /// The change to the lock's ticket, made in the same step.
    pub ticket: TicketStep,
}

impl Renewal {
    /// A renewal that leaves the ticket alone.
    #[must_use]
    pub const fn plain(ttl: Ttl) -> Self {
        Self {
            ttl,
            ticket: TicketStep::Keep,
        }
    }
}

/// The change that a renewal makes to the lock's ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TicketStep {
    /// The ticket stays as it is.
    Keep,
    /// Writes this nonce beside the lock and replaces an earlier nonce.
    Issue(Uuid),
    /// Renews only if this nonce is stored beside the lock, and removes the nonce. So one ticket
    /// can be redeemed once.
    Redeem(Uuid),
}

impl fmt::Debug for TicketStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "Keep",
            Self::Issue(_) => "Issue(***)",
            Self::Redeem(_) => "Redeem(***)",
        })
    }
}

/// The answer to a renewal.
#[derive(Debug)]
pub enum Renewed {
    /// The owner still holds the lock, and the lease is extended.
    Extended {
        /// How long the lease lasts, counted from the moment the renewal was sent.
        valid_for: Duration,
        /// The store's present history. An epoch that changed while the lock is still held is
        /// logged; it is not a loss.
        epoch: Epoch,
        /// The token that is stored beside the lock. For a redeemed ticket it is the token of the
        /// issuer.
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
        /// Whether other contenders wait at the store. `None`: the store cannot tell. After a run
        /// of hand-overs inside one process the engine leaves the lock to the others once if they
        /// wait.
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
    /// This store has no such step. The engine releases the lock, and the next owner makes an
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

/// The holder of a lock, as far as the store tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder's label, for people.
    pub holder: String,
    /// The free text of the acquire request.
    pub meta: Option<String>,
    /// The token of its grant.
    pub token: Option<FencingToken>,
    /// The time of the grant, by the store's wall clock. For display only.
    pub acquired_at: Option<SystemTime>,
    /// The rest of the lease, unless it is renewed.
    pub expires_in: Option<Duration>,
}

impl HolderInfo {
    /// A holder with only its label known.
    pub fn new(holder: impl Into<String>) -> Self {
        Self {
            holder: holder.into(),
            meta: None,
            token: None,
            acquired_at: None,
            expires_in: None,
        }
    }
}

/// The state of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// The holder. `None`: the lock is free.
    pub held: Option<HolderInfo>,
    /// The last token that the store granted for this name, where it is known.
    pub last_token: Option<FencingToken>,
    /// The store's present history.
    pub epoch: Option<Epoch>,
    /// The number of waiting contenders, where the store can tell.
    pub waiters: Option<u32>,
    /// The first contenders of the store queue, the next one first. It is filled where the store
    /// keeps a queue and one lock was asked for. A contender has the fields of a holder that has no
    /// grant yet.
    pub queue: Vec<HolderInfo>,
}

impl LockInfo {
    /// A free lock with nothing else known.
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

/// The reason of a loss. A guard keeps the first reason that it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed without a renewal: the process was paused, or the caller renews by hand.
    Expired,
    /// Somebody force-released the lock. Only a store that keeps a trace of a forced release can
    /// tell ([`Capabilities::tells_force_release`]). Elsewhere the reason is
    /// [`LossReason::Removed`]. Once another owner holds the lock, the reason is
    /// [`LossReason::TakenOver`].
    ForceReleased,
    /// The store's history changed, and the new history does not have the lock.
    HistoryChanged,
    /// The lock was deleted by hand, or force-released where the store cannot tell that.
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
    /// Product and version: `SQLite 3.50.4`, `Redis 7.0.15`.
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
        });
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Name of the checked setting: `journal mode`.
    pub check: &'static str,
    /// The verdict on the setting.
    pub verdict: Verdict,
    /// The value that was found, and the remedy where the verdict is not [`Verdict::Pass`].
    pub detail: String,
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
