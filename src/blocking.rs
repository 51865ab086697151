//! The blocking API, for programs without async code: each call blocks its thread until the answer
//! is there. No tokio is needed in the program.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock::{Attempt, blocking};
//!
//! fn main() -> distlock::Result<()> {
//!     let locker = blocking::connect("memory:")?; // or "sqlite:/var/lib/app/locks.db"
//!     let guard = locker.lock("order:42").wait(Duration::from_secs(5)).acquire()?;
//!     guard.on_lost(|reason| eprintln!("stop: {reason}")); // on a thread of its own
//!     for _page in 1..=3 {
//!         guard.check()?; // an error if the lock is lost; without I/O
//!     }
//!     let other = locker.lock("order:42").try_acquire()?;
//!     assert!(matches!(other, Attempt::Busy(_)));
//!     assert!(guard.release().is_clean()); // a drop waits for the release for at most 1 s
//!     locker.close()
//! }
//! ```
//!
//! The values hold those of the async API and drive their futures on the caller's thread. One
//! thread, the [`Runtime`], serves the connections of everything that comes from one [`connect`] or
//! [`open`]. Renewals run on the keeper thread, as always, so a caller that computes for minutes
//! keeps its locks.
//!
//! `Periodic` and `Election` for blocking callers are in the crate `distlock-recipes`, in its
//! module `blocking` (feature `blocking`).
//!
//! # In async code
//!
//! A blocking call in a task of a tokio runtime would stop the other tasks of its thread, and for
//! ever if one of them has the lock. So it is an error of kind
//! [`InvalidArgument`](crate::ErrorKind::InvalidArgument). Threads that may block are fine, also
//! those of tokio's `spawn_blocking` and `block_in_place`. A guard that is dropped in a task does
//! not block: its lock is released in the background. One exception exists: in a future of
//! `tokio::task::unconstrained` the call is not recognised as one in async code, and blocks.

use distlock_backend_kit::Target;
use distlock_core::Result;
#[doc(inline)]
pub use distlock_core::blocking::{
    Guard, GuardSet, LockAllBuilder, LockBuilder, Locker, Runtime, Store,
};

use crate::Registry;

/// Opens a store, as [`open`](crate::open) of the async API does.
///
/// A program with drivers of its own makes the store from the parts:
///
/// ```
/// use distlock::{Registry, blocking};
///
/// # fn main() -> distlock::Result<()> {
/// let runtime = blocking::Runtime::start()?;
/// let store = runtime.wait_for(Registry::builtin().open("memory:"))?;
/// let store = blocking::Store::new(store, runtime);
/// # store.close() }
/// ```
///
/// # Errors
/// As [`open`](crate::open); [`InvalidArgument`](crate::ErrorKind::InvalidArgument) in async code;
/// [`LimitExceeded`](crate::ErrorKind::LimitExceeded) when the system refuses a thread.
pub fn open(target: impl Into<Target>) -> Result<Store> {
    let runtime = Runtime::start()?;
    let store = runtime.wait_for(Registry::builtin().open(target))?;
    Ok(Store::new(store, runtime))
}

/// Opens a store and returns its [`Locker`].
///
/// # Errors
/// As [`open`].
pub fn connect(target: impl Into<Target>) -> Result<Locker> {
    Ok(open(target)?.locker())
}
