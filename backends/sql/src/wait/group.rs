//! Who waits in this process, and when the store was last asked for them.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    FencingToken, LockName, Moment, Result,
    line::{PLACE_LEASE, PlaceInLine, Told},
};
use tokio::sync::Notify;

use super::{RENEW_WANTED, pace::Pace};
use crate::dialect::{Dialect, LockRow, Place};

/// After a poll that failed.
pub(super) const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Places that are due within this time share a request.
const TOGETHER: Duration = Duration::from_millis(650);

/// A waiter whose future was not polled for so long is passed over. It is polled each second.
const UNHEARD: Duration = Duration::from_millis(2500);

/// How long a poller sleeps at most.
const LONGEST: Duration = Duration::from_secs(1);

/// All handles of this process on one store: who waits, and when the store was last asked.
pub(crate) struct Group {
    /// Tells this process's marks from others'.
    mark: i64,
    /// Told when the next poll is due sooner than it was.
    pub(super) sooner: Notify,
    // A std mutex: held for map operations only.
    waiting: Mutex<Waiting>,
}

pub(super) struct Waiting {
    by_name: HashMap<LockName, Awaited>,
    pub(super) next_poll: Option<Moment>,
    pace: Pace,
    told: Told,
    /// Polls since something changed.
    quiet: u32,
}

/// A lock that somebody waits for.
struct Awaited {
    waiters: Vec<Arc<Waiter>>,
    /// What the last poll saw.
    token: Option<FencingToken>,
    /// The place of this process in the line at the store.
    place: PlaceInLine,
    /// What identifies the place there.
    waiter: i64,
}

/// One contender.
pub(super) struct Waiter {
    pub(super) signal: Notify,
    /// Whether it sleeps now. Changed under the group's mutex only.
    pub(super) asleep: AtomicBool,
    /// When its future was polled the last time. One that is kept and not polled any more would
    /// hold a place, and the turn of everybody behind it, for ever.
    heard: Mutex<Moment>,
}

impl Group {
    /// For a store that is asked at a steady pace.
    #[cfg(feature = "sqlite")]
    pub(crate) fn steady() -> Arc<Self> {
        Self::polled(super::pace::STEADY, Told::ByLooking)
    }

    /// For a store that is asked more often right after something changed.
    #[cfg(feature = "mysql")]
    pub(crate) fn adaptive() -> Arc<Self> {
        Self::polled(super::pace::ADAPTIVE, Told::ByLooking)
    }

    /// For a store that tells of releases.
    #[cfg(feature = "postgres")]
    pub(crate) fn pushed() -> Arc<Self> {
        Self::polled(super::pace::PUSHED, Told::ByStore)
    }

    fn polled(pace: Pace, told: Told) -> Arc<Self> {
        Arc::new(Self {
            mark: fastrand::i64(1..),
            sooner: Notify::new(),
            waiting: Mutex::new(Waiting {
                by_name: HashMap::new(),
                next_poll: None,
                pace,
                told,
                quiet: 0,
            }),
        })
    }

    pub(crate) fn mark(&self) -> i64 {
        self.mark
    }

    /// Wakes those who wait for a lock that was freed, as far as is known, if it is their turn.
    pub(crate) fn freed(&self, name: &LockName) {
        self.waiting().wake(name);
    }

    /// The store says that somebody has left the line at a lock.
    #[cfg(feature = "postgres")]
    pub(crate) fn somebody_left(&self, name: &LockName) {
        if let Some(awaited) = self.waiting().by_name.get_mut(name) {
            awaited.place.somebody_left();
            self.sooner.notify_one();
        }
    }

    /// Whether nobody is ahead of this process at a lock.
    pub(super) fn is_first(&self, name: &LockName) -> bool {
        let waiting = self.waiting();
        let awaited = waiting.by_name.get(name);
        awaited.is_none_or(|awaited| awaited.place.is_first())
    }

    /// Whether somebody of this process waits for it at the store: with another handle than the one that holds it.
    pub(crate) fn anybody_waits(&self, name: &LockName) -> bool {
        self.waiting().by_name.contains_key(name)
    }

    /// Wakes all whose turn it is, because any lock may have been freed, and has all others look
    /// where they stand.
    pub(crate) fn freed_any(&self) {
        for awaited in self.waiting().by_name.values_mut() {
            awaited.wake();
            awaited.place.look_again();
        }
        self.sooner.notify_one();
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(&self, name: &LockName, now: Moment) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            signal: Notify::new(),
            asleep: AtomicBool::new(false),
            heard: Mutex::new(now),
        });
        let mut waiting = self.waiting();
        let told = waiting.told;
        let awaited = waiting.by_name.entry(name.clone());
        let awaited = awaited.or_insert_with(|| Awaited::new(told));
        awaited.waiters.push(Arc::clone(&waiter));
        if waiting.changed(now) {
            self.sooner.notify_one();
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
    ) -> Option<Place> {
        let mut waiting = self.waiting();
        let told = waiting.told;
        let awaited = waiting.by_name.get_mut(name)?;
        let before = awaited.waiters.len();
        awaited.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        if awaited.waiters.len() == before {
            return None;
        }
        let place = Place {
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
        *awaited = Awaited {
            waiters,
            ..Awaited::new(told)
        };
        self.sooner.notify_one();
        Some(place)
    }

    /// The place of this process at a lock, which is about to be asked for.
    pub(super) fn ask_for(&self, name: &LockName, now: Moment) -> Option<Place> {
        let mut waiting = self.waiting();
        let awaited = waiting.by_name.get_mut(name)?;
        awaited.place.asking(now);
        Some(Place {
            name: name.clone(),
            waiter: awaited.waiter,
        })
    }

    /// Takes or renews places, and wakes those who are first now.
    pub(super) async fn keep<D: Dialect>(&self, dialect: &D, places: &[Place]) {
        let kept = dialect.keep_places(places, PLACE_LEASE).await;
        let now = dialect.clock().now();
        let gone = self.waiting().note_kept(places, kept, now);
        // Whoever left meanwhile gave the place up on another connection, perhaps before it was
        // renewed on this one.
        if !gone.is_empty()
            && let Err(error) = dialect.leave_lines(&gone).await
        {
            tracing::debug!(%error, "places in lines were not given up");
        }
    }
}

impl Waiting {
    /// How long until the store is to be asked again, for a lock or for a place.
    pub(super) fn pause(&mut self, now: Moment) -> Duration {
        let asleep = self.by_name.values().filter(|it| it.is_asleep(now));
        let (first, others): (Vec<_>, Vec<_>) = asleep.partition(|it| it.place.is_first());
        let due = first.iter().chain(&others);
        let due = due.map(|it| it.place.due_in(now)).min().unwrap_or(LONGEST);
        if first.is_empty() {
            return due.min(LONGEST);
        }
        self.until_poll(now).min(due)
    }

    fn until_poll(&mut self, now: Moment) -> Duration {
        // A group may be shared by handles with different clocks, in tests: a time far off is another clock's.
        match self.next_poll.map(|next| next.since(now)) {
            Some(pause)
                if pause <= AFTER_FAILURE.max(Duration::from_micros(self.pace.last.end)) =>
            {
                pause
            }
            _ => {
                let pause = self.every();
                self.next_poll = Some(now + pause);
                pause
            }
        }
    }

    /// Takes the poll that is due, and the names to ask for. `None` when another handle took it.
    pub(super) fn claim(&mut self, now: Moment) -> Option<Vec<LockName>> {
        if self.next_poll.is_some_and(|next| next > now) {
            return None;
        }
        let awaited = self.by_name.iter();
        let names: Vec<_> = awaited
            .filter(|(_, awaited)| awaited.is_asleep(now) && awaited.place.is_first())
            .map(|(name, _)| name.clone())
            .collect();
        if !names.is_empty() {
            self.next_poll = Some(now + self.every());
        }
        Some(names)
    }

    /// The places that are to be asked for now, and those that will be soon: they share a request.
    pub(super) fn places_due(&mut self, now: Moment) -> Vec<Place> {
        let asleep = self.by_name.iter_mut().filter(|(_, it)| it.is_asleep(now));
        let due: Vec<_> = asleep
            .map(|(name, it)| {
                let due = it.place.due_in(now);
                (name, it, due)
            })
            .filter(|(.., due)| *due <= TOGETHER)
            .collect();
        if due.iter().all(|(.., due)| !due.is_zero()) {
            return Vec::new();
        }
        let places = due.into_iter().map(|(name, it, _)| {
            it.place.asking(now);
            Place {
                name: name.clone(),
                waiter: it.waiter,
            }
        });
        let mut places: Vec<_> = places.collect();
        // In the same order in every process, so that no two wait for each other's rows.
        places.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        places
    }

    /// Notes what came of keeping these places. Gives back those that nobody has any more.
    fn note_kept(
        &mut self,
        places: &[Place],
        kept: Result<Vec<(LockName, u32)>>,
        now: Moment,
    ) -> Vec<Place> {
        match kept {
            Ok(kept) => {
                let mut kept: HashMap<_, _> = kept.into_iter().collect();
                for place in places {
                    // Without an answer somebody has removed the place: it is taken anew later.
                    if let Some(ahead) = kept.remove(&place.name) {
                        self.update(place, now, |at| at.kept(now, ahead));
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no places in the lines of those who wait");
                for place in places {
                    self.update(place, now, |at| at.not_kept(now, &error));
                }
            }
        }
        let is_gone = |place: &&Place| {
            let awaited = self.by_name.get(&place.name);
            awaited.is_none_or(|awaited| awaited.waiter != place.waiter)
        };
        places.iter().filter(is_gone).cloned().collect()
    }

    /// Notes what is known of a place, and wakes those who are first because of it.
    fn update(&mut self, place: &Place, now: Moment, note: impl FnOnce(&mut PlaceInLine)) {
        let Some(awaited) = self.by_name.get_mut(&place.name) else {
            return;
        };
        if awaited.waiter != place.waiter {
            return;
        }
        let was_first = awaited.place.is_first();
        note(&mut awaited.place);
        if awaited.place.is_first() && !was_first {
            // Also those who are not asleep: one may have looked at the place just before.
            for waiter in &awaited.waiters {
                waiter.signal.notify_one();
            }
            self.changed(now);
        }
    }

    /// Wakes those whose lock is free, and says which held rows should be marked as wanted.
    pub(super) fn report(
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
                    if row.wanted_for <= RENEW_WANTED {
                        unmarked.push(name);
                    }
                }
                // Free, or gone, or unreadable: its next attempt will tell.
                _ => {
                    changed = true;
                    self.wake(&name);
                }
            }
        }
        if changed {
            self.changed(polled);
        } else {
            self.quiet = self.quiet.saturating_add(1);
        }
        if let Some(next) = self.next_poll {
            let expiry = polled + earliest;
            self.next_poll = Some(next.min(expiry.max(polled + self.pace.at_least)));
        }
        unmarked
    }

    /// Something may change again soon. Says whether the next poll is due sooner than it was.
    fn changed(&mut self, now: Moment) -> bool {
        if !self.pace.is_adaptive() {
            return false;
        }
        self.quiet = 0;
        let soon = now + self.every();
        let sooner = self.next_poll.is_some_and(|next| next > soon);
        if sooner {
            self.next_poll = Some(soon);
        }
        sooner
    }

    fn every(&self) -> Duration {
        Duration::from_micros(fastrand::u64(self.pace.every(self.quiet)))
    }

    fn wake(&self, name: &LockName) {
        if let Some(awaited) = self.by_name.get(name) {
            awaited.wake();
        }
    }
}

impl Awaited {
    fn new(told: Told) -> Self {
        Self {
            waiters: Vec::new(),
            token: None,
            place: PlaceInLine::new(told),
            waiter: fastrand::i64(1..),
        }
    }

    fn is_asleep(&self, now: Moment) -> bool {
        self.waiters.iter().any(|waiter| waiter.is_asleep(now))
    }

    /// Wakes them if it is their turn.
    fn wake(&self) {
        if !self.place.is_first() {
            return;
        }
        for waiter in &self.waiters {
            waiter.signal.notify_one();
        }
    }
}

impl Waiter {
    /// Its future was polled. Says whether it had not been for so long that it was passed over.
    pub(super) fn is_heard(&self, now: Moment) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *heard, now);
        now.since(before) >= UNHEARD
    }

    fn is_asleep(&self, now: Moment) -> bool {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.load(Ordering::Relaxed) && now.since(heard) < UNHEARD
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("names", &self.waiting().by_name.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "mysql"))]
mod tests {
    use distlock_core::HolderInfo;

    use super::*;

    const START: Moment = Moment::from_boot(Duration::from_secs(100));

    /// How long the poller sleeps after a poll that saw leases which end so soon, when nothing has changed for long.
    fn sleeps(leases: &[Duration]) -> Duration {
        let group = Group::adaptive();
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
                wanted_for: Duration::from_secs(5),
            };
            (name, Ok(row))
        });
        let rows = rows.collect();
        let mut waiting = group.waiting();
        for awaited in waiting.by_name.values_mut() {
            awaited.place.kept(START, 0);
        }
        waiting.quiet = 10;
        waiting.next_poll = None;
        let names = waiting.claim(START).unwrap();
        assert_eq!(names.len(), leases.len());
        assert!(waiting.report(START, names, rows).is_empty());
        waiting.pause(START)
    }

    /// A future that is kept and not polled must not hold its place for ever: nobody behind it would
    /// have a turn.
    #[test]
    fn whoever_is_not_polled_is_passed_over() {
        let group = Group::adaptive();
        let waiter = group.join(&LockName::new("a").unwrap(), START);
        waiter.asleep.store(true, Ordering::Relaxed);
        let renewed = |now| group.waiting().places_due(now).len();
        assert_eq!(renewed(START), 1);
        let later = START + Duration::from_secs(3);
        assert_eq!(renewed(later), 0);
        assert!(waiter.is_heard(later), "so that the poller is told of it");
        assert_eq!(renewed(later), 1);
        assert!(!waiter.is_heard(later));
    }

    #[test]
    fn nobody_sleeps_past_the_end_of_the_earliest_lease() {
        let ms = Duration::from_millis;
        assert_eq!(sleeps(&[ms(9000), ms(30), ms(50)]), ms(30));
        // A lease that is about to end is not asked for all the time.
        assert_eq!(
            sleeps(&[ms(9000), ms(1)]),
            super::super::pace::ADAPTIVE.at_least
        );
        let usual = sleeps(&[ms(9000)]).as_micros();
        assert!((57_000..68_000).contains(&usual), "{usual}");
    }
}
