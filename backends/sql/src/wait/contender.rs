//! One contender at the store.
//!
//! A contender sleeps until the poller, the listener or another handle of this process wakes it. It
//! never polls the store itself, except for its own attempts. Waking without a reason is allowed;
//! missing a wake-up is not, so that a periodic check restarts the tasks that wake it.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use distlock_backend_kit::OpenFlag;
use distlock_core::{AcquireRequest, Attempt, Contender, Grant, HolderInfo, Moment, Result};

use super::{
    listener::ensure_listening, pace, poller::ensure_polling, queue_entries::renew_queue_entries,
    waiter::Waiter, waiter_hint::HINT_LIFETIME,
};
use crate::{
    dialect::{Dialect, QueueEntry},
    operation::{Answer, Operation},
    store::Store,
};

/// How often a sleeping contender checks that a poller and a listener still run for it.
const CHECK_TASKS_EVERY: Duration = Duration::from_secs(1);

/// The longest sleep of one wait. Waking without a reason is allowed; a duration near the largest
/// one overflows clocks.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// One waiter for a lock, at the store and in this process.
pub(crate) struct SqlContender<D: Dialect> {
    store: Arc<Store<D>>,
    open: OpenFlag,
    request: AcquireRequest,
    waiter: Arc<Waiter>,
    /// When to ask again although the store notifies. A store that notifies of releases does not
    /// notify of expiry: the present lease ends then unless it is renewed. It is also the end of
    /// the back-off after lost races.
    ask_again_at: Option<Moment>,
    /// How often in a row other processes passed the lock on too fast for the store to name a
    /// holder.
    lost_races: u32,
    granted: bool,
}

impl<D: Dialect> SqlContender<D> {
    /// Joins the waiters of this process and the store queue.
    pub(crate) async fn join(
        store: Arc<Store<D>>,
        open: OpenFlag,
        request: AcquireRequest,
    ) -> Self {
        let (dialect, name) = (store.dialect(), &request.name);
        let group = Arc::clone(dialect.wait_group());
        let waiter = group.join(name, dialect.clock().now());
        let joined = Self::new(Arc::clone(&store), open, request, waiter);
        // Another waiter of this process may have the queue entry already.
        if !joined.is_first()
            && let Some(entry) =
                group.entry_to_renew(&joined.request.name, store.dialect().clock().now())
        {
            renew_queue_entries(&group, store.dialect(), &[entry]).await;
            // A contender that has just joined makes its attempt next, with or without the wake-up
            // that it is first. Consuming that wake-up here saves a second attempt.
            pin!(joined.waiter.signal.notified()).as_mut().enable();
        }
        joined
    }

    const fn new(
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
            ask_again_at: None,
            lost_races: 0,
            granted: false,
        }
    }

    /// Notes the end of the lease that was in the way.
    fn note_holder(&mut self, asked: Moment, holder: Option<&HolderInfo>) {
        self.ask_again_at = holder
            .and_then(|holder| holder.expires_in)
            .map(|left| asked + left);
        self.lost_races = match holder {
            Some(_) => 0,
            None => self.lost_races.saturating_add(1),
        };
    }

    /// Makes sure that the store notifies this process when the lock becomes free.
    async fn set_hint(&mut self) {
        let dialect = self.store.dialect();
        match dialect.set_hint(&self.request.name, HINT_LIFETIME).await {
            Ok(true) => {}
            // One lost race may be chance. After more, asking again at once is in vain while others
            // are faster, and it delays them.
            Ok(false) if self.lost_races > 1 => {
                self.ask_again_at = Some(dialect.clock().now() + pace::back_off(self.lost_races));
            }
            // The lock was freed meanwhile, and the store notified nobody.
            Ok(false) => self.waiter.signal.notify_one(),
            Err(error) => tracing::debug!(%error, "a waiter hint was not set"),
        }
    }
}

#[async_trait]
impl<D: Dialect> Contender for SqlContender<D> {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.open.check(D::NAME)?;
        let asked = self.store.dialect().clock().now();
        match self
            .store
            .submit(Operation::Acquire(self.request.clone()))
            .await?
        {
            Answer::Acquired(attempt) => {
                self.granted = matches!(attempt, Attempt::Acquired(_));
                if let Attempt::Busy(holder) = &attempt
                    && D::NOTIFIES
                {
                    self.note_holder(asked, holder.as_ref());
                    self.set_hint().await;
                }
                Ok(attempt)
            }
            Answer::BusyNotified(holder) => {
                self.note_holder(asked, Some(&holder));
                Ok(Attempt::Busy(Some(holder)))
            }
            other => Err(other.unexpected()),
        }
    }

    async fn wait(&mut self, at_most: Duration) {
        let _asleep = SleepingWaiter::new(&self.store, &self.waiter);
        let clock = self.store.dialect().clock();
        let over = clock.now() + at_most.min(LONGEST_SLEEP);
        loop {
            if self.waiter.note_polled(clock.now()) {
                self.store.dialect().wait_group().poll_sooner.notify_one();
            }
            ensure_polling(&self.store);
            if D::NOTIFIES {
                ensure_listening(&self.store);
            }
            let first = self.is_first();
            let until = match self.ask_again_at {
                Some(again) if first => over.min(again),
                _ => over,
            };
            let left = until.since(clock.now());
            tokio::select! {
                () = self.waiter.signal.notified() => {
                    if self.is_first() {
                        return;
                    }
                    continue;
                }
                () = clock.sleep(left.min(CHECK_TASKS_EVERY)) => {}
            }
            if left <= CHECK_TASKS_EVERY {
                return;
            }
        }
    }

    fn is_first(&self) -> bool {
        self.store
            .dialect()
            .wait_group()
            .is_first(&self.request.name)
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        if let Some(entry) = self.leave_group() {
            self.store.leave_queue(entry).await;
        }
        Ok(())
    }
}

impl<D: Dialect> SqlContender<D> {
    /// Leaves the waiters of this process, once.
    fn leave_group(&mut self) -> Option<QueueEntry> {
        let group = self.store.dialect().wait_group();
        group.leave(&self.request.name, &self.waiter, self.granted)
    }
}

impl<D: Dialect> Drop for SqlContender<D> {
    fn drop(&mut self) {
        // The queue entry at the store ends with its lease.
        let _ = self.leave_group();
    }
}

/// Marks a waiter as asleep until this is dropped.
struct SleepingWaiter<'a, D: Dialect> {
    store: &'a Store<D>,
    waiter: &'a Waiter,
}

impl<'a, D: Dialect> SleepingWaiter<'a, D> {
    fn new(store: &'a Store<D>, waiter: &'a Waiter) -> Self {
        let _waiting = store.dialect().wait_group().waiting();
        waiter.asleep.store(true, Ordering::Relaxed);
        store.asleep.fetch_add(1, Ordering::Relaxed);
        // The poller may be in a long sleep, because no sleeping waiter was first in its queue.
        store.dialect().wait_group().poll_sooner.notify_one();
        Self { store, waiter }
    }
}

impl<D: Dialect> Drop for SleepingWaiter<'_, D> {
    fn drop(&mut self) {
        let _waiting = self.store.dialect().wait_group().waiting();
        self.waiter.asleep.store(false, Ordering::Relaxed);
        self.store.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}
