//! One contender at the store.
//!
//! A contender sleeps until the poller, the listener or another handle of this process wakes the
//! contender. The contender asks the store only in its own attempts to acquire. A wake-up without a
//! reason is harmless, but a missing wake-up would let the contender sleep while the lock is free.
//! So each contender checks periodically that the poller and the listener still run, and restarts a
//! task that has ended.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use distlock_backend_kit::{
    OpenFlag,
    operation::{Answer, Operation},
};
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, OwnerId, Result};

use crate::{
    dialect::Dialect,
    rows::QueueEntry,
    store::Store,
    wait::{sleep::AttemptSchedule, wait_group::HINT_LIFETIME, wait_state::Waiter},
    wait_tasks::{ensure_listening, ensure_polling, renew_queue_entries},
};

/// One waiter for a lock, at the store and in this process.
pub(crate) struct SqlContender<D: Dialect> {
    store: Arc<Store<D>>,
    open: OpenFlag,
    request: AcquireRequest,
    waiter: Arc<Waiter>,
    attempts: AttemptSchedule,
    granted: bool,
}

impl<D: Dialect> SqlContender<D> {
    /// Joins the waiters of this process and the store queue.
    pub(crate) async fn join(
        store: Arc<Store<D>>,
        open: OpenFlag,
        request: AcquireRequest,
    ) -> Self {
        let context = store.dialect().context();
        let group = Arc::clone(&context.wait_group);
        let waiter = group.join(&request, context.clock.now());
        store.dialect().prepare_to_wait();
        let joined = Self::new(Arc::clone(&store), open, request, waiter);
        // If this process is first already, another waiter of the process has taken the queue
        // entry.
        if !group.is_first(&joined.request.name, joined.request.in_order)
            && let Some(entry) =
                group.entry_to_renew(&joined.request.name, store.dialect().context().clock.now())
        {
            renew_queue_entries(&group, store.dialect(), &[entry]).await;
            // A contender that has just joined makes an attempt next in any case. If the entry is
            // the first in the queue, the renewal may have stored a wake-up for this contender.
            // Consuming that wake-up here saves a second attempt.
            pin!(joined.waiter.signal.notified()).as_mut().enable();
        }
        joined
    }

    fn new(
        store: Arc<Store<D>>,
        open: OpenFlag,
        request: AcquireRequest,
        waiter: Arc<Waiter>,
    ) -> Self {
        Self {
            store,
            open,
            request,
            waiter,
            attempts: AttemptSchedule::default(),
            granted: false,
        }
    }

    /// Notes that the caller of this contender acts. The poller does more for such a contender.
    fn note_acts(&self) {
        let context = self.store.dialect().context();
        if self.waiter.note_polled(context.clock.now()) {
            context.wait_group.poll_sooner.notify_one();
        }
    }

    /// Sets this process's hint on the lock, so that the store notifies this process of a release.
    async fn set_hint(&mut self) {
        let dialect = self.store.dialect();
        match dialect.set_hint(&self.request.name, HINT_LIFETIME).await {
            Ok(true) => {}
            // The lock was freed before the hint was set.
            Ok(false) => {
                if self.attempts.note_no_hint(dialect.context().clock.now()) {
                    self.waiter.signal.notify_one();
                }
            }
            Err(error) => tracing::debug!(%error, "a hint was not set; a poll finds the release"),
        }
    }
}

#[async_trait]
impl<D: Dialect> Contender for SqlContender<D> {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        self.open.check(D::NAME)?;
        let asked = self.store.dialect().context().clock.now();
        self.note_acts();
        // The queue entry is this process's and no owner's, so any owner may ask.
        let mut request = self.request.clone();
        request.owner = owner;
        let answer = self.store.submit(Operation::Acquire(request)).await?;
        let has_hint = matches!(answer, Answer::BusyNotified(_));
        let attempt = answer.acquired()?;
        self.granted = matches!(attempt, Attempt::Acquired(_));
        if let Attempt::Busy(holder) = &attempt
            && D::NOTIFIES
        {
            self.attempts.note_busy(asked, holder.as_ref());
            if !has_hint {
                self.set_hint().await;
            }
        }
        Ok(attempt)
    }

    async fn wait(&mut self, at_most: Duration) {
        let _asleep = SleepingWaiter::new(&self.store, &self.waiter);
        let clock = &self.store.dialect().context().clock;
        let over = AttemptSchedule::end_of_wait(clock.now(), at_most);
        loop {
            self.note_acts();
            self.store.dialect().prepare_to_wait();
            ensure_polling(&self.store);
            if D::NOTIFIES {
                ensure_listening(&self.store);
            }
            let was_first = self.is_first();
            let (sleep, is_last) = self.attempts.sleep(clock.now(), over, was_first);
            let notified =
                distlock_core::at_most(&**clock, sleep, self.waiter.signal.notified()).await;
            let is_over = match notified {
                Some(()) => self.is_first(),
                // The turn comes without a wake-up when the waiter before this one does not act.
                None => is_last || (self.is_first() && !was_first),
            };
            if is_over {
                return;
            }
        }
    }

    fn is_first(&self) -> bool {
        // Whoever asks for its turn acts, also after an attempt whose answer took long.
        self.note_acts();
        let context = self.store.dialect().context();
        let (group, now) = (&context.wait_group, context.clock.now());
        group.is_turn_of(&self.request.name, &self.waiter, now)
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        if let Some(entry) = self.leave_group() {
            self.store.leave_queue(entry).await;
        }
        Ok(())
    }
}

impl<D: Dialect> SqlContender<D> {
    /// Removes this contender from the waiters of this process. A second call changes nothing.
    /// Returns the queue entry to give up at the store, if there is one.
    fn leave_group(&mut self) -> Option<QueueEntry> {
        let group = &self.store.dialect().context().wait_group;
        group.leave(&self.request.name, &self.waiter, self.granted)
    }
}

impl<D: Dialect> Drop for SqlContender<D> {
    fn drop(&mut self) {
        // A drop cannot send a request: the queue entry stays in the store until its lease ends.
        let _ = self.leave_group();
    }
}

/// Marks a waiter as asleep until this value is dropped.
struct SleepingWaiter<'a, D: Dialect> {
    store: &'a Store<D>,
    waiter: &'a Waiter,
}

impl<'a, D: Dialect> SleepingWaiter<'a, D> {
    fn new(store: &'a Store<D>, waiter: &'a Waiter) -> Self {
        let _waiting = store.dialect().context().wait_group.waiting.lock();
        waiter.asleep.store(true, Ordering::Relaxed);
        store.asleep.fetch_add(1, Ordering::Relaxed);
        // The poller may be in a long sleep, because no sleeping waiter was first in its queue.
        store
            .dialect()
            .context()
            .wait_group
            .poll_sooner
            .notify_one();
        Self { store, waiter }
    }
}

impl<D: Dialect> Drop for SleepingWaiter<'_, D> {
    fn drop(&mut self) {
        let _waiting = self.store.dialect().context().wait_group.waiting.lock();
        self.waiter.asleep.store(false, Ordering::Relaxed);
        self.store.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}
