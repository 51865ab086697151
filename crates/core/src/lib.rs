//! The distributed-lock contract, and the client engine that works with every backend.
//!
//! A backend implements [`DistLock`] and [`Records`]: it sends each request to its store and
//! returns the store's answer. This crate owns time, waiting, renewal, retries, queues and loss,
//! and gives callers a [`Locker`] and its [`Guard`]s.
//!
//! ```no_run
//! # async fn example(backend: std::sync::Arc<dyn distlock::DistLock>) -> distlock::Result<()> {
//! let locker = distlock::Locker::new(backend);
//! let guard = locker.lock("order:42").ttl(std::time::Duration::from_secs(10)).acquire().await?;
//! // Show `guard.token()` to the resource that the lock protects.
//! // Stop when `guard.lost()` resolves.
//! guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | the contract of a backend: traits, requests, answers, capabilities | `contract` |
//! | values, parsed once where they come in | `types` |
//! | the same for callers without async code | `blocking` |
//! | what callers hold: locker, builders, guards, scope, store | `client` |
//! | local queue, acquire, renewal, release, clean-up | `engine` |
//! | the clock, and one for tests | `clock` |
//! | the check of fencing tokens by the protected resource | `fence` |
//!
//! Inside `engine`, an acquire passes through `acquire` (the local queue, and the lease at the
//! end), `claim` (the requests to the store) and `parts` (which passes the lease to the keeper).
//!
//! # Guarantees
//!
//! - Two guards of one name are never both valid by [`Guard::is_valid`], measured on one machine's
//!   clock. There are three exceptions: a lock was deleted by hand, the store's clock was stepped,
//!   or the store lost its history. Fencing tokens put even those guards in order, unless the store
//!   lost its history and its clock is also behind the time of its last grant.
//! - [`Guard::lost`] resolves at the latest 250 ms of running time after the local deadline. That
//!   deadline is earlier than the end of the lease at the store, also when renewals fail or the
//!   user's runtime stalls.
//! - Every future may be dropped at any await. A lock that was granted to a dropped future is free
//!   again at the latest at the end of its TTL.
//! - Every call ends within a bound when the store hangs. An acquire of one lock or several: 5 s
//!   beyond its wait. A release or an extension: 5 s for each of its steps at the store, four at
//!   most. An inspection: 10 s. A close: 10 s. No option of a store makes these longer.

#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
mod contract;
mod engine;
mod fence;
pub mod sync;
mod types;

pub use client::{
    builder::{LockAllBuilder, LockBuilder},
    guard::Guard,
    guard_set::GuardSet,
    locker::{Locker, LockerBuilder},
    scope::Scope,
    store::Store,
    watch::{Ended, LockWatch},
};
pub use clock::{Clock, ManualClock, Moment, Sleep, SystemClock, unix_time};
pub use contract::{
    AcquireRequest, Attempt, Contender, DistLock, Finding, Forced, Grant, HandOver, Health, Lease,
    LockInfo, LossReason, ReleaseOutcome, Renewal, Renewed, TicketStep, Verdict,
    capabilities::{Capabilities, ExpiryClock, Fairness, FencingScope, LeaseKind, Reach, Wakeup},
    loss::{LossFeed, LossSender},
    records::{Deleted, Entry, Expect, MAX_VALUE_BYTES, Records, Version, Written, check_value},
};
pub use engine::{
    bounded::at_most, hash, lease_state::Renew, log, release::Released, threads,
    unreleased::Unreleased,
};
pub use fence::{Fence, FenceError, FenceGuard, FenceRefusal, FenceState, FencedFile};
pub use types::{
    duration::parse_duration,
    error::{Error, ErrorKind, Remedy, Result},
    ident::{HolderInfo, HolderLabel, Meta, OwnerId},
    name::{LockName, RecordKey, decode, encode},
    presentable::{excerpt, path_excerpt, presentable},
    shell_word::quote_for_shell,
    ticket::Ticket,
    token::{Epoch, FencingToken, micros},
    ttl::{Ttl, margin},
};
