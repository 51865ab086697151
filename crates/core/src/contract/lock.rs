//! What a backend supplies: mechanism and facts. Time, waiting policy, renewal, retry, queueing and loss live in this
//! crate, written once, so that semantics cannot differ by backend.

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
/// Every method answers one of three: it happened, it did not happen, or [`ErrorKind::OutcomeUnknown`] when the reply was
/// lost. All comparisons of the owner happen inside the store, in the same atomic step as the change. No method waits for a
/// lock to become free, and each ends within a bound of the backend's own (its request timeout).
///
/// # Cancel safety
/// Dropping a future of this trait may leave its operation running. The core never just drops one: it lets it finish in
/// the background and undoes it.
///
/// [`ErrorKind::OutcomeUnknown`]: crate::ErrorKind::OutcomeUnknown
#[async_trait]
pub trait DistLock: fmt::Debug + Send + Sync + 'static {
    /// What this backend promises.
    fn capabilities(&self) -> &Capabilities;

    /// A second handle on the same store whose connections are opened on the calling runtime.
    ///
    /// The core calls it on its own thread and uses that handle for renewals, background releases and clean-up: a
    /// connection that lives on the user's runtime would starve whenever that runtime is blocked.
    ///
    /// # Errors
    /// As connecting does.
    async fn reopen(&self) -> Result<std::sync::Arc<dyn DistLock>>;

    /// One attempt to take the lock. It takes a free or expired lock, refuses a live one, and, when the owner of `request`
    /// already holds it, answers with the same token and re-arms the TTL in the same step.
    ///
    /// # Errors
    /// Only failures of the store. A lock held by somebody else is [`Attempt::Busy`].
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>>;

    /// Joins the queue or arms the wake-up, before the first attempt is made, so that no release is missed in between.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>>;

    /// Renews a lease that is still ours and has not expired by the store's clock. Never creates or revives a lock.
    ///
    /// # Errors
    /// Only failures of the store. "Not ours any more" is [`Renewed::NotHeld`].
    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed>;

    /// Frees the lock if it is ours. Idempotent.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome>;

    /// Gives our lock to the next owner in one owner-checked step, with a higher token.
    ///
    /// # Errors
    /// Only failures of the store. After [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) the next owner
    /// asks with the same request and recognises itself.
    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver>;

    /// Who holds a lock.
    ///
    /// # Errors
    /// Only failures of the store, and [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt).
    async fn inspect(&self, name: &LockName) -> Result<LockInfo>;

    /// Held locks whose names start with `prefix`, in byte order of their names, after `after`, at most `limit`.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>>;

    /// Frees a lock whoever holds it, if its token is still `expected`.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced>;

    /// Connects, asks for the version, and looks at every setting of the server that a promise rests on.
    ///
    /// # Errors
    /// Only when the store cannot be asked at all; a setting that may not be read is [`Verdict::Unknown`].
    async fn health(&self) -> Result<Health>;

    /// Running total of the statements, commands or requests that this opened store has sent,
    /// waiting included: this handle, the one it was reopened from, and all that were reopened from
    /// either. Another opened store of this process counts its own. For those who measure; `None` =
    /// not counted.
    fn requests_sent(&self) -> Option<u64> {
        None
    }

    /// Closes connections and stops helpers. Idempotent.
    ///
    /// From then on every operation of this handle, and [`Contender::attempt`] of its contenders,
    /// answers [`ErrorKind::Closed`](crate::ErrorKind::Closed) and asks the store nothing (see
    /// [`OpenFlag`](crate::OpenFlag)). Other handles on the store go on, also those that were
    /// reopened from this one.
    async fn close(&self);
}

/// One caller's place among those who want a lock.
///
/// Dropping it is allowed at any time; the core then calls [`Contender::leave`] in the background.
#[async_trait]
pub trait Contender: Send {
    /// Asks again, as the same owner. Recognises a grant that an earlier attempt won without being told.
    ///
    /// # Errors
    /// Only failures of the store.
    async fn attempt(&mut self) -> Result<Attempt<Grant>>;

    /// Whether asking may succeed: nobody is ahead in the line of waiting processes, where the store
    /// keeps one. The core does not ask for a contender that is not first. Where the store keeps no
    /// line, or orders them itself, everybody is; whoever wraps a contender answers as that one does.
    fn is_first(&self) -> bool;

    /// Waits for a reason to ask again, or until `at_most` is over. Becoming the first is a reason.
    ///
    /// # Cancel safety
    /// Safe: a wake-up that nobody received is kept for the next call.
    async fn wait(&mut self, at_most: Duration);

    /// Gives up the place in the queue. Does not release a lock that was granted. Idempotent.
    ///
    /// # Errors
    /// Failures of the store; the caller tries again.
    async fn leave(self: Box<Self>) -> Result<()>;
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub name: LockName,
    /// Who asks; the same on every retry.
    pub owner: OwnerId,
    /// For how long.
    pub ttl: Ttl,
    /// The label people see.
    pub holder: HolderLabel,
    /// Free text kept beside the lock.
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
    /// It is ours.
    Acquired(T),
    /// Somebody holds it (or is ahead in the queue); who, where the store can tell.
    Busy(Option<HolderInfo>),
}

impl<T> Attempt<T> {
    /// Changes what was acquired.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Acquired(value) => Attempt::Acquired(f(value)),
            Self::Busy(holder) => Attempt::Busy(holder),
        }
    }

    /// What was acquired, if anything.
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
    /// Higher than every earlier one of this name.
    pub token: FencingToken,
    /// The store's history it belongs to.
    pub epoch: Epoch,
    /// How long the store keeps it, counted from the moment the granting request was sent.
    pub valid_for: Duration,
    /// When the server was known for the last time to be the one that arbitrates, where another
    /// can take its place: the lease is believed for `valid_for` from here, if that is earlier.
    /// `None` where no other can.
    pub counts_from: Option<Moment>,
    /// What the store will push about it.
    pub loss: LossFeed,
    /// Of a hand-over: whether others wait at the store; `None` when it cannot tell. While nobody does, a run of hand-overs
    /// inside one process takes nothing from anybody, and may go on.
    pub others_waiting: Option<bool>,
}

impl Grant {
    /// A grant about which the store pushes nothing.
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

    /// From when its lease is counted, if the request was sent at `sent`.
    pub(crate) fn counted_from(&self, sent: Moment) -> Moment {
        self.counts_from.map_or(sent, |from| from.min(sent))
    }
}

/// What identifies a held lock to the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lease {
    /// The lock.
    pub name: LockName,
    /// Its owner.
    pub owner: OwnerId,
    /// Its token; `None` when the grant's answer was never received.
    pub token: Option<FencingToken>,
}

impl Lease {
    /// A lease by owner, and by token where it is known.
    #[must_use]
    pub const fn new(name: LockName, owner: OwnerId, token: Option<FencingToken>) -> Self {
        Self { name, owner, token }
    }
}

/// How to renew.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The new time to live, counted from now.
    pub ttl: Ttl,
    /// What happens to the lock's ticket in the same step.
    pub ticket: TicketStep,
}

impl Renewal {
    /// A plain renewal.
    #[must_use]
    pub const fn plain(ttl: Ttl) -> Self {
        Self {
            ttl,
            ticket: TicketStep::Keep,
        }
    }
}

/// What a renewal does to the lock's ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TicketStep {
    /// Nothing.
    Keep,
    /// Writes this nonce beside the lock, replacing any other.
    Issue(Uuid),
    /// Renews only if this nonce stands beside the lock, and removes it.
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
    /// Still ours.
    Extended {
        /// How long the store keeps it, counted from the moment the request was sent.
        valid_for: Duration,
        /// The store's present history: a changed epoch with the lock still ours is noted, not a loss.
        epoch: Epoch,
        /// The token that stands beside the lock (for a resumed ticket: the same as before).
        token: FencingToken,
        /// What the store will push about it.
        loss: LossFeed,
    },
    /// Not ours any more, and why.
    NotHeld(LossReason),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// It was ours and is free now.
    Released {
        /// Whether others wait at the store; `None` when it cannot tell. After a run of hand-overs inside one process the
        /// core steps aside once if they do.
        others_waiting: Option<bool>,
    },
    /// It was not ours; nothing changed.
    NotHeld,
}

/// The answer to a hand-over.
#[derive(Debug)]
pub enum HandOver {
    /// It belongs to the next owner now.
    Done(Grant),
    /// It was not ours; nothing changed.
    NotHeld(LossReason),
    /// This store has no such step: release, and let the next owner ask.
    Unsupported,
}

/// The answer to a forced release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// It was held with that token and is free now.
    Released,
    /// It was free.
    NotHeld,
    /// It is held with another token; nothing changed.
    OtherToken(FencingToken),
}

/// Who holds a lock, as far as the store tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The label people see.
    pub holder: String,
    /// Free text.
    pub meta: Option<String>,
    /// Its token.
    pub token: Option<FencingToken>,
    /// When it was granted, by the store's wall clock. For display only.
    pub acquired_at: Option<SystemTime>,
    /// How long the lease still lasts unless it is renewed.
    pub expires_in: Option<Duration>,
}

impl HolderInfo {
    /// A holder of whom only the label is known.
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
    /// Who holds it; `None` = free.
    pub held: Option<HolderInfo>,
    /// The last token that is known to have been granted.
    pub last_token: Option<FencingToken>,
    /// The store's present history.
    pub epoch: Option<Epoch>,
    /// How many wait, where the store can tell.
    pub waiters: Option<u32>,
    /// The first of those who wait, the next one first, where the store keeps them in line and one lock was asked for. What
    /// is known of each is what is known of a holder before it has been granted anything.
    pub queue: Vec<HolderInfo>,
}

impl LockInfo {
    /// A free lock about which nothing else is known.
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

/// Why a lock was lost. The first reason stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed without a renewal (the process was paused, or renewal is manual).
    Expired,
    /// Somebody force-released it. Only a store that keeps a trace of that can tell
    /// ([`Capabilities::tells_force_release`]); elsewhere it is [`LossReason::Removed`]. Once
    /// somebody else holds the lock, it is [`LossReason::TakenOver`].
    ForceReleased,
    /// The store's history changed and the lock is not in the new one.
    HistoryChanged,
    /// It was deleted by hand, or force-released where the store cannot tell that.
    Removed,
    /// The session with the store ended.
    SessionLost,
    /// Somebody else holds it.
    TakenOver,
    /// The store could not be reached to renew it in time.
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

/// What [`DistLock::health`] found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Product and version: `SQLite 3.50.4`, `Redis 7.0.15`.
    pub server: String,
    /// The store's present history.
    pub epoch: Option<Epoch>,
    /// One per setting that was looked at.
    pub findings: Vec<Finding>,
}

impl Health {
    /// A healthy server about which nothing was found yet.
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

/// One thing that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at: `journal mode`.
    pub check: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was seen, and what to do about it when it is not fine.
    pub detail: String,
}

/// How a check stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it must be.
    Pass,
    /// May not be read with these credentials.
    Unknown,
    /// A promise is weaker than it could be.
    Warn,
    /// A promise does not hold.
    Fail,
}
