//! The facts about a store that the engine, the tools and the tests read.
//!
//! This module owns [`Capabilities`] and its enums. A backend declares one value; the engine, the
//! conformance suite, the command line and the report read it. Invariant: the conformance suite
//! checks every field. A fact that no test can check must not become a field.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// The facts that one backend declares about its store. The conformance suite checks every field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's short name in errors and metrics: `sqlite`, `redis`.
    pub backend: &'static str,
    /// The locks whose grants share one rising sequence of fencing tokens.
    pub fencing: FencingScope,
    /// The order in which the store serves waiting processes.
    pub fairness: Fairness,
    /// The way in which a waiter in another process learns of a release.
    pub wakeup: Wakeup,
    /// Whether a lease ends with its TTL or with the session of its holder.
    pub lease: LeaseKind,
    /// The smallest TTL that the store accepts.
    #[serde(rename = "min_ttl_ms", serialize_with = "millis")]
    pub min_ttl: Duration,
    /// The TTL of a caller that sets none.
    #[serde(rename = "default_ttl_ms", serialize_with = "millis")]
    pub default_ttl: Duration,
    /// The step to which the store rounds leases.
    #[serde(rename = "ttl_granularity_ms", serialize_with = "millis")]
    pub ttl_granularity: Duration,
    /// The longest lease that the store grants, also for a longer requested TTL. `None`: the store
    /// grants every TTL. If leases end with a session, a lease cannot be longer than the remaining
    /// proven time of the session. Such a store grants this value at most, and four fifths of this
    /// value at least. [`Guard::ttl`](crate::Guard::ttl) is the granted TTL, and renewals follow
    /// it.
    #[serde(rename = "max_lease_ms", serialize_with = "millis_if_any")]
    pub max_lease: Option<Duration>,
    /// The longest time for which the lock of a dead holder stays held, if a lease ends with a
    /// session. The value is the timeout of the session, also for a shorter lease. `None`: the lock
    /// is free when the lease ends.
    #[serde(
        rename = "session_timeout_ms",
        serialize_with = "millis_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub session_timeout: Option<Duration>,
    /// Whether held locks survive a restart of the store.
    pub survives_restart: bool,
    /// The clock that ends a lease.
    pub expiry_clock: ExpiryClock,
    /// The clients that can share the store.
    pub reach: Reach,
    /// Whether a held lock can become a ticket and be resumed elsewhere.
    pub tickets: bool,
    /// Whether a renewal can raise the token of its lock
    /// ([`Renewal::token_floor`](crate::Renewal::token_floor)).
    pub token_floor: bool,
    /// Whether a lock can pass to the next owner in one step of the store (the hand-over). At a
    /// store with [`Fairness::Fifo`] and without a hand-over, the next task of a process joins the
    /// store queue while the present holder still has the lock.
    pub hand_over: bool,
    /// Whether the store keeps a queue of contenders, and `inspect` shows it
    /// ([`LockInfo::waiters`](crate::LockInfo::waiters)).
    pub store_queue: bool,
    /// Whether the guard of a force-released lock is lost with the reason
    /// [`LossReason::ForceReleased`](crate::LossReason::ForceReleased). Otherwise the reason only
    /// says that the lock is gone.
    pub tells_force_release: bool,
}

impl Capabilities {
    /// The common case: leases with a TTL, tokens per name, and waiters that poll without a queue.
    /// A backend then changes the fields that differ.
    #[must_use]
    pub const fn new(backend: &'static str) -> Self {
        Self {
            backend,
            fencing: FencingScope::PerName,
            fairness: Fairness::None,
            wakeup: Wakeup::Poll,
            lease: LeaseKind::Ttl,
            min_ttl: Duration::from_millis(100),
            default_ttl: Duration::from_secs(10),
            ttl_granularity: Duration::from_millis(1),
            max_lease: None,
            session_timeout: None,
            survives_restart: true,
            expiry_clock: ExpiryClock::Server,
            reach: Reach::Network,
            tickets: true,
            token_floor: false,
            hand_over: true,
            store_queue: false,
            tells_force_release: false,
        }
    }
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(whole_millis(*time))
}

fn millis_if_any<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(whole_millis).serialize(serializer)
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The locks whose grants share one rising sequence of fencing tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FencingScope {
    /// Every lock of the store shares one rising order.
    Global,
    /// Tokens rise per lock name.
    PerName,
}

/// The order in which the store serves waiting processes.
///
/// Tasks of one process are served in order of arrival, with one exception. At a store that keeps a
/// queue and has no hand-over (ZooKeeper), tasks that ask while a connection is being opened may be
/// served in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fairness {
    /// In order of arrival at the store queue.
    Fifo,
    /// No order, and none can be had: the first attempt after a release wins.
    None,
    /// In order of arrival at the store queue among callers that ask for it
    /// ([`LockBuilder::fair`](crate::LockBuilder::fair)). Other callers may pass them.
    OnRequest,
}

/// The way in which a waiter in another process learns of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Wakeup {
    /// The waiter polls the store.
    Poll,
    /// The store sends a notification.
    Push,
}

/// Whether a lease ends with its TTL or with the session of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseKind {
    /// The holder's session with the store.
    Session,
    /// A TTL for each lock.
    Ttl,
}

/// The clock that ends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExpiryClock {
    /// The boot-time clock of the one host that all holders share.
    Host,
    /// The clock of the store's server.
    Server,
}

/// The clients that can share the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reach {
    /// Tasks of one process.
    Process,
    /// Processes of one host.
    Host,
    /// Every client that can connect.
    Network,
}
