//! The open or closed state of a locker, and the number of calls that may still end with a new
//! lease.
//!
//! This module owns the flag that a locker was closed, and the count of its running acquires.
//! Invariant: a call is counted before it checks the flag, and `close` sets the flag before it
//! reads the count. So a close always waits for a call that found the locker open. The module sends
//! nothing to the store.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{
    engine::clock::Clock,
    types::error::{Error, ErrorKind, Result},
};

/// The flag that a locker was closed, and the number of its running acquires.
///
/// Background jobs keep a receiver of the flag. When this value is dropped, those receivers return
/// an error, which the jobs treat as a close.
pub(crate) struct Lifecycle {
    closed: watch::Sender<bool>,
    acquires: AtomicUsize,
    last_acquire_ended: Notify,
}

/// One call that may end with a new lease. The call is counted until this value is dropped.
pub(crate) struct RunningAcquire<'a>(&'a Lifecycle);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            closed: watch::Sender::new(false),
            acquires: AtomicUsize::new(0),
            last_acquire_ended: Notify::new(),
        }
    }

    /// Closes the locker: waiting callers end with [`closed_error`], and new calls are refused.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// A receiver that changes to `true` at the close.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Refuses a call on a closed locker.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            Err(closed_error())
        } else {
            Ok(())
        }
    }

    /// Resolves `time` after the locker was closed.
    pub(crate) async fn closed_for(&self, clock: &dyn Clock, time: Duration) {
        // The wait cannot fail, because the sender lives in `self`.
        let _ = self.closing().wait_for(|closed| *closed).await;
        clock.sleep(time).await;
    }

    /// Counts a call that may end with a new lease. The caller must count before
    /// [`Lifecycle::check_open`].
    pub(crate) fn count_acquire(&self) -> RunningAcquire<'_> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        RunningAcquire(self)
    }

    /// Waits until no counted call is left.
    pub(crate) async fn no_acquire_left(&self) {
        loop {
            // Registered before the count is read, so that a call that ends between the two is not
            // missed.
            let changed = self.last_acquire_ended.notified();
            if self.acquires.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for RunningAcquire<'_> {
    fn drop(&mut self) {
        if self.0.acquires.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.last_acquire_ended.notify_waiters();
        }
    }
}

/// The error of every call on a closed locker.
pub(crate) fn closed_error() -> Error {
    Error::new(ErrorKind::Closed, "the locker was closed")
}
