//! What a backend can do, as data: conformance, the command line and the report all read it.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// What one backend promises. Every field is checked by the conformance suite, none is prose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's short name, as in errors and metrics: `sqlite`, `redis`.
    pub backend: &'static str,
    /// Over what a fencing token rises.
    pub fencing: FencingScope,
    /// In which order waiting processes are served.
    pub fairness: Fairness,
    /// How a waiter in another process learns of a release.
    pub wakeup: Wakeup,
    /// What a lease hangs on.
    pub lease: LeaseKind,
    /// Smallest TTL that is accepted.
    #[serde(rename = "min_ttl_ms", serialize_with = "millis")]
    pub min_ttl: Duration,
    /// The TTL used when the caller names none.
    #[serde(rename = "default_ttl_ms", serialize_with = "millis")]
    pub default_ttl: Duration,
    /// Leases are rounded to this.
    #[serde(rename = "ttl_granularity_ms", serialize_with = "millis")]
    pub ttl_granularity: Duration,
    /// The longest lease that is granted, whatever TTL is asked for; `None` = as long as asked. A
    /// store whose leases hang on a session grants what it can trust of the session: this at most,
    /// and four fifths of it at least. [`Guard::ttl`](crate::Guard::ttl) says what was granted, and
    /// renewal goes on at that rhythm.
    #[serde(rename = "max_lease_ms", serialize_with = "millis_if_any")]
    pub max_lease: Option<Duration>,
    /// The option of the store that makes [`Capabilities::max_lease`] longer, if there is one.
    #[serde(skip)]
    pub max_lease_option: Option<&'static str>,
    /// How long the lock of a dead holder stays taken at most, where it hangs on a session, however
    /// short its lease was: the timeout of that session. `None` = until its lease ends.
    #[serde(
        rename = "session_timeout_ms",
        serialize_with = "millis_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub session_timeout: Option<Duration>,
    /// Whether held locks survive a restart of the store.
    pub survives_restart: bool,
    /// Whose clock ends a lease.
    pub expiry_clock: ExpiryClock,
    /// Who can share the store.
    pub reach: Reach,
    /// Whether a held lock can become a ticket and be resumed elsewhere.
    pub tickets: bool,
    /// Whether a lock passes to the next owner in one store step. A first-come-first-served store without such a step gets
    /// the next contender of a process while the present one still holds.
    pub hand_over: bool,
    /// Whether a lost guard learns that its lock was force-released
    /// ([`LossReason::ForceReleased`](crate::LossReason::ForceReleased)), and not only that it is
    /// gone.
    pub tells_force_release: bool,
}

impl Capabilities {
    /// The common case: a TTL store with hybrid tokens, polling, no queue. Set the fields that differ.
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
            max_lease_option: None,
            session_timeout: None,
            survives_restart: true,
            expiry_clock: ExpiryClock::Server,
            reach: Reach::Network,
            tickets: true,
            hand_over: true,
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

/// Over what a fencing token rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FencingScope {
    /// Every lock of the store shares one rising order.
    Global,
    /// Tokens rise per lock name.
    PerName,
}

/// In which order waiting processes are served. Tasks of one process are served in order; where the
/// store keeps the line and no step of it passes a lock on (ZooKeeper), those that ask while a
/// connection is being opened may change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served.
    Fifo,
    /// Whoever asks first after a release.
    None,
}

/// How a waiter in another process learns of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Wakeup {
    /// It asks now and then.
    Poll,
    /// The store tells it.
    Push,
}

/// What a lease hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseKind {
    /// The holder's session with the store.
    Session,
    /// A time to live per lock.
    Ttl,
}

/// Whose clock ends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExpiryClock {
    /// The boot-time clock of the one host that all holders share.
    Host,
    /// The store's server.
    Server,
}

/// Who can share the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reach {
    /// Tasks of one process.
    Process,
    /// Processes of one host.
    Host,
    /// Anybody who can connect.
    Network,
}
