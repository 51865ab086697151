//! One contender of this process, as the poller sees it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{HolderLabel, Moment};
use tokio::sync::Notify;

/// The poller treats a waiter as absent when the waiter's future was not polled for this long. The
/// poller then renews no queue entry and sends no poll for this waiter. A future that its runtime
/// still polls is polled each second.
const UNPOLLED_LIMIT: Duration = Duration::from_millis(2500);

/// One contender.
pub(super) struct Waiter {
    pub(super) signal: Notify,
    /// The label of this contender.
    pub(super) holder: HolderLabel,
    /// Whether the waiter sleeps now. The value changes only under the mutex of the wait group.
    pub(super) asleep: AtomicBool,
    /// The time of the last poll of the waiter's future. A caller can keep a future without polling
    /// it. Without [`UNPOLLED_LIMIT`], the queue entry of such a future would be renewed for ever,
    /// and all contenders behind the entry would wait for ever.
    last_polled: Mutex<Moment>,
}

impl Waiter {
    pub(super) fn new(now: Moment, holder: HolderLabel) -> Self {
        Self {
            signal: Notify::new(),
            holder,
            asleep: AtomicBool::new(false),
            last_polled: Mutex::new(now),
        }
    }

    /// Notes that the waiter's future was polled. Returns whether the waiter counted as absent
    /// until now.
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
