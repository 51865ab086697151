//! The names that this process waits for.
//!
//! The functions only decide what to send; the callers send the requests.
//!
//! A waiter counts as absent if its future is not polled any more.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_backend_kit::queue_entry::{ContendersAhead, EntrySchedule, LearnsOfChange};
use distlock_core::{
    AcquireRequest, FencingToken, HolderLabel, LockName, Moment, Result, sync::Mutex,
};
use tokio::sync::Notify;

use super::{
    sleep::{Pace, PollSchedule},
    wait_group::RENEW_HINT_BELOW,
};
use crate::rows::{LockRow, QueueEntry};

/// Queue entries that become due within this time are renewed together, in one request.
const SHARED_REQUEST_WINDOW: Duration = Duration::from_millis(650);

pub(crate) struct WaitState {
    pub(crate) by_name: HashMap<LockName, AwaitedLock>,
    pub(crate) polls: PollSchedule,
    pub(crate) notified_by: LearnsOfChange,
}

/// A lock that at least one waiter of this process waits for.
pub(crate) struct AwaitedLock {
    pub(crate) waiters: Vec<Arc<Waiter>>,
    /// The fencing token that the last poll found.
    pub(crate) token: Option<FencingToken>,
    /// The position of this process in the store queue.
    pub(crate) position: EntrySchedule,
    /// The random id of the queue entry.
    pub(crate) entry_id: i64,
}

impl WaitState {
    pub(crate) fn new(pace: Pace, notified_by: LearnsOfChange) -> Self {
        Self {
            by_name: HashMap::new(),
            polls: PollSchedule::new(pace),
            notified_by,
        }
    }

    /// Whether a thread of this process watches the store for the waiters.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_watched(&self) -> bool {
        self.notified_by == LearnsOfChange::ByWatching
    }

    /// Changes the way in which the waiters learn of a release and of their turn.
    #[cfg(feature = "sqlite")]
    pub(crate) fn learn(&mut self, learns: LearnsOfChange, pace: Pace) {
        self.notified_by = learns;
        self.polls.keep(pace);
        for awaited in self.by_name.values_mut() {
            awaited.position.learn(learns);
        }
    }

    /// The time until the poller must send its next request, for a lock or for a queue entry.
    pub(crate) fn pause(&mut self, now: Moment) -> Duration {
        let asleep = || self.by_name.values().filter(|it| it.is_asleep(now));
        let entry_due_in = asleep().map(|it| it.position.due_in(now)).min();
        let is_first = asleep().any(AwaitedLock::may_ask);
        self.polls.sleep(now, entry_due_in, is_first)
    }

    /// Claims the poll that is due, and returns the names to read. `None` when no poll is due: the
    /// poller of another handle has claimed this poll.
    pub(crate) fn claim_poll(&mut self, now: Moment) -> Option<Vec<LockName>> {
        if !self.polls.is_due(now) {
            return None;
        }
        let awaited = self.by_name.iter();
        let names: Vec<_> = awaited
            .filter(|(_, awaited)| awaited.is_asleep(now) && awaited.may_ask())
            .map(|(name, _)| name.clone())
            .collect();
        if !names.is_empty() {
            self.polls.note_sent(now, names.len());
        }
        Some(names)
    }

    /// The queue entries to renew now. As soon as one entry is due, all entries that are due within
    /// [`SHARED_REQUEST_WINDOW`] are included.
    pub(crate) fn entries_due(&mut self, now: Moment) -> Vec<QueueEntry> {
        let asleep = self.by_name.iter_mut().filter(|(_, it)| it.is_asleep(now));
        let due: Vec<_> = asleep
            .map(|(name, it)| {
                let due = it.position.due_in(now);
                (name, it, due)
            })
            .filter(|(.., due)| *due <= SHARED_REQUEST_WINDOW)
            .collect();
        if due.iter().all(|(.., due)| !due.is_zero()) {
            return Vec::new();
        }
        let entries = due.into_iter().filter_map(|(name, it, _)| {
            it.position.asking(now);
            it.entry(name)
        });
        let mut entries: Vec<_> = entries.collect();
        // All processes use the same order. Otherwise two processes could wait for each other's
        // rows, a deadlock.
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        entries
    }

    /// Notes the result `kept` of renewing `entries`. Returns the entries that no waiter uses any
    /// more.
    pub(crate) fn note_renewed(
        &mut self,
        entries: &[QueueEntry],
        kept: Result<Vec<(LockName, ContendersAhead)>>,
        now: Moment,
    ) -> Vec<QueueEntry> {
        match kept {
            Ok(kept) => {
                let mut kept: HashMap<_, _> = kept.into_iter().collect();
                for entry in entries {
                    // An entry that is absent from the result was removed by another client. A
                    // later request takes the entry again.
                    if let Some(ahead) = kept.remove(&entry.name) {
                        self.update(entry, now, |at| at.kept(now, ahead));
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "queue entries were not renewed; it is tried again");
                for entry in entries {
                    let awaited = self.by_name.get(&entry.name);
                    let in_order = awaited.is_some_and(AwaitedLock::has_waiter_in_order);
                    self.update(entry, now, |at| at.not_kept(now, &error, in_order));
                }
            }
        }
        let is_gone = |entry: &&QueueEntry| {
            let awaited = self.by_name.get(&entry.name);
            awaited.is_none_or(|awaited| awaited.entry_id != entry.id)
        };
        entries.iter().filter(is_gone).cloned().collect()
    }

    /// Notes a new position of an entry. If this process became the first, by an entry that is kept
    /// or without one, wakes the waiters or makes a poll due.
    pub(crate) fn update(
        &mut self,
        entry: &QueueEntry,
        now: Moment,
        note: impl FnOnce(&mut EntrySchedule),
    ) {
        let Some(awaited) = self.by_name.get_mut(&entry.name) else {
            return;
        };
        if awaited.entry_id != entry.id {
            return;
        }
        let was_first = [false, true].map(|in_order| awaited.is_first(in_order));
        note(&mut awaited.position);
        let became_first =
            |in_order| awaited.is_first(in_order) && !was_first[usize::from(in_order)];
        if !became_first(false) && !became_first(true) {
            return;
        }
        if self.notified_by != LearnsOfChange::ByNotification {
            // The lock is mostly held still. A look costs less than a refused attempt, and it
            // leaves the hint with which the holder learns of its waiters.
            self.polls.note_change(now);
            self.polls.poll_at(now);
            return;
        }
        // Waiters that are not asleep get a wake-up too: such a waiter may have read its position
        // just before this change, and may fall asleep after this change.
        let woken = awaited
            .waiters
            .iter()
            .filter(|it| became_first(it.in_order));
        woken.for_each(|waiter| waiter.signal.notify_one());
    }

    /// Applies the rows that a poll read: wakes the waiters of free locks, and sets the time of the
    /// next poll. Returns the held names whose hint must be set.
    pub(crate) fn apply_poll(
        &mut self,
        polled: Moment,
        names: Vec<LockName>,
        mut rows: HashMap<LockName, Result<LockRow>>,
    ) -> Vec<LockName> {
        let mut unmarked = Vec::new();
        let mut earliest = Duration::MAX;
        let mut changed = false;
        for name in names {
            match rows.remove(&name) {
                Some(Ok(row)) if row.held.is_some() => {
                    if let Some(awaited) = self.by_name.get_mut(&name) {
                        let before = awaited.token.replace(row.last_token);
                        changed |= before.is_some_and(|before| before != row.last_token);
                    }
                    earliest = earliest.min(row.free_in());
                    if row.hint_remaining <= RENEW_HINT_BELOW {
                        unmarked.push(name);
                    }
                }
                // The row is free, absent or unreadable. The waiter's next attempt finds out which
                // of these is the case.
                _ => {
                    changed = true;
                    self.wake(&name);
                }
            }
        }
        self.polls.note_answer(polled, changed, earliest);
        unmarked
    }

    pub(crate) fn wake(&self, name: &LockName) {
        if let Some(awaited) = self.by_name.get(name) {
            awaited.wake();
        }
    }
}

impl AwaitedLock {
    pub(crate) fn new(notified_by: LearnsOfChange) -> Self {
        Self {
            waiters: Vec::new(),
            token: None,
            position: EntrySchedule::new(notified_by),
            entry_id: fastrand::i64(1..),
        }
    }

    /// The queue entry of this process, with the label of the waiter that came first. `None`
    /// without a waiter.
    pub(crate) fn entry(&self, name: &LockName) -> Option<QueueEntry> {
        Some(QueueEntry {
            name: name.clone(),
            id: self.entry_id,
            holder: self.waiters.first()?.holder.clone(),
        })
    }

    pub(crate) fn is_asleep(&self, now: Moment) -> bool {
        self.waiters.iter().any(|waiter| waiter.is_asleep(now))
    }

    fn has_waiter_in_order(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.in_order)
    }

    /// Whether no other process is ahead. `in_order`: for a waiter that passes nobody, so the store
    /// must keep the entry.
    pub(crate) const fn is_first(&self, in_order: bool) -> bool {
        self.position.is_first(in_order)
    }

    /// Whether some waiter may ask for the lock, so that a poll is of use.
    fn may_ask(&self) -> bool {
        self.waiters.iter().any(|it| self.is_first(it.in_order))
    }

    /// Whether this waiter may ask for the lock. Of the waiters that come in order, only the first
    /// one that still acts may ask. A waiter that does not act would block the queue otherwise,
    /// because the others keep the entry of the process alive.
    pub(crate) fn is_turn_of(&self, waiter: &Arc<Waiter>, now: Moment) -> bool {
        if !self.is_first(waiter.in_order) {
            return false;
        }
        let mut present = self.waiters.iter().filter(|it| it.is_present(now));
        !waiter.in_order || present.next().is_some_and(|it| Arc::ptr_eq(it, waiter))
    }

    /// Wakes the waiters for which this process is first in the queue.
    pub(crate) fn wake(&self) {
        let woken = self.waiters.iter().filter(|it| self.is_first(it.in_order));
        woken.for_each(|waiter| waiter.signal.notify_one());
    }
}

/// A waiter counts as absent when its future was not polled for this long. The poller then renews
/// no queue entry and sends no poll for this waiter, and the next waiter of this process gets its
/// turn. A future that its runtime still polls is polled each second.
const UNPOLLED_LIMIT: Duration = Duration::from_millis(2500);

/// One contender.
pub(crate) struct Waiter {
    pub(crate) signal: Notify,
    /// The label of this contender.
    pub(crate) holder: HolderLabel,
    /// Whether this contender passes nobody.
    pub(crate) in_order: bool,
    /// Whether the waiter sleeps now. The value changes only under the mutex of the wait group.
    pub(crate) asleep: AtomicBool,
    /// The time of the last poll of the waiter's future. A caller can keep a future without polling
    /// it. Without [`UNPOLLED_LIMIT`], the queue entry of such a future would be renewed for ever,
    /// and all contenders behind the entry would wait for ever.
    last_polled: Mutex<Moment>,
}

impl Waiter {
    pub(crate) fn new(now: Moment, request: &AcquireRequest) -> Self {
        Self {
            signal: Notify::new(),
            holder: request.holder.clone(),
            in_order: request.in_order,
            asleep: AtomicBool::new(false),
            last_polled: Mutex::new(now),
        }
    }

    /// Notes that the waiter's future was polled. Returns whether the waiter counted as absent
    /// until now.
    pub(crate) fn note_polled(&self, now: Moment) -> bool {
        let mut last_polled = self.last_polled.lock();
        let before = std::mem::replace(&mut *last_polled, now);
        now.since(before) >= UNPOLLED_LIMIT
    }

    fn is_present(&self, now: Moment) -> bool {
        now.since(*self.last_polled.lock()) < UNPOLLED_LIMIT
    }

    fn is_asleep(&self, now: Moment) -> bool {
        self.asleep.load(Ordering::Relaxed) && self.is_present(now)
    }
}
