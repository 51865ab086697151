//! The line of those who wait for one lock: whose turn it is, who was told, and who went away without a word.

use std::{collections::VecDeque, task::Waker, time::Duration};

use distlock_core::{Moment, OwnerId};

/// How long a free lock is kept for the one whose turn it is. Whoever does not come in that time (its task is blocked) is
/// passed over until it shows up again.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// A place in a line. Numbers rise in the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueEntry(u64);

impl QueueEntry {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What is done to wakers once the shard's mutex is free again: they may run anybody's code, and that code may call us.
///
/// Declare it before taking the mutex, so that it is dropped after it.
#[derive(Debug, Default)]
pub(crate) struct DeferredWakes {
    wake: Option<Waker>,
    forget: Option<Waker>,
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        if let Some(waker) = self.wake.take() {
            waker.wake();
        }
        drop(self.forget.take());
    }
}

/// Everybody who waits for one lock, in the order of joining.
#[derive(Debug, Default)]
pub(crate) struct StoreQueue {
    waiters: VecDeque<Waiter>,
    /// Whose turn it is, and since when the lock is kept for it. Only while the lock is free.
    called: Option<(QueueEntry, Moment)>,
}

#[derive(Debug)]
struct Waiter {
    entry: QueueEntry,
    owner: OwnerId,
    /// Stopped waiting without leaving (its future was dropped), or did not come when called: passed over for now.
    away: bool,
    /// A wake-up that it has not taken notice of yet.
    woken: bool,
    waker: Option<Waker>,
}

impl StoreQueue {
    pub(crate) fn join(&mut self, entry: QueueEntry, owner: OwnerId) {
        self.waiters.push_back(Waiter {
            entry,
            owner,
            away: false,
            woken: false,
            waker: None,
        });
    }

    /// Gives up a place. Whether the lock was being kept for it.
    pub(crate) fn leave(&mut self, entry: QueueEntry, deferred: &mut DeferredWakes) -> bool {
        if let Some(waiter) = self.position(entry).and_then(|at| self.waiters.remove(at)) {
            deferred.forget = waiter.waker;
        }
        self.called
            .take_if(|(called, _)| *called == entry)
            .is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// This line for another lock, with its memory, unless that is large.
    pub(crate) fn cleared(mut self) -> Self {
        self.called = None;
        if self.waiters.capacity() > 16 {
            self.waiters = VecDeque::new();
        }
        self
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiters.iter().filter(|waiter| !waiter.away).count()
    }

    /// This one is here and looks at the lock itself, so whatever it was woken for is settled.
    pub(crate) fn mark_present(&mut self, entry: QueueEntry) {
        if let Some(waiter) = self.waiter(entry) {
            waiter.away = false;
            waiter.woken = false;
        }
    }

    /// The lock is free: whose turn is it? `None` = nobody's, anyone may take it. Calls that one unless it was called before.
    /// Whoever was called too long ago is passed over, except `here`, who looks at the lock right now.
    pub(crate) fn call_next(
        &mut self,
        now: Moment,
        asking: Option<QueueEntry>,
        deferred: &mut DeferredWakes,
    ) -> Option<QueueEntry> {
        if let Some((entry, _)) = self
            .called
            .take_if(|(called, since)| Some(*called) != asking && now.since(*since) >= GRACE)
            && let Some(waiter) = self.waiter(entry)
        {
            waiter.away = true;
        }
        let first = self.waiters.iter_mut().find(|waiter| !waiter.away)?;
        // Another one may have been called while the first was away.
        if self.called.is_none_or(|(called, _)| called != first.entry) {
            self.called = Some((first.entry, now));
            first.woken = true;
            deferred.wake = first.waker.take();
        }
        Some(first.entry)
    }

    /// How long the lock is still kept for the one who was called.
    pub(crate) fn reserved_for(&self, now: Moment) -> Option<Duration> {
        self.called.map(|(_, since)| (since + GRACE).since(now))
    }

    /// The lock is not free any more.
    pub(crate) fn end_call(&mut self) {
        self.called = None;
    }

    /// The lock was given to this owner: if it waits here, it is to be woken.
    pub(crate) fn wake_owner(&mut self, owner: OwnerId, deferred: &mut DeferredWakes) {
        let mut waiters = self.waiters.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.owner == owner) {
            waiter.woken = true;
            deferred.wake = waiter.waker.take();
        }
    }

    /// Starts or goes on waiting. Whether a wake-up lies there.
    pub(crate) fn start_wait(&mut self, entry: QueueEntry) -> bool {
        self.waiter(entry).is_some_and(|waiter| {
            waiter.away = false;
            waiter.woken
        })
    }

    /// Takes a wake-up, or leaves word whom to wake. `true` = woken.
    pub(crate) fn register_waker(
        &mut self,
        entry: QueueEntry,
        waker: &Waker,
        deferred: &mut DeferredWakes,
    ) -> bool {
        let Some(waiter) = self.waiter(entry) else {
            return true;
        };
        if std::mem::take(&mut waiter.woken) {
            deferred.forget = waiter.waker.take();
            return true;
        }
        if !waiter
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            deferred.forget = waiter.waker.replace(waker.clone());
        }
        false
    }

    /// Stopped waiting without saying why. A wake-up that lies there is kept. Whether the lock was being kept for it.
    pub(crate) fn interrupt(&mut self, entry: QueueEntry, deferred: &mut DeferredWakes) -> bool {
        if let Some(waiter) = self.waiter(entry) {
            waiter.away = true;
            deferred.forget = waiter.waker.take();
        }
        self.called
            .take_if(|(called, _)| *called == entry)
            .is_some()
    }

    fn waiter(&mut self, entry: QueueEntry) -> Option<&mut Waiter> {
        let at = self.position(entry)?;
        self.waiters.get_mut(at)
    }

    fn position(&self, entry: QueueEntry) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&entry, |waiter| waiter.entry)
            .ok()
    }
}
