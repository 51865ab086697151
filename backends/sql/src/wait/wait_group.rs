//! Who waits in this process, and when the store was last asked for them.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use distlock_core::{LockName, Moment, line::Told};
use tokio::sync::Notify;

use super::{
    pace::{self, Pace},
    wait_state::{AwaitedLock, WaitState},
    waiter::Waiter,
};
use crate::dialect::QueueEntry;

/// All handles of this process on one store: who waits, and when the store was last asked.
pub(crate) struct WaitGroup {
    /// Tells this process's marks from others'.
    hint_id: i64,
    /// Told when the next poll is due sooner than it was.
    pub(super) poll_sooner: Notify,
    // A std mutex: held for map operations only.
    waiting: Mutex<WaitState>,
}

impl WaitGroup {
    /// For a store that is asked at a steady pace.
    #[cfg(feature = "sqlite")]
    pub(crate) fn steady() -> Arc<Self> {
        Self::polled(pace::STEADY, Told::ByLooking)
    }

    /// For a store that is asked more often right after something changed.
    #[cfg(feature = "mysql")]
    pub(crate) fn adaptive() -> Arc<Self> {
        Self::polled(pace::ADAPTIVE, Told::ByLooking)
    }

    /// For a store that tells of releases.
    #[cfg(feature = "postgres")]
    pub(crate) fn pushed() -> Arc<Self> {
        Self::polled(pace::PUSHED, Told::ByStore)
    }

    fn polled(pace: Pace, told: Told) -> Arc<Self> {
        Arc::new(Self {
            hint_id: fastrand::i64(1..),
            poll_sooner: Notify::new(),
            waiting: Mutex::new(WaitState::new(pace, told)),
        })
    }

    pub(crate) fn hint_id(&self) -> i64 {
        self.hint_id
    }

    /// Wakes those who wait for a lock that was freed, as far as is known, if it is their turn.
    pub(crate) fn wake_waiters(&self, name: &LockName) {
        self.waiting().wake(name);
    }

    /// The store says that somebody has left the line at a lock.
    #[cfg(feature = "postgres")]
    pub(crate) fn somebody_left(&self, name: &LockName) {
        if let Some(awaited) = self.waiting().by_name.get_mut(name) {
            awaited.place.somebody_left();
            self.poll_sooner.notify_one();
        }
    }

    /// Whether nobody is ahead of this process at a lock.
    pub(super) fn is_first(&self, name: &LockName) -> bool {
        let waiting = self.waiting();
        let awaited = waiting.by_name.get(name);
        awaited.is_none_or(|awaited| awaited.place.is_first())
    }

    /// Whether somebody of this process waits for it at the store: with another handle than the one that holds it.
    pub(crate) fn has_waiters(&self, name: &LockName) -> bool {
        self.waiting().by_name.contains_key(name)
    }

    /// Wakes all whose turn it is, because any lock may have been freed, and has all others look
    /// where they stand.
    pub(crate) fn any_may_be_free(&self) {
        for awaited in self.waiting().by_name.values_mut() {
            awaited.wake();
            awaited.place.look_again();
        }
        self.poll_sooner.notify_one();
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, WaitState> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(&self, name: &LockName, now: Moment) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter::new(now));
        let mut waiting = self.waiting();
        let told = waiting.told;
        let awaited = waiting.by_name.entry(name.clone());
        let awaited = awaited.or_insert_with(|| AwaitedLock::new(told));
        awaited.waiters.push(Arc::clone(&waiter));
        if waiting.changed(now) {
            self.poll_sooner.notify_one();
        }
        waiter
    }

    /// A waiter goes away, with the lock or without. Gives back the place that is to be given up at
    /// the store: when the last one goes, and when one has got the lock, since whoever else waits
    /// in this process has had its turn with it.
    pub(super) fn leave(
        &self,
        name: &LockName,
        waiter: &Arc<Waiter>,
        granted: bool,
    ) -> Option<QueueEntry> {
        let mut waiting = self.waiting();
        let told = waiting.told;
        let awaited = waiting.by_name.get_mut(name)?;
        let before = awaited.waiters.len();
        awaited.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        if awaited.waiters.len() == before {
            return None;
        }
        let place = QueueEntry {
            name: name.clone(),
            waiter: awaited.waiter,
        };
        if awaited.waiters.is_empty() {
            waiting.by_name.remove(name);
            return Some(place);
        }
        if !granted {
            return None;
        }
        let waiters = std::mem::take(&mut awaited.waiters);
        *awaited = AwaitedLock {
            waiters,
            ..AwaitedLock::new(told)
        };
        self.poll_sooner.notify_one();
        Some(place)
    }

    /// The place of this process at a lock, which is about to be asked for.
    pub(super) fn ask_for(&self, name: &LockName, now: Moment) -> Option<QueueEntry> {
        let mut waiting = self.waiting();
        let awaited = waiting.by_name.get_mut(name)?;
        awaited.place.asking(now);
        Some(QueueEntry {
            name: name.clone(),
            waiter: awaited.waiter,
        })
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("names", &self.waiting().by_name.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use distlock_core::{FencingToken, HolderInfo};

    use super::*;
    use crate::dialect::LockRow;

    const START: Moment = Moment::from_boot(Duration::from_secs(100));

    /// How long the poller sleeps after a poll that saw leases which end so soon, when nothing has changed for long.
    fn sleeps(leases: &[Duration]) -> Duration {
        let group = WaitGroup::adaptive();
        let rows = leases.iter().zip(0..).map(|(free_in, number)| {
            let name = LockName::new(format!("lock-{number}")).unwrap();
            let waiter = group.join(&name, START);
            waiter.asleep.store(true, Ordering::Relaxed);
            let mut holder = HolderInfo::new("holder");
            holder.expires_in = Some(*free_in);
            let row = LockRow {
                owner: None,
                held: Some(holder),
                last_token: FencingToken::new(1).unwrap(),
                forced: false,
                until: None,
                hint_remaining: Duration::from_secs(5),
            };
            (name, Ok(row))
        });
        let rows = rows.collect();
        let mut waiting = group.waiting();
        for awaited in waiting.by_name.values_mut() {
            awaited.place.kept(START, 0);
        }
        waiting.unchanged_polls = 10;
        waiting.next_poll = None;
        let names = waiting.claim_poll(START).unwrap();
        assert_eq!(names.len(), leases.len());
        assert!(waiting.apply_poll(START, names, rows).is_empty());
        waiting.pause(START)
    }

    /// A future that is kept and not polled must not hold its place for ever: nobody behind it would
    /// have a turn.
    #[test]
    fn whoever_is_not_polled_is_passed_over() {
        let group = WaitGroup::adaptive();
        let waiter = group.join(&LockName::new("a").unwrap(), START);
        waiter.asleep.store(true, Ordering::Relaxed);
        let renewed = |now| group.waiting().entries_due(now).len();
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

    #[test]
    fn nobody_sleeps_past_the_end_of_the_earliest_lease() {
        let ms = Duration::from_millis;
        assert_eq!(sleeps(&[ms(9000), ms(30), ms(50)]), ms(30));
        // A lease that is about to end is not asked for all the time.
        assert_eq!(sleeps(&[ms(9000), ms(1)]), pace::ADAPTIVE.at_least);
        let usual = sleeps(&[ms(9000)]).as_micros();
        assert!((57_000..68_000).contains(&usual), "{usual}");
    }
}
