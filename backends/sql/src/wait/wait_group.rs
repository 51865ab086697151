//! The waiters of this process at one store.
//!
//! All handles of the process on the same tables share one group, so that one poll of a name serves
//! all handles. No caller holds the mutex of the group across an await.
//!
//! A waiter hint is a mark on a held row that says which process waits for it. A release reads from
//! the hint whether another process waits. A hint expires without any request. Without a hint, a
//! waiter finds the free lock later, at its next poll; exclusion never depends on a hint.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use distlock_backend_kit::queue_entry::LearnsOfChange;
use distlock_core::{AcquireRequest, LockName, Moment, sync::Mutex};
use tokio::sync::Notify;

use super::{
    sleep::{self, Pace},
    wait_state::{AwaitedLock, WaitState, Waiter},
};
use crate::rows::QueueEntry;

/// The waiters of all handles of this process on one store, and the time of the next poll.
pub(crate) struct WaitGroup {
    /// Identifies this process in waiter hints.
    hint_id: i64,
    /// Wakes the poller when the next poll is due sooner than before.
    pub(crate) poll_sooner: Notify,
    // A blocking mutex: no caller holds this mutex across an await.
    pub(crate) waiting: Mutex<WaitState>,
}

impl WaitGroup {
    /// The group for a store that is polled at a steady pace.
    #[cfg(feature = "sqlite")]
    pub(crate) fn steady() -> Arc<Self> {
        Self::with_pace(sleep::STEADY, LearnsOfChange::ByPolling)
    }

    /// The group for a store that is polled more often right after a change.
    #[cfg(feature = "mysql")]
    pub(crate) fn adaptive() -> Arc<Self> {
        Self::with_pace(sleep::ADAPTIVE, LearnsOfChange::ByPolling)
    }

    /// The group for a store that notifies of releases.
    #[cfg(feature = "postgres")]
    pub(crate) fn pushed() -> Arc<Self> {
        Self::with_pace(sleep::PUSHED, LearnsOfChange::ByNotification)
    }

    fn with_pace(pace: Pace, notified_by: LearnsOfChange) -> Arc<Self> {
        Arc::new(Self {
            hint_id: fastrand::i64(1..),
            poll_sooner: Notify::new(),
            waiting: Mutex::new(WaitState::new(pace, notified_by)),
        })
    }

    pub(crate) fn hint_id(&self) -> i64 {
        self.hint_id
    }

    /// Wakes the waiters of a lock that seems to be free, if this process is first in the store
    /// queue of the lock.
    pub(crate) fn wake_waiters(&self, name: &LockName) {
        self.waiting.lock().wake(name);
    }

    /// Notes that the store reported the leave of a contender from the queue of a lock.
    #[cfg(feature = "postgres")]
    pub(crate) fn contender_left(&self, name: &LockName) {
        if let Some(awaited) = self.waiting.lock().by_name.get_mut(name) {
            awaited.position.somebody_left();
            self.poll_sooner.notify_one();
        }
    }

    /// Notes that a thread watches the store from now on, or that it does so no longer.
    #[cfg(feature = "sqlite")]
    pub(crate) fn set_watched(&self, waiting: &mut WaitState, watched: bool) {
        if waiting.is_watched() == watched {
            return;
        }
        if watched {
            waiting.learn(LearnsOfChange::ByWatching, sleep::PUSHED);
        } else {
            waiting.learn(LearnsOfChange::ByPolling, sleep::STEADY);
        }
        self.poll_sooner.notify_one();
    }

    /// Handles what the watch of the store has seen: whether some lock was released, and the number
    /// of contenders that have left some queue.
    #[cfg(feature = "sqlite")]
    pub(crate) fn note_seen(&self, now: Moment, released: bool, left: u32) {
        let mut waiting = self.waiting.lock();
        let WaitState { by_name, polls, .. } = &mut *waiting;
        let (mut any_is_first, mut any_waits_behind) = (false, false);
        for awaited in by_name.values_mut() {
            if awaited.is_first(false) {
                any_is_first = true;
                continue;
            }
            any_waits_behind = true;
            for _ in 0..left {
                awaited.position.somebody_left();
            }
        }
        if released && any_is_first {
            polls.note_release(now);
        }
        if released && any_is_first || left > 0 && any_waits_behind {
            self.poll_sooner.notify_one();
        }
    }

    /// Handles a gap in the watch of the store: any lock may have been released, and any contender
    /// may have left.
    #[cfg(feature = "sqlite")]
    pub(crate) fn note_unwatched(&self, now: Moment) {
        let mut waiting = self.waiting.lock();
        waiting.polls.note_release(now);
        for awaited in waiting.by_name.values_mut() {
            awaited.position.look_again();
        }
        self.poll_sooner.notify_one();
    }

    /// Whether no other process is ahead of this one in the queue of a lock, for a waiter that
    /// passes nobody (`in_order`) or for another one.
    pub(crate) fn is_first(&self, name: &LockName, in_order: bool) -> bool {
        let waiting = self.waiting.lock();
        let awaited = waiting.by_name.get(name);
        awaited.is_none_or(|awaited| awaited.is_first(in_order))
    }

    /// Whether this waiter may ask for the lock.
    pub(crate) fn is_turn_of(&self, name: &LockName, waiter: &Arc<Waiter>, now: Moment) -> bool {
        let waiting = self.waiting.lock();
        let awaited = waiting.by_name.get(name);
        awaited.is_none_or(|awaited| awaited.is_turn_of(waiter, now))
    }

    /// Whether a contender of this process waits for the lock. Waiters in the local queue of the
    /// holder's own handle are no contenders.
    pub(crate) fn has_waiters(&self, name: &LockName) -> bool {
        self.waiting.lock().by_name.contains_key(name)
    }

    /// Handles a gap in the notifications, in which any lock may have become free. Wakes all
    /// waiters that are first, and makes the poller read all other positions again.
    pub(crate) fn any_may_be_free(&self) {
        for awaited in self.waiting.lock().by_name.values_mut() {
            awaited.wake();
            awaited.position.look_again();
        }
        self.poll_sooner.notify_one();
    }

    pub(crate) fn join(&self, request: &AcquireRequest, now: Moment) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new(now, request));
        let mut waiting = self.waiting.lock();
        let notified_by = waiting.notified_by;
        let awaited = waiting.by_name.entry(request.name.clone());
        let awaited = awaited.or_insert_with(|| AwaitedLock::new(notified_by));
        awaited.waiters.push(Arc::clone(&waiter));
        if waiting.polls.note_change(now) {
            self.poll_sooner.notify_one();
        }
        waiter
    }

    /// Removes a waiter, with the lock (`granted`) or without. Returns the queue entry to give up
    /// at the store, in two cases. Either the last waiter of the name has left. Or the waiter has
    /// the lock: then the other waiters of this process join the end of the queue with a new
    /// entry, so that other processes are served in between.
    pub(crate) fn leave(
        &self,
        name: &LockName,
        waiter: &Arc<Waiter>,
        granted: bool,
    ) -> Option<QueueEntry> {
        let mut waiting = self.waiting.lock();
        let notified_by = waiting.notified_by;
        let awaited = waiting.by_name.get_mut(name)?;
        let before = awaited.waiters.len();
        let was_first = awaited.waiters.first();
        let was_first = was_first.is_some_and(|first| Arc::ptr_eq(first, waiter));
        awaited.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        if awaited.waiters.len() == before {
            return None;
        }
        let entry = QueueEntry {
            name: name.clone(),
            id: awaited.entry_id,
            holder: waiter.holder.clone(),
        };
        if awaited.waiters.is_empty() {
            waiting.by_name.remove(name);
            return Some(entry);
        }
        if !granted {
            // The next waiter may have waited for this one.
            if was_first {
                awaited.wake();
            }
            return None;
        }
        let waiters = std::mem::take(&mut awaited.waiters);
        *awaited = AwaitedLock {
            waiters,
            ..AwaitedLock::new(notified_by)
        };
        self.poll_sooner.notify_one();
        Some(entry)
    }

    /// The queue entry of this process for a lock, noted as sent at `now`.
    pub(crate) fn entry_to_renew(&self, name: &LockName, now: Moment) -> Option<QueueEntry> {
        let mut waiting = self.waiting.lock();
        let awaited = waiting.by_name.get_mut(name)?;
        awaited.position.asking(now);
        awaited.entry(name)
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup")
            .field("names", &self.waiting.lock().by_name.len())
            .finish_non_exhaustive()
    }
}

/// The wait groups of one dialect. `K` identifies a set of tables.
pub(crate) struct WaitGroups<K>(LazyLock<Mutex<HashMap<K, Weak<WaitGroup>>>>);

impl<K: Eq + Hash> WaitGroups<K> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The group of the tables `key`: every handle of this process on these tables gets the same
    /// group. If there is no group yet, `new` becomes the group.
    pub(crate) fn shared(&self, key: K, new: &Arc<WaitGroup>) -> Arc<WaitGroup> {
        let mut groups = self.0.lock();
        groups.retain(|_, group| group.strong_count() > 0);
        if let Some(group) = groups.get(&key).and_then(Weak::upgrade) {
            return group;
        }
        groups.insert(key, Arc::downgrade(new));
        Arc::clone(new)
    }
}

/// The lifetime of a hint. Together with [`RENEW_HINT_BELOW`], a process writes its hint once in
/// 4 s.
pub(crate) const HINT_LIFETIME: Duration = Duration::from_secs(5);

/// A hint is renewed when no more than this remains.
pub(crate) const RENEW_HINT_BELOW: Duration = Duration::from_secs(1);

/// The hint of several processes. A process that finds the hint of another process writes this
/// value instead of its own id. The reason: the first process may hold the lock by now, or it may
/// have set the hint after it had taken the lock. A holder ignores the hint of its own process. So
/// the first process's hint alone would hide the second process from the holder.
pub(crate) const SEVERAL_PROCESSES: i64 = 0;

/// The remaining time in which a hint stands for the process with the id `ours`: `left` if the hint
/// is from this process or from several processes, and zero if the hint is from another process.
pub(crate) fn remaining_of_hint(hint_id: i64, ours: i64, left: Duration) -> Duration {
    if hint_id == ours || hint_id == SEVERAL_PROCESSES {
        left
    } else {
        Duration::ZERO
    }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use distlock_backend_kit::queue_entry::ContendersAhead;
    use distlock_core::{FencingToken, HolderInfo, HolderLabel, OwnerId, Ttl};

    use super::*;
    use crate::rows::LockRow;

    const START: Moment = Moment::from_boot(Duration::from_secs(100));

    fn request(name: &str) -> AcquireRequest {
        AcquireRequest::new(
            LockName::new(name).unwrap(),
            OwnerId::new(),
            Ttl::new(Duration::from_secs(10)).unwrap(),
            HolderLabel::new("waiter").unwrap(),
        )
    }

    /// The pause after a poll that found leases with these remaining times, when the last
    /// change is long ago.
    fn pause_after_poll(leases: &[Duration]) -> Duration {
        let group = WaitGroup::adaptive();
        let rows = leases.iter().zip(0..).map(|(free_in, number)| {
            let request = request(&format!("lock-{number}"));
            let waiter = group.join(&request, START);
            waiter.asleep.store(true, Ordering::Relaxed);
            let mut holder = HolderInfo::new("holder");
            holder.expires_in = Some(*free_in);
            let row = LockRow {
                owner: None,
                held: Some(holder),
                last_token: FencingToken::new(1).unwrap(),
                nonce: None,
                forced: false,
                freed_at: None,
                hint_remaining: Duration::from_secs(5),
            };
            (request.name, Ok(row))
        });
        let rows = rows.collect();
        let mut waiting = group.waiting.lock();
        for awaited in waiting.by_name.values_mut() {
            awaited.position.kept(START, ContendersAhead::default());
        }
        waiting.polls.changed = None;
        waiting.polls.next = None;
        let names = waiting.claim_poll(START).unwrap();
        assert_eq!(names.len(), leases.len());
        assert!(waiting.apply_poll(START, names, rows).is_empty());
        waiting.pause(START)
    }

    /// A caller can keep the future of a waiter without polling the future. The queue entry of such
    /// a waiter must end: all contenders behind the entry would wait for ever.
    #[test]
    fn the_queue_entry_of_a_waiter_that_is_not_polled_is_not_renewed() {
        let group = WaitGroup::adaptive();
        let waiter = group.join(&request("a"), START);
        waiter.asleep.store(true, Ordering::Relaxed);
        let renewed = |now| group.waiting.lock().entries_due(now).len();
        assert_eq!(renewed(START), 1);
        let later = START + Duration::from_secs(3);
        assert_eq!(renewed(later), 0);
        assert!(
            waiter.note_polled(later),
            "so that the poller is told of it"
        );
        assert_eq!(renewed(later), 1);
        assert!(!waiter.note_polled(later));
    }

    /// The other waiters of the process keep its entry alive, so all other processes would wait for
    /// the one that does not act.
    #[test]
    fn a_waiter_in_order_that_is_not_polled_is_skipped() {
        let (group, mut request) = (WaitGroup::adaptive(), request("a"));
        request.in_order = true;
        let [idle, acts] = [(); 2].map(|()| group.join(&request, START));
        let turns = |now| [&idle, &acts].map(|it| group.is_turn_of(&request.name, it, now));
        assert_eq!(turns(START), [false, false], "the entry is not kept yet");
        for awaited in group.waiting.lock().by_name.values_mut() {
            awaited.position.kept(START, ContendersAhead::default());
        }
        assert_eq!(turns(START), [true, false]);
        let later = START + Duration::from_secs(3);
        acts.note_polled(later);
        assert_eq!(turns(later), [false, true]);
        idle.note_polled(later);
        assert_eq!(turns(later), [true, false], "it has kept its place");
    }

    /// No attempt is made: the poll finds a free lock, and leaves a hint on a held one.
    #[test]
    fn a_process_that_becomes_the_first_polls_at_once() {
        let group = WaitGroup::adaptive();
        let request = request("a");
        let waiter = group.join(&request, START);
        waiter.asleep.store(true, Ordering::Relaxed);
        let mut waiting = group.waiting.lock();
        for (count, is_due) in [(1, false), (0, true)] {
            let entry = waiting.by_name[&request.name].entry(&request.name).unwrap();
            let ended_in = Duration::from_secs(4);
            let kept = vec![(request.name.clone(), ContendersAhead { count, ended_in })];
            waiting.note_renewed(&[entry], Ok(kept), START);
            assert_eq!(waiting.pause(START).is_zero(), is_due, "{count} ahead");
        }
        let names = waiting.claim_poll(START);
        assert_eq!(names.as_deref(), Some(&[request.name][..]));
        assert!(!waiting.pause(START).is_zero());
    }

    #[test]
    fn the_poller_wakes_at_the_end_of_the_earliest_lease() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after_poll(&[ms(9000), ms(30), ms(50)]), ms(30));
        // The pause is never shorter than `at_least`, even when a lease ends sooner.
        assert_eq!(
            pause_after_poll(&[ms(9000), ms(1)]),
            sleep::ADAPTIVE.at_least
        );
        let usual = pause_after_poll(&[ms(9000)]).as_micros();
        assert!((57_000..68_000).contains(&usual), "{usual}");
    }
}
