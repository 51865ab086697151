//! The moments at which the keeper must serve each lease: its next renewal, and its deadline.
//!
//! This module owns these moments and the wake-up of the keeper. Invariant: a held lease has at
//! most one entry, and the keeper sleeps at the longest until the first entry. The module sends
//! nothing to the store.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    clock::{Clock, Moment},
    engine::lease_state::LeaseState,
    sync::Mutex,
};

/// The longest sleep of the keeper while it has a lease. The keeper's timer does not count the time
/// in suspend, but the clock of the leases does. So the keeper must read the clock at least this
/// often to notice a deadline soon after a suspend.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// After this many sleeps in a row without a lease, the keeper sleeps until it is woken.
const IDLE_SLEEPS: u32 = 5;

/// All leases of the keeper, in the order of their next events.
pub(super) struct Schedule {
    clock: Arc<dyn Clock>,
    events: Mutex<Events>,
    wake: Notify,
}

#[derive(Default)]
struct Events {
    by_time: BTreeMap<(Moment, u64), Arc<LeaseState>>,
    /// The moment at which the keeper wakes by itself; `None` = only another thread wakes it.
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

    /// Enters a lease at the moment of its next event, and wakes the keeper if that is earlier than
    /// its own wake-up. A lease that has ended gets no entry.
    pub(super) fn put(&self, lease_state: &Arc<LeaseState>) {
        // The mutex is locked before `schedule_next` is called. Otherwise two concurrent calls for
        // one lease could insert two entries, and one of them would never be removed.
        let mut events = self.events.lock();
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
            // The keeper is being woken for `at`. Until it has run, only an earlier event needs
            // another wake-up.
            events.next_look = Some(at);
            drop(events);
            self.wake.notify_one();
        }
    }

    /// Removes the entry of a lease that has ended.
    pub(super) fn remove(&self, lease_state: &LeaseState) {
        if let Some(at) = lease_state.unschedule() {
            self.events.lock().by_time.remove(&(at, lease_state.id()));
        }
    }

    /// Resolves when an entry was inserted that is earlier than the keeper's own wake-up.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Removes and returns every lease with an event that is due.
    pub(super) fn take_due(&self) -> Vec<Arc<LeaseState>> {
        let now = self.clock.now();
        let mut events = self.events.lock();
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

    /// Ends the renewals of all leases. The entries stay, so that the deadlines are still watched.
    pub(super) fn stop_renewing(&self) {
        for lease_state in self.events.lock().by_time.values() {
            lease_state.stop_renewing();
        }
    }

    /// The time to sleep before the next event, [`LONGEST_SLEEP`] at most; `None` = there is no
    /// event.
    pub(super) fn until_next(&self) -> Option<Duration> {
        let events = self.events.lock();
        let (&(at, _), _) = events.by_time.first_key_value()?;
        Some(at.since(self.clock.now()).min(LONGEST_SLEEP))
    }

    /// The time to sleep; `None` = until woken. `idle` counts the sleeps in a row without a lease.
    pub(super) fn time_to_sleep(&self, idle: &mut u32) -> Option<Duration> {
        let now = self.clock.now();
        let mut events = self.events.lock();
        let next = events.by_time.first_key_value().map(|(&(at, _), _)| at);
        *idle = if next.is_some() {
            0
        } else {
            idle.saturating_add(1)
        };
        let pause = match next {
            Some(at) => at.since(now).min(LONGEST_SLEEP),
            None if *idle <= IDLE_SLEEPS => LONGEST_SLEEP,
            None => {
                events.next_look = None;
                return None;
            }
        };
        events.next_look = Some(now + pause);
        Some(pause)
    }
}
