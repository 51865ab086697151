//! One distributed lock, many stores: a program asks for a named lock, and configuration alone
//! selects the store that arbitrates.
//!
//! For Linux on x86-64 and 64-bit Arm. So far it was compiled and tested on x86-64 only.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or "sqlite:/var/lib/app/locks.db", from configuration.
//! let locker = distlock::connect("memory:").await?;
//! // Renewal runs in the background until the release.
//! let guard = locker.lock("order:42").acquire().await?;
//! tokio::select! {
//!     // Resolves before anybody else can get the lock.
//!     reason = guard.lost() => eprintln!("lost: {reason}"),
//!     // The token is higher than that of every earlier holder: pass it to the resource.
//!     () = work(guard.token()) => {}
//! }
//! assert!(guard.release().await.is_clean());
//! # locker.close().await; Ok(()) }
//! # async fn work(_: distlock::FencingToken) {}
//! ```
//!
//! # Guarantees
//!
//! The guarantees are the same on every backend. The conformance suite (`distlock conformance`)
//! checks the behaviour:
//!
//! - At no time do two guards of one name both say [`is_valid`](Guard::is_valid). Three exceptions:
//!   the lock was force-released or deleted by hand; the store's clock was stepped (the clock of a
//!   Redis, MySQL, MariaDB or Postgres server, forward by more than a lease); the store lost its
//!   history (a failover of replicated Redis). A guard counts its deadline from the moment its
//!   request was *sent*, on a clock that includes suspend. The deadline is a margin earlier than
//!   the end of the lease at the store.
//! - A loss is reported. Except in these three cases, [`Guard::lost`] resolves before the store can
//!   grant the lock to another caller, also while a renewal hangs.
//! - [Fencing tokens](FencingToken) of one name strictly rise, across releases, expiry and
//!   restarts. Across a failover of replicated Redis, the tokens rise only if the servers' clocks
//!   agree.
//! - A release or renewal by a former holder never affects the present one.
//! - Every async method documents the effect of dropping its future.
//! - The answer for a busy lock names the holder.
//!
//! # Map
//!
//! | task | use |
//! |---|---|
//! | open a store | [`open`] (a [`Store`]: locks and records) or [`connect`] (its [`Locker`]); both take a URL, a [`Target`] with options, or a [`config::Config`] |
//! | keep the records in another store than the locks | [`Target::records_in`], [`Store::with_records_of`] |
//! | take a lock | [`Locker::lock`], then [`acquire`](LockBuilder::acquire), [`try_acquire`](LockBuilder::try_acquire) or [`run`](LockBuilder::run) |
//! | take several together | [`Locker::lock_all`] |
//! | take it in the order of arrival | [`fair`](LockBuilder::fair) |
//! | share it: many readers or one writer, or a number of permits | `RwLock` and `Semaphore` of the crate `distlock-recipes` |
//! | hold it | [`Guard`]: [`token`](Guard::token), [`is_valid`](Guard::is_valid), [`lost`](Guard::lost), [`extend`](Guard::extend), [`release`](Guard::release) |
//! | pass it to another process | [`Guard::into_ticket`], [`Locker::resume`] |
//! | protect the resource itself | [`FenceGuard`]: refuses a holder with an older token; ready-made in a database transaction, on Redis and in ZooKeeper: [`fence`]; for a file: [`FencedFile`] |
//! | do all this without async code | `blocking` (feature `blocking`) |
//! | inspect and intervene | [`Locker::inspect`], [`Locker::list`], [`Locker::force_release`], [`Locker::health`] |
//! | keep small values with versions | [`Records`], from [`Store::records`] |
//! | bring your own store | implement [`DistLock`] and [`Records`], and a [`backend::Driver`] that [`Registry::with`] adds; [`backend`] has the parts, `examples/custom_backend` is a complete backend |
//!
//! Backend URLs:
//!
//! | URL | arbitrates between | feature |
//! |---|---|---|
//! | `memory:`, `memory:NAME` | tasks of one process: one store per name, kept until the process ends; `memory:?private=true` is a new one | `memory` (default) |
//! | `sqlite:PATH` | processes of one host | `sqlite` |
//! | `redis://HOST`, `rediss://`, `redis+sentinel://H1,H2,H3/PRIMARY`, `redis+cluster://H1,H2` | anybody who can connect | `redis` (with TLS: `redis`, `tls`) |
//! | `mysql://USER@HOST/DATABASE`, `mariadb://` | anybody who can connect | `mysql` (with TLS: `mysql`, `tls`) |
//! | `postgres://USER@HOST/DATABASE` | anybody who can connect | `postgres` (with TLS: `postgres`, `tls`) |
//! | `kv+URL` | the same callers as the store of that URL, which keeps the locks as records | `kv` |
//! | `quorum:?member=NAME=URL&..` | anybody who can connect to a majority of 3, 5 or 7 stores | `quorum` |
//! | `ring:?records=URL&member=NAME=URL&..` | anybody who can connect to the stores, each of which has a part of the names | `ring` |
//! | `distlock://HOST,HOST` | anybody who can connect to the lock server, which serves one of these stores | `remote` |
//! | `zookeeper://HOST,HOST/ROOT` | anybody who can connect | `zookeeper` (with TLS: `tls`, with SASL: `sasl` as well) |
//!
//! Options are query parameters (`sqlite:locks.db?connect_timeout=2s`) or keys of the `[backend]`
//! table in `distlock.toml`. An unknown option is an error that names it.
//!
//! # Features
//!
//! `memory` (default), `sqlite`, `redis`, `mysql`, `postgres`, `zookeeper`, `kv`, `quorum`,
//! `remote`, `ring`; `tls` for backends that support it, and `sasl` for ZooKeeper; `blocking` for
//! programs without async code. The error for a URL whose backend is not compiled in contains the
//! line of `Cargo.toml` that adds it.

pub mod backend;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod config;
mod connect;
pub mod fence;
mod registry;

pub use connect::{connect, migrate, open};
pub use distlock_backend_kit::{Migrated, Target};
#[doc(inline)]
pub use distlock_core::{
    Attempt, Capabilities, Clock, Deleted, DistLock, Ended, Entry, Epoch, Error, ErrorKind, Expect,
    ExpiryClock, Fairness, Fence, FenceError, FenceGuard, FenceRefusal, FenceState, FencedFile,
    FencingScope, FencingToken, Finding, Forced, Guard, GuardSet, Health, HolderInfo, HolderLabel,
    LeaseKind, LockAllBuilder, LockBuilder, LockInfo, LockName, LockWatch, Locker, LockerBuilder,
    LossReason, MAX_VALUE_BYTES, ManualClock, Moment, OwnerId, Reach, RecordKey, Records, Released,
    Remedy, Renew, Result, Scope, Sleep, Store, SystemClock, Ticket, Ttl, Unreleased, Verdict,
    Version, Wakeup, Written,
};
#[cfg(feature = "kv")]
pub use distlock_kv::KvLock;
pub use registry::Registry;

/// Locks on a majority of several stores: the steps of an operator.
#[cfg(feature = "quorum")]
pub mod quorum {
    #[doc(inline)]
    pub use distlock_quorum::{
        MarkerReport, MemberReport, QuorumLock, init, readmit, reconfigure, show,
    };
}

/// Locks whose names are spread over several stores: the steps of an operator.
#[cfg(feature = "ring")]
pub mod ring {
    #[doc(inline)]
    pub use distlock_ring::{
        NamePlace, PendingReport, RingLock, RingMember, RingReport, Terms, Watch, WatchChange, add,
        init, locate, remove, reset, show,
    };
}

/// Compiles the snippets of the guide as documentation tests.
#[cfg(all(
    doctest,
    feature = "blocking",
    feature = "memory",
    feature = "redis",
    feature = "sqlite",
))]
#[doc = include_str!("../docs/guide.md")]
mod guide {}

/// Compiles the snippets of the recipes in the same way.
#[cfg(all(doctest, feature = "memory", feature = "redis", feature = "sqlite"))]
#[doc = include_str!("../docs/recipes.md")]
mod recipes {}

/// Compiles the first programs of the stores' pages in the same way.
#[cfg(all(
    doctest,
    feature = "postgres",
    feature = "quorum",
    feature = "redis",
    feature = "ring",
    feature = "sqlite",
    feature = "zookeeper",
))]
mod stores {
    #[doc = include_str!("../docs/stores/databases.md")]
    mod databases {}
    #[doc = include_str!("../docs/stores/quorum.md")]
    mod quorum {}
    #[doc = include_str!("../docs/stores/redis.md")]
    mod redis {}
    #[doc = include_str!("../docs/stores/ring.md")]
    mod ring {}
    #[doc = include_str!("../docs/stores/sqlite.md")]
    mod sqlite {}
    #[doc = include_str!("../docs/stores/zookeeper.md")]
    mod zookeeper {}
}
