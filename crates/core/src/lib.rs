//! The distributed-lock contract, and everything that is written once for all backends.
//!
//! A backend implements [`DistLock`] and [`Records`]: mechanism and facts. This crate owns time,
//! waiting policy, renewal, retry, queueing and loss, and gives callers a [`Locker`] and its
//! [`Guard`]s.
//!
//! ```no_run
//! # async fn example(backend: std::sync::Arc<dyn distlock::DistLock>) -> distlock::Result<()> {
//! let locker = distlock::Locker::new(backend);
//! let guard = locker.lock("order:42").ttl(std::time::Duration::from_secs(10)).acquire().await?;
//! // Show `guard.token()` to whatever the lock protects; stop when `guard.lost()` resolves.
//! guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | what | where |
//! |---|---|
//! | what a backend supplies: traits, requests, answers, capabilities | `contract` |
//! | values, parsed once at the edge | `types` |
//! | what callers hold: locker, builders, guards, scope, ticket, store | `client` |
//! | time, the local queue, taking, renewing, letting go, clean-up | `engine` |
//! | what several backends share | `backend_kit`: [`batch`], [`queue_entry`], [`threads`], [`panics`], passwords, TLS files |
//! | a lock over versioned records | `kv` |
//! | the checking half of fencing | `fence` |
//!
//! # Guarantees
//!
//! - Two guards of one name are never both valid by [`Guard::is_valid`], measured on one machine's
//!   clock, except after a lock was deleted by hand, the store's clock was stepped, or the store
//!   lost its history. Tokens order even those, unless the store lost its history and its clock
//!   stands behind its last grant as well.
//! - [`Guard::lost`] resolves at the latest 250 ms of running time after the local deadline, which
//!   is earlier than the store's, whatever renewals or the user's runtime do.
//! - Every future may be dropped at any await. What was granted meanwhile is given back, within one
//!   TTL at the latest.
//! - Every call ends within a bound when the store hangs. Taking one lock or several: 5 s beyond
//!   the wait that was asked for; a release or an extension: 5 s for each of its steps at the
//!   store, four at most; a look: 10 s; closing: 10 s. No option of a store makes these longer.

mod backend_kit;
mod client;
mod contract;
mod engine;
mod fence;
mod kv;
mod types;

#[cfg(feature = "tls")]
pub use backend_kit::tls_files::TlsFile;
pub use backend_kit::{
    batch,
    not_built::not_compiled_in,
    open_flag::OpenFlag,
    panics,
    password::{PasswordRule, TLS_DISABLE, is_loopback},
    queue_entry as line, threads,
};
pub use client::{
    builder::{LockAllBuilder, LockBuilder},
    guard::{Ended, Guard, LockWatch},
    guard_set::GuardSet,
    locker::{Locker, LockerBuilder},
    scope::Scope,
    store::Store,
};
pub use contract::{
    AcquireRequest, Attempt, Contender, DistLock, Finding, Forced, Grant, HandOver, Health,
    HolderInfo, Lease, LockInfo, LossReason, ReleaseOutcome, Renewal, Renewed, TicketStep, Verdict,
    capabilities::{Capabilities, ExpiryClock, Fairness, FencingScope, LeaseKind, Reach, Wakeup},
    loss::{LossFeed, LossSender},
    records::{Deleted, Entry, Expect, MAX_VALUE_BYTES, Records, Version, Written, check_value},
};
#[doc(hidden)]
pub use engine::acquire_errors::BUSY_ADVICE;
pub use engine::{
    clock::{Clock, ManualClock, Moment, Sleep, SystemClock, unix_time},
    lease_state::Renew,
    release::Released,
};
pub use fence::{Fence, FenceError, FenceGuard, FenceRefusal, FenceState, FencedFile};
pub use kv::KvLock;
pub use types::{
    duration::parse_duration,
    error::{Error, ErrorKind, Result},
    ident::{HolderLabel, Meta, OwnerId},
    name::{LockName, RecordKey, decode, encode},
    presentable::{excerpt, path_excerpt, presentable},
    ticket::Ticket,
    token::{Epoch, FencingToken, micros},
    ttl::{Ttl, margin},
};
