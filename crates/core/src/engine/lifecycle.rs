//! The open or closed state of a locker, the number of calls that may still end with a new lease,
//! and the number of guards.
//!
//! This module owns the flag that a locker was closed, and the counts of its running acquires and
//! of its guards. Invariant: a call is counted before it checks the flag, and `close` sets the flag
//! before it reads the counts. So a close always waits for a call that found the locker open. The
//! module sends nothing to the store.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{
    clock::Clock,
    types::error::{Error, ErrorKind, Result},
};

/// The flag that a locker was closed, and the numbers of its running acquires and of its guards.
///
/// Background jobs keep a receiver of the flag. When this value is dropped, those receivers return
/// an error, which the jobs treat as a close.
pub(crate) struct Lifecycle {
    closed: watch::Sender<bool>,
    /// The same flag, for an end of an acquire or of a guard: it is set before the counts are read,
    /// and it is read after a count became zero, so a close misses neither. While the locker is
    /// open nobody waits for an end, and an acquire pays no notification.
    closing: AtomicBool,
    acquires: AtomicUsize,
    guards: AtomicUsize,
    none_left: Notify,
}

/// One call that may end with a new lease. The call is counted until this value is dropped.
pub(crate) struct RunningAcquire<'a>(&'a Lifecycle);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            closed: watch::Sender::new(false),
            closing: AtomicBool::new(false),
            acquires: AtomicUsize::new(0),
            guards: AtomicUsize::new(0),
            none_left: Notify::new(),
        }
    }

    /// Closes the locker: waiting callers end with [`closed_error`], and new calls are refused.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
        self.closing.store(true, Ordering::SeqCst);
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

    /// Counts a guard. The first guard of a lease must be counted within a counted call, so that a
    /// close that has seen no call left sees the guard.
    pub(crate) fn add_guard(&self) {
        self.guards.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes the end of a guard. The caller has released the lock, or has handed the release to the
    /// keeper, where a close waits for it.
    pub(crate) fn remove_guard(&self) {
        self.end_one(&self.guards);
    }

    /// Waits after a [`close`](Self::close) until no counted call is left.
    pub(crate) async fn no_acquire_left(&self) {
        self.wait_for_none(&self.acquires).await;
    }

    /// Waits after a [`close`](Self::close) until no guard is left.
    pub(crate) async fn no_guard_left(&self) {
        self.wait_for_none(&self.guards).await;
    }

    async fn wait_for_none(&self, count: &AtomicUsize) {
        loop {
            // Registered before the count is read, so that an end between the two is not missed.
            let changed = self.none_left.notified();
            if count.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }

    fn end_one(&self, count: &AtomicUsize) {
        if count.fetch_sub(1, Ordering::SeqCst) == 1 && self.closing.load(Ordering::SeqCst) {
            self.none_left.notify_waiters();
        }
    }
}

impl Drop for RunningAcquire<'_> {
    fn drop(&mut self) {
        self.0.end_one(&self.0.acquires);
    }
}

/// The error of every call on a closed locker.
pub(crate) fn closed_error() -> Error {
    Error::new(ErrorKind::Closed, "the locker was closed")
}
