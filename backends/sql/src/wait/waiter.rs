//! One contender of this process, as the poller sees it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::Moment;
use tokio::sync::Notify;

/// The poller treats a waiter as absent when its future was not polled for this long. It renews no
/// queue entry and sends no poll for that waiter. A live future is polled each second.
const UNPOLLED_LIMIT: Duration = Duration::from_millis(2500);

/// One contender.
pub(super) struct Waiter {
    pub(super) signal: Notify,
    /// Whether it sleeps now. It changes only under the mutex of the wait group.
    pub(super) asleep: AtomicBool,
    /// The time of the last poll of its future. Without this limit, a future that is kept but not
    /// polled any more would hold its queue entry, and the turn of everybody behind it, for ever.
    last_polled: Mutex<Moment>,
}

impl Waiter {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            signal: Notify::new(),
            asleep: AtomicBool::new(false),
            last_polled: Mutex::new(now),
        }
    }

    /// Notes that its future was polled. Returns whether the waiter had been passed over before.
    pub(super) fn note_polled(&self, now: Moment) -> bool {
        let mut last_polled = self
            .last_polled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last_polled, now);
        now.since(before) >= UNPOLLED_LIMIT
    }

    pub(super) fn is_asleep(&self, now: Moment) -> bool {
        let last_polled = *self
            .last_polled
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.asleep.load(Ordering::Relaxed) && now.since(last_polled) < UNPOLLED_LIMIT
    }
}
