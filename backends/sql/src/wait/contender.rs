//! One waiter at the store.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Contender, Grant, HolderInfo, Moment, OpenFlag, Result,
};

use super::{
    listener::ensure_listening, pace, poller::ensure_polling, queue_entries::renew_queue_entries,
    waiter::Waiter, waiter_hint::HINT_LIFETIME,
};
use crate::{
    dialect::{Dialect, QueueEntry},
    operation::{Answer, Operation},
    store::Store,
};

/// How often a waiter looks whether somebody still polls and listens for it.
const CHECK_TASKS_EVERY: Duration = Duration::from_secs(1);

/// Longest sleep of one wait. Waking without a reason is allowed; a duration near the largest one overflows clocks.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// A place among those who wait for a lock.
pub(crate) struct SqlContender<D: Dialect> {
    store: Arc<Store<D>>,
    open: OpenFlag,
    request: AcquireRequest,
    waiter: Arc<Waiter>,
    /// When to ask again whoever tells: the present lease ends then unless it is renewed, which a store that tells of releases
    /// does not tell, or the lock goes through other hands until then.
    ask_again_at: Option<Moment>,
    /// How often in a row others passed it on too fast for anybody to say who has it.
    lost_races: u32,
    granted: bool,
}

impl<D: Dialect> SqlContender<D> {
    /// Joins those who wait, here and at the store.
    pub(crate) async fn join(
        store: Arc<Store<D>>,
        open: OpenFlag,
        request: AcquireRequest,
    ) -> Self {
        let (dialect, name) = (store.dialect(), &request.name);
        let group = Arc::clone(dialect.wait_group());
        let waiter = group.join(name, dialect.clock().now());
        let joined = Self::new(Arc::clone(&store), open, request, waiter);
        // Another waiter of this process may keep the place already.
        if !joined.is_first()
            && let Some(place) = group.ask_for(&joined.request.name, store.dialect().clock().now())
        {
            renew_queue_entries(&group, store.dialect(), &[place]).await;
            // Whoever has joined asks next, also without being told that it is the first.
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

    /// Notes when the lease ends that was in the way.
    fn expire(&mut self, asked: Moment, holder: Option<&HolderInfo>) {
        self.ask_again_at = holder
            .and_then(|holder| holder.expires_in)
            .map(|left| asked + left);
        self.lost_races = match holder {
            Some(_) => 0,
            None => self.lost_races.saturating_add(1),
        };
    }

    /// Sees to it that the store tells when the lock is free.
    async fn set_hint(&mut self) {
        let dialect = self.store.dialect();
        match dialect.set_hint(&self.request.name, HINT_LIFETIME).await {
            Ok(true) => {}
            // Once may be chance. Asking at once again is in vain for as long as others are faster, and holds them up.
            Ok(false) if self.lost_races > 1 => {
                self.ask_again_at = Some(dialect.clock().now() + pace::back_off(self.lost_races));
            }
            // Freed meanwhile, which nobody was told.
            Ok(false) => self.waiter.signal.notify_one(),
            Err(error) => tracing::debug!(%error, "a row was not marked as wanted"),
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
                    self.expire(asked, holder.as_ref());
                    self.set_hint().await;
                }
                Ok(attempt)
            }
            Answer::BusyNotified(holder) => {
                self.expire(asked, Some(&holder));
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
        if let Some(place) = self.left() {
            self.store.leave_queue(place).await;
        }
        Ok(())
    }
}

impl<D: Dialect> SqlContender<D> {
    /// Goes away from those who wait in this process, once.
    fn left(&mut self) -> Option<QueueEntry> {
        let group = self.store.dialect().wait_group();
        group.leave(&self.request.name, &self.waiter, self.granted)
    }
}

impl<D: Dialect> Drop for SqlContender<D> {
    fn drop(&mut self) {
        // The place at the store lapses.
        let _ = self.left();
    }
}

/// While a waiter sleeps.
struct SleepingWaiter<'a, D: Dialect> {
    store: &'a Store<D>,
    waiter: &'a Waiter,
}

impl<'a, D: Dialect> SleepingWaiter<'a, D> {
    fn new(store: &'a Store<D>, waiter: &'a Waiter) -> Self {
        let _waiting = store.dialect().wait_group().waiting();
        waiter.asleep.store(true, Ordering::Relaxed);
        store.asleep.fetch_add(1, Ordering::Relaxed);
        // The poller may sleep for long, because nobody was asleep whose turn it is.
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
