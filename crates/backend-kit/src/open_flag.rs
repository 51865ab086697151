//! The check of every backend before each operation that its handle is open.
//!
//! This module owns the flag. Invariant: a closed flag stays closed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use distlock_core::{Error, ErrorKind, Result};

/// A flag that says whether a handle on a store is open. A closed flag stays closed.
///
/// Each handle has its own flag, also a handle that was reopened from another one. Clones share the
/// flag. A handle gives a clone to each of its contenders, so that the contenders notice a close.
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

    /// Closes the handle. Returns whether the handle was open before.
    #[expect(
        clippy::must_use_candidate,
        reason = "a handle with nothing to give back closes without a look at the answer"
    )]
    pub fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }
}
