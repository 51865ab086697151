//! The line of those who wait for one lock: whose turn it is, who was told, and who went away without a word.

use std::{collections::VecDeque, task::Waker, time::Duration};

use distlock_core::{Moment, OwnerId};

/// How long a free lock is kept for the one whose turn it is. Whoever does not come in that time (its task is blocked) is
/// passed over until it shows up again.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// A place in a line. Numbers rise in the order of joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What is done to wakers once the shard's mutex is free again: they may run anybody's code, and that code may call us.
///
/// Declare it before taking the mutex, so that it is dropped after it.
#[derive(Debug, Default)]
pub(crate) struct Later {
    wake: Option<Waker>,
    forget: Option<Waker>,
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Some(waker) = self.wake.take() {
            waker.wake();
        }
        drop(self.forget.take());
    }
}

/// Everybody who waits for one lock, in the order of joining.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiters: VecDeque<Waiter>,
    /// Whose turn it is, and since when the lock is kept for it. Only while the lock is free.
    called: Option<(Place, Moment)>,
}

#[derive(Debug)]
struct Waiter {
    place: Place,
    owner: OwnerId,
    /// Stopped waiting without leaving (its future was dropped), or did not come when called: passed over for now.
    away: bool,
    /// A wake-up that it has not taken notice of yet.
    woken: bool,
    waker: Option<Waker>,
}

impl Line {
    pub(crate) fn join(&mut self, place: Place, owner: OwnerId) {
        self.waiters.push_back(Waiter {
            place,
            owner,
            away: false,
            woken: false,
            waker: None,
        });
    }

    /// Gives up a place. Whether the lock was being kept for it.
    pub(crate) fn leave(&mut self, place: Place, later: &mut Later) -> bool {
        if let Some(waiter) = self.position(place).and_then(|at| self.waiters.remove(at)) {
            later.forget = waiter.waker;
        }
        self.called
            .take_if(|(called, _)| *called == place)
            .is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// This line for another lock, with its memory, unless that is large.
    pub(crate) fn emptied(mut self) -> Self {
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
    pub(crate) fn present(&mut self, place: Place) {
        if let Some(waiter) = self.waiter(place) {
            waiter.away = false;
            waiter.woken = false;
        }
    }

    /// The lock is free: whose turn is it? `None` = nobody's, anyone may take it. Calls that one unless it was called before.
    /// Whoever was called too long ago is passed over, except `here`, who looks at the lock right now.
    pub(crate) fn turn(
        &mut self,
        now: Moment,
        here: Option<Place>,
        later: &mut Later,
    ) -> Option<Place> {
        if let Some((place, _)) = self
            .called
            .take_if(|(called, since)| Some(*called) != here && now.since(*since) >= GRACE)
            && let Some(waiter) = self.waiter(place)
        {
            waiter.away = true;
        }
        let first = self.waiters.iter_mut().find(|waiter| !waiter.away)?;
        // Another one may have been called while the first was away.
        if self.called.is_none_or(|(called, _)| called != first.place) {
            self.called = Some((first.place, now));
            first.woken = true;
            later.wake = first.waker.take();
        }
        Some(first.place)
    }

    /// How long the lock is still kept for the one who was called.
    pub(crate) fn kept_for(&self, now: Moment) -> Option<Duration> {
        self.called.map(|(_, since)| (since + GRACE).since(now))
    }

    /// The lock is not free any more.
    pub(crate) fn taken(&mut self) {
        self.called = None;
    }

    /// The lock was given to this owner: if it waits here, it is to be woken.
    pub(crate) fn given_to(&mut self, owner: OwnerId, later: &mut Later) {
        let mut waiters = self.waiters.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.owner == owner) {
            waiter.woken = true;
            later.wake = waiter.waker.take();
        }
    }

    /// Starts or goes on waiting. Whether a wake-up lies there.
    pub(crate) fn is_woken(&mut self, place: Place) -> bool {
        self.waiter(place).is_some_and(|waiter| {
            waiter.away = false;
            waiter.woken
        })
    }

    /// Takes a wake-up, or leaves word whom to wake. `true` = woken.
    pub(crate) fn listen(&mut self, place: Place, waker: &Waker, later: &mut Later) -> bool {
        let Some(waiter) = self.waiter(place) else {
            return true;
        };
        if std::mem::take(&mut waiter.woken) {
            later.forget = waiter.waker.take();
            return true;
        }
        if !waiter
            .waker
            .as_ref()
            .is_some_and(|known| known.will_wake(waker))
        {
            later.forget = waiter.waker.replace(waker.clone());
        }
        false
    }

    /// Stopped waiting without saying why. A wake-up that lies there is kept. Whether the lock was being kept for it.
    pub(crate) fn step_out(&mut self, place: Place, later: &mut Later) -> bool {
        if let Some(waiter) = self.waiter(place) {
            waiter.away = true;
            later.forget = waiter.waker.take();
        }
        self.called
            .take_if(|(called, _)| *called == place)
            .is_some()
    }

    fn waiter(&mut self, place: Place) -> Option<&mut Waiter> {
        let at = self.position(place)?;
        self.waiters.get_mut(at)
    }

    fn position(&self, place: Place) -> Option<usize> {
        self.waiters
            .binary_search_by_key(&place, |waiter| waiter.place)
            .ok()
    }
}
