//! The check that every backend makes before each operation: whether its handle is open.
//!
//! This module owns the flag. Invariant: once closed, a flag stays closed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use distlock_core::{Error, ErrorKind, Result};

/// Whether a handle on a store is open. Once closed it stays closed.
///
/// Each handle has a flag of its own, also one that was reopened from another. Clones share the
/// flag: a handle gives one to each of its contenders, which outlive the call that made them.
///
/// ```
/// use distlock::{ErrorKind, backend::OpenFlag};
///
/// let handle = OpenFlag::default();
/// let contender = handle.clone();
/// assert!(contender.check("mystore").is_ok());
/// assert!(handle.close());
/// assert_eq!(contender.check("mystore").unwrap_err().kind(), ErrorKind::Closed);
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenFlag {
    closed: Arc<AtomicBool>,
}

impl OpenFlag {
    /// Refuses an operation of a handle that was closed.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after [`OpenFlag::close`].
    pub fn check(&self, backend: &'static str) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            let error = Error::new(ErrorKind::Closed, "the store's handle was closed");
            return Err(error.on(backend));
        }
        Ok(())
    }

    /// Closes the handle. Returns whether it was open until now.
    #[expect(
        clippy::must_use_candidate,
        reason = "a handle with nothing to give back closes without a look at the answer"
    )]
    pub fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }
}
