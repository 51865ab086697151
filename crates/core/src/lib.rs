//! The distributed-lock contract, and everything that is written once for all backends.
//!
//! A backend implements [`DistLock`] and [`Records`]: mechanism and facts. This crate owns time, waiting policy, renewal,
//! retry, queueing and loss, and gives callers a [`Locker`] and its [`Guard`]s.
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
//! | what a backend supplies | `contract`, `records`, `capabilities` |
//! | values, parsed once at the edge | `name`, `ttl`, `token`, `ident`, `error` |
//! | the way of a password to a server, the files of TLS | `password`, `tls_files` |
//! | what a panic hook need not print | [`panics`] |
//! | the sentence about a feature that is missing | `not_built` |
//! | what callers hold | `locker`, `builder`, `guard`, `multi`, `scope`, `ticket`, `store` |
//! | time | `clock` (boot-time, injectable), `deadline` (pure arithmetic), `hold` (one lease's state) |
//! | taking and letting go | `queue` (the line inside a process), `lineup` (its head, at a store that queues), `acquire`, `release` |
//! | the thread that keeps leases | `keeper` (renewal, deadlines, clean-up) |
//! | group commit for backends | [`batch`] |
//! | a lock over versioned records | `kv` |
//! | the checking half of fencing | `fence` |
//!
//! # Guarantees
//!
//! - Two guards of one name are never both valid by [`Guard::is_valid`], measured on one machine's clock, except after a
//!   lock was deleted by hand, the store's clock was stepped, or the store lost its history. Tokens order even those, unless
//!   the store lost its history and its clock stands behind its last grant as well.
//! - [`Guard::lost`] resolves at the latest 250 ms of running time after the local deadline, which is earlier than the
//!   store's, whatever renewals or the user's runtime do.
//! - Every future may be dropped at any await. What was granted meanwhile is given back, within one TTL at the latest.
//! - Every call ends within a bound when the store hangs. Taking one lock or several: 5 s beyond
//!   the wait that was asked for; a release or an extension: 5 s for each of its steps at the
//!   store, four at most; a look: 10 s; closing: 10 s. No option of a store makes these longer.

mod acquire;
mod bounded;
mod builder;
mod capabilities;
mod claim;
mod clock;
mod contract;
mod crowded;
mod deadline;
mod duration;
mod error;
mod fence;
mod guard;
mod hash;
mod hold;
mod ident;
mod keeper;
mod kv;
pub mod line;
mod lineup;
mod locker;
mod log;
mod loss;
mod meters;
mod multi;
mod name;
mod not_built;
mod open_flag;
mod outage;
pub mod panics;
mod password;
mod presentable;
mod queue;
mod records;
mod refusal;
mod release;
mod scope;
mod store;
pub mod threads;
mod ticket;
#[cfg(feature = "tls")]
mod tls_files;
mod token;
mod ttl;

pub mod batch;

pub use builder::{LockAllBuilder, LockBuilder};
pub use capabilities::{
    Capabilities, ExpiryClock, Fairness, FencingScope, LeaseKind, Reach, Wakeup,
};
pub use clock::{Clock, ManualClock, Moment, Sleep, SystemClock, unix_time};
pub use contract::{
    AcquireRequest, Attempt, Contender, DistLock, Finding, Forced, Grant, HandOver, Health,
    HolderInfo, Lease, LockInfo, LossReason, ReleaseOutcome, Renewal, Renewed, TicketStep, Verdict,
};
pub use duration::parse_duration;
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, FenceError, FenceGuard, FenceRefusal, FenceState, FencedFile};
pub use guard::{Ended, Guard, LockWatch};
pub use hold::Renew;
pub use ident::{HolderLabel, Meta, OwnerId};
pub use kv::KvLock;
pub use locker::{Locker, LockerBuilder};
pub use loss::{LossFeed, LossSender};
pub use multi::GuardSet;
pub use name::{LockName, RecordKey, decode, encode};
pub use not_built::not_compiled_in;
pub use open_flag::OpenFlag;
pub use password::{PasswordRule, TLS_DISABLE, is_loopback};
pub use presentable::{excerpt, path_excerpt, presentable};
pub use records::{
    Deleted, Entry, Expect, MAX_VALUE_BYTES, Records, Version, Written, check_value,
};
#[doc(hidden)]
pub use refusal::BUSY_ADVICE;
pub use release::Released;
pub use scope::Scope;
pub use store::Store;
pub use ticket::Ticket;
#[cfg(feature = "tls")]
pub use tls_files::TlsFile;
pub use token::{Epoch, FencingToken, micros};
pub use ttl::{Ttl, margin};
