//! When the keeper must look at each lease: at its next renewal, and at its deadline.
//!
//! This module owns the moments and the wake-up of the keeper. Invariant: a lease that is held has
//! one entry at most, and the keeper sleeps no longer than until the first entry. The module never
//! changes a lease and never asks the store.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::engine::{
    clock::{Clock, Moment},
    lease_state::LeaseState,
};

/// The keeper looks at the clock at least this often while it has anything to keep. Its timer
/// stands still while the machine sleeps; the clock does not.
const SLICE: Duration = Duration::from_millis(200);

/// After this many empty slices, the keeper sleeps until it is woken.
const IDLE_SLICES: u32 = 5;

/// All leases that the keeper keeps, in the order of their next events.
pub(super) struct Schedule {
    clock: Arc<dyn Clock>,
    events: Mutex<Events>,
    wake: Notify,
}

#[derive(Default)]
struct Events {
    by_time: BTreeMap<(Moment, u64), Arc<LeaseState>>,
    /// When the keeper looks by itself; `None` = not before it is woken.
    next_look: Option<Moment>,
}

impl Schedule {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            events: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Puts a lease where its next event is. A lease that has ended is left out.
    pub(super) fn put(&self, lease_state: &Arc<LeaseState>) {
        // Locked before the lease is asked for its next event: two calls for one lease would
        // otherwise each insert an entry, and the older one would never be removed.
        let mut events = self.events();
        let Some((at, before)) = lease_state.schedule_next() else {
            return;
        };
        if let Some(before) = before {
            events.by_time.remove(&(before, lease_state.id()));
        }
        events
            .by_time
            .insert((at, lease_state.id()), Arc::clone(lease_state));
        let must_wake = events.next_look.is_none_or(|look| at < look);
        if must_wake {
            // Until the keeper has looked, no other caller needs to wake it.
            events.next_look = Some(at);
            drop(events);
            self.wake.notify_one();
        }
    }

    /// Removes a lease that has ended.
    pub(super) fn remove(&self, lease_state: &LeaseState) {
        if let Some(at) = lease_state.unschedule() {
            self.events().by_time.remove(&(at, lease_state.id()));
        }
    }

    /// Resolves when an entry was put before the moment at which the keeper looks by itself.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Removes and returns every lease that is due.
    pub(super) fn take_due(&self) -> Vec<Arc<LeaseState>> {
        let now = self.clock.now();
        let mut events = self.events();
        let mut due = Vec::new();
        while let Some(first) = events.by_time.first_entry() {
            if first.key().0 > now {
                break;
            }
            let lease_state = first.remove();
            lease_state.unschedule();
            due.push(lease_state);
        }
        due
    }

    /// Ends the renewals of all leases. Their deadlines stay.
    pub(super) fn stop_renewing(&self) {
        for lease_state in self.events().by_time.values() {
            lease_state.stop_renewing();
        }
    }

    /// Time until the next event, in slices; `None` = there is none.
    pub(super) fn until_next(&self) -> Option<Duration> {
        let events = self.events();
        let (&(at, _), _) = events.by_time.first_key_value()?;
        Some(at.since(self.clock.now()).min(SLICE))
    }

    /// How long to sleep; `None` = until woken. `idle` counts the empty slices in a row.
    pub(super) fn time_to_sleep(&self, idle: &mut u32) -> Option<Duration> {
        let now = self.clock.now();
        let mut events = self.events();
        let next = events.by_time.first_key_value().map(|(&(at, _), _)| at);
        *idle = if next.is_some() {
            0
        } else {
            idle.saturating_add(1)
        };
        let pause = match next {
            Some(at) => at.since(now).min(SLICE),
            None if *idle <= IDLE_SLICES => SLICE,
            None => {
                events.next_look = None;
                return None;
            }
        };
        events.next_look = Some(now + pause);
        Some(pause)
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
