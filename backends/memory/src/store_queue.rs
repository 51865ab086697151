//! The store queue of one lock: the contenders in the order in which they joined.
//!
//! This module owns the turn: the reservation of a free lock for one contender. A contender is
//! skipped or present, and only present contenders get the turn. Invariant: while a present
//! contender waits and the lock is free, exactly one contender has the turn, and that contender has
//! been woken. This module must never run a waker under the shard's mutex: a waker may run code of
//! the caller, which would deadlock if it called the table.

use std::{collections::VecDeque, task::Waker, time::Duration};

use distlock_backend_kit::queue_entry::SHOWN_ENTRIES;
use distlock_core::{AcquireRequest, HolderInfo, HolderLabel, Moment, OwnerId};

/// The time for which a free lock is reserved for the contender that has the turn. If that
/// contender makes no attempt in this time (its task is blocked), it is skipped until its next
/// call.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// The contenders at the front of a queue sleep at most this long without a look at it; a look
/// costs a hash look-up and a timer. Without this limit, a contender would sleep until the end of
/// the former lease if the contender before it had the turn and made no attempt.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The number of contenders at the front. The look of any of them ends such a turn, so those behind
/// sleep longer, and many contenders that wait cost little.
const FRONT: usize = 8;
/// The longest sleep far behind. The front may leave soon after such a sleep has begun.
const LONGEST_SLEEP_BEHIND: Duration = Duration::from_secs(20);

/// An entry in a store queue. The numbers rise in the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueEntry(u64);

impl QueueEntry {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Wakers that are called or dropped after the shard's mutex is unlocked. Calling or dropping a
/// waker may run code of the caller, and that code may call the table.
///
/// The drop of this value calls or drops its wakers. Declare the value before locking the mutex, so
/// that it is dropped after the mutex guard.
#[derive(Debug, Default)]
pub(crate) struct DeferredWakes {
    /// The waker that is called.
    wake: Option<Waker>,
    /// A waker that is replaced or no longer needed. This waker is dropped and not called.
    drop_only: Option<Waker>,
}

impl Drop for DeferredWakes {
    fn drop(&mut self) {
        if let Some(waker) = self.wake.take() {
            waker.wake();
        }
        drop(self.drop_only.take());
    }
}

/// All contenders of one lock, in the order of joining.
#[derive(Debug, Default)]
pub(crate) struct StoreQueue {
    waiters: VecDeque<Waiter>,
    /// The contender that has the turn, and the moment at which its reservation began. `Some` only
    /// while the lock is free.
    turn: Option<(QueueEntry, Moment)>,
}

#[derive(Debug)]
struct Waiter {
    entry: QueueEntry,
    owner: OwnerId,
    /// The label of the contender, which `inspect` shows.
    holder: HolderLabel,
    /// Whether the contender is skipped when the turn is given: it dropped its wait and kept its
    /// entry, or it made no attempt while it had the turn.
    skipped: bool,
    /// Whether the contender was woken and has not polled its wait since.
    woken: bool,
    waker: Option<Waker>,
}

impl StoreQueue {
    /// Adds a contender at the end. Each call must pass a higher entry than the one before.
    pub(crate) fn join(&mut self, entry: QueueEntry, request: &AcquireRequest) {
        self.waiters.push_back(Waiter {
            entry,
            owner: request.owner,
            holder: request.holder.clone(),
            skipped: false,
            woken: false,
            waker: None,
        });
    }

    /// Removes an entry and ends its turn. Returns whether the entry had the turn. The caller then
    /// gives the turn to the next contender if the lock is still free.
    pub(crate) fn leave(&mut self, entry: QueueEntry, deferred: &mut DeferredWakes) -> bool {
        if let Some(waiter) = self.position(entry).and_then(|at| self.waiters.remove(at)) {
            deferred.drop_only = waiter.waker;
        }
        self.turn.take_if(|(turn, _)| *turn == entry).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Empties the queue for use by another lock. The queue keeps its memory, unless that is large.
    pub(crate) fn into_spare(mut self) -> Self {
        self.turn = None;
        if self.waiters.capacity() > 16 {
            self.waiters = VecDeque::new();
        }
        self
    }

    /// Returns the number of present contenders.
    pub(crate) fn present_count(&self) -> usize {
        self.present().count()
    }

    /// Returns the first present contenders, in the order of the queue.
    pub(crate) fn first_present(&self) -> Vec<HolderInfo> {
        let first = self.present().take(SHOWN_ENTRIES);
        first
            .map(|waiter| HolderInfo::new(waiter.holder.as_str()))
            .collect()
    }

    fn present(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter().filter(|waiter| !waiter.skipped)
    }

    /// Records that this contender makes an attempt: it is present, and its pending wake-up is used
    /// up.
    pub(crate) fn mark_present(&mut self, entry: QueueEntry) {
        if let Some(waiter) = self.waiter_mut(entry) {
            waiter.skipped = false;
            waiter.woken = false;
        }
    }

    /// Gives the turn to the first present contender of a free lock, wakes that contender, and
    /// returns its entry. `None`: no contender is present, so any caller may take the lock. A
    /// contender that already has the turn is not woken again. A contender that keeps the turn for
    /// longer than [`GRACE`] is skipped, unless that contender makes this call (`asking`).
    pub(crate) fn give_turn(
        &mut self,
        now: Moment,
        asking: Option<QueueEntry>,
        deferred: &mut DeferredWakes,
    ) -> Option<QueueEntry> {
        if let Some((entry, _)) = self
            .turn
            .take_if(|(turn, since)| Some(*turn) != asking && now.since(*since) >= GRACE)
            && let Some(waiter) = self.waiter_mut(entry)
        {
            waiter.skipped = true;
        }
        let first = self.waiters.iter_mut().find(|waiter| !waiter.skipped)?;
        // A later contender may have the turn, because the first one was skipped and is present
        // again.
        if self.turn.is_none_or(|(turn, _)| turn != first.entry) {
            self.turn = Some((first.entry, now));
            first.woken = true;
            deferred.wake = first.waker.take();
        }
        Some(first.entry)
    }

    /// Returns the rest of the reservation; `None`: no contender has the turn.
    pub(crate) fn reservation_left(&self, now: Moment) -> Option<Duration> {
        self.turn.map(|(_, since)| (since + GRACE).since(now))
    }

    /// Returns the time for which this contender sleeps at most.
    pub(crate) fn longest_sleep(&self, entry: QueueEntry) -> Duration {
        let ahead = self.position(entry).unwrap_or_default();
        let times = u32::try_from(ahead / FRONT).unwrap_or(u32::MAX);
        (LONGEST_SLEEP * times).clamp(LONGEST_SLEEP, LONGEST_SLEEP_BEHIND)
    }

    /// Ends the turn, because the lock is held now.
    pub(crate) fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Wakes the contender of the owner that got the lock by hand-over, if it waits in this queue.
    pub(crate) fn wake_owner(&mut self, owner: OwnerId, deferred: &mut DeferredWakes) {
        let mut waiters = self.waiters.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.owner == owner) {
            waiter.woken = true;
            deferred.wake = waiter.waker.take();
        }
    }

    /// Records that a contender waits, and is therefore present. Returns whether a wake-up is
    /// pending for it.
    pub(crate) fn mark_waiting(&mut self, entry: QueueEntry) -> bool {
        self.waiter_mut(entry).is_some_and(|waiter| {
            waiter.skipped = false;
            waiter.woken
        })
    }

    /// Takes a pending wake-up, or stores the waker for the next one. Returns `true` if a wake-up
    /// was pending or the entry is no longer in the queue.
    pub(crate) fn register_waker(
        &mut self,
        entry: QueueEntry,
        waker: &Waker,
        deferred: &mut DeferredWakes,
    ) -> bool {
        let Some(waiter) = self.waiter_mut(entry) else {
            return true;
        };
        if std::mem::take(&mut waiter.woken) {
            deferred.drop_only = waiter.waker.take();
            return true;
        }
        if !waiter
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            deferred.drop_only = waiter.waker.replace(waker.clone());
        }
        false
    }

    /// Marks a contender as skipped after its wait was dropped, and ends its turn. A pending
    /// wake-up is kept. Returns whether the contender had the turn.
    pub(crate) fn mark_skipped(&mut self, entry: QueueEntry, deferred: &mut DeferredWakes) -> bool {
        if let Some(waiter) = self.waiter_mut(entry) {
            waiter.skipped = true;
            deferred.drop_only = waiter.waker.take();
        }
        self.turn.take_if(|(turn, _)| *turn == entry).is_some()
    }

    fn waiter_mut(&mut self, entry: QueueEntry) -> Option<&mut Waiter> {
        let at = self.position(entry)?;
        self.waiters.get_mut(at)
    }

    /// Returns the index of an entry. The entries are sorted, so a binary search finds it.
    fn position(&self, entry: QueueEntry) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&entry, |waiter| waiter.entry)
            .ok()
    }
}
