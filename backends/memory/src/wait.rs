//! One contender's wait for a lock of the table. A wake-up or a timer ends the wait; the timer ends
//! with the holder's lease.
//!
//! Invariant: a contender whose wait was dropped is marked as skipped, so that a free lock is not
//! reserved for it. A wake-up that it has not received is kept.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, OwnerId, Result};

use crate::{
    lock::{BACKEND, SharedTable},
    store_queue::QueueEntry,
    table::Armed,
    table::Now,
};

/// One contender, with its entry in the store queue.
#[derive(Debug)]
pub(crate) struct MemoryContender {
    shared: Arc<SharedTable>,
    open: OpenFlag,
    request: AcquireRequest,
    /// The queue entry; `None` after the contender got the lock.
    entry: Option<QueueEntry>,
}

impl MemoryContender {
    pub(crate) fn new(shared: Arc<SharedTable>, open: OpenFlag, request: AcquireRequest) -> Self {
        let entry = shared.table.join(&request);
        Self {
            shared,
            open,
            request,
            entry: Some(entry),
        }
    }
}

#[async_trait]
impl Contender for MemoryContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(BACKEND)?;
        let mut request = self.request.clone();
        request.owner = owner;
        let attempt = self.shared.try_acquire(&request, self.entry)?;
        if matches!(attempt, Attempt::Acquired(_)) {
            self.entry = None;
        }
        Ok(attempt)
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let shared = &*self.shared;
        let name = &self.request.name;
        let entry = *self
            .entry
            .get_or_insert_with(|| shared.table.join(&self.request));
        let until = shared.clock.now() + at_most;
        let mut in_progress = WaitInProgress {
            contender: self,
            entry,
            unfinished: true,
        };
        loop {
            let now = shared.clock.now();
            let left = until.since(now);
            if left.is_zero() {
                break;
            }
            let Armed::Sleep(pause) = shared.table.arm(now, name, entry) else {
                break;
            };
            let woken = poll_fn(|context| {
                if shared.table.listen(name, entry, context.waker()) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            let woken = distlock_core::at_most(&*shared.clock, pause.min(left), woken).await;
            if woken.is_some() {
                break;
            }
        }
        in_progress.unfinished = false;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        // The drop of `self` removes the queue entry.
        Ok(())
    }
}

impl Drop for MemoryContender {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let now = Now::of(&*self.shared.clock).boot;
            self.shared.table.leave(now, &self.request.name, entry);
        }
    }
}

/// Marks the contender as skipped if its wait is dropped before the end. Otherwise a free lock
/// would be reserved for a contender that does not wait.
struct WaitInProgress<'a> {
    contender: &'a MemoryContender,
    entry: QueueEntry,
    unfinished: bool,
}

impl Drop for WaitInProgress<'_> {
    fn drop(&mut self) {
        if self.unfinished {
            let MemoryContender {
                shared, request, ..
            } = self.contender;
            let now = shared.clock.now();
            shared.table.interrupt_wait(now, &request.name, self.entry);
        }
    }
}
