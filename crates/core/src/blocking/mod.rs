//! The blocking API, for programs without async code: each call blocks its thread until the answer
//! is there.
//!
//! ```
//! use distlock::blocking;
//!
//! fn main() -> distlock::Result<()> {
//!     let locker = blocking::connect("memory:")?;
//!     let guard = locker.lock("order:42").acquire()?;
//!     guard.check()?; // before each step of the work: an error if the lock is lost
//!     assert!(guard.release().is_clean());
//!     locker.close()
//! }
//! ```
//!
//! Nothing is implemented a second time: a value of this module holds the value of the same name in
//! the async API, and drives its futures on the caller's thread. One thread, [`Runtime`], serves
//! the sockets and timers of everything that comes from one store.

mod guard;
mod locker;
mod runtime;

pub use guard::{Guard, GuardSet};
pub use locker::{LockAllBuilder, LockBuilder, Locker, Store};
pub use runtime::Runtime;
