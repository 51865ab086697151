//! The judge's observations of processes, locks, calls and guards.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use distlock::{LockWatch, Renew};

use super::time::MachineClock;

/// One process.
pub(super) struct SimulatedProcess {
    pub(super) clock: MachineClock,
    pub(super) alive: bool,
    pub(super) paused_since: Option<Duration>,
    /// Time of the last resume.
    pub(super) resumed: Duration,
    /// Total time of all pauses until the last resume.
    pub(super) paused_time: Duration,
}

/// One lock, as the judge saw it at the store.
#[derive(Default)]
pub(super) struct ObservedLock {
    /// The holder after the last request that arrived at the store.
    pub(super) row: Option<StoredHolder>,
    /// Time of the last release or expiry.
    pub(super) freed: Duration,
    /// The token of the last grant at the store.
    pub(super) last_token: u64,
    /// The highest token that a caller got.
    pub(super) last_held: u64,
    /// By token: the number of the grant for this lock, and the call that received the grant.
    pub(super) grants: BTreeMap<u64, (u64, u64)>,
    /// Tokens of grants that were force-released.
    pub(super) forced: BTreeSet<u64>,
}

/// The holder of a lock at the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredHolder {
    pub(super) token: u64,
    pub(super) call: u64,
    pub(super) expires: Duration,
}

/// One call that asks for a lock. `ran` is the running time of its process at the begin, and
/// `queues` tells whether the call waits in a queue.
pub(super) struct ObservedCall {
    pub(super) process: usize,
    pub(super) lock: usize,
    pub(super) began: Duration,
    pub(super) ran: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) queues: bool,
    pub(super) state: CallState,
}

/// The state of a call. `Ended` has the time at which the call failed or its guard was released.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallState {
    Asking,
    Held,
    Ended(Duration),
}

/// A guard that a task has. `leaving` means that its release has begun, and `forced` that its lock
/// was force-released.
pub(super) struct HeldGuard {
    pub(super) process: usize,
    pub(super) lock: usize,
    pub(super) token: u64,
    pub(super) watch: LockWatch,
    pub(super) since: Duration,
    pub(super) renew: Renew,
    pub(super) leaving: bool,
    pub(super) forced: bool,
    pub(super) notified: bool,
    /// Time from which the guard is no longer valid.
    pub(super) invalid: Option<Duration>,
}

impl SimulatedProcess {
    /// Creates a process that is alive and was never paused.
    pub(super) const fn new(clock: MachineClock) -> Self {
        Self {
            clock,
            alive: true,
            paused_since: None,
            resumed: Duration::ZERO,
            paused_time: Duration::ZERO,
        }
    }

    /// Tells whether the process is alive and not paused.
    pub(super) const fn runs(&self) -> bool {
        self.alive && self.paused_since.is_none()
    }

    /// Records that the process is paused.
    pub(super) const fn pause(&mut self, now: Duration) {
        self.paused_since = Some(now);
    }

    /// Records that the process runs again, if it was paused.
    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(since) = self.paused_since.take() {
            self.paused_time += now.saturating_sub(since);
            self.resumed = now;
        }
    }

    /// Returns the time for which the process has run.
    pub(super) fn ran(&self, now: Duration) -> Duration {
        let pause = self.paused_since.map(|since| now.saturating_sub(since));
        now.saturating_sub(self.paused_time + pause.unwrap_or_default())
    }

    /// Tells whether the process has run for `time` without a pause since `since`.
    pub(super) fn ran_without_break(&self, time: Duration, since: Duration, now: Duration) -> bool {
        self.runs() && now > since.max(self.resumed) + time
    }
}

impl ObservedLock {
    /// Returns the time since which nobody holds the lock. `None` means that the lock is held.
    pub(super) fn free_since(&self, now: Duration) -> Option<Duration> {
        match self.row {
            None => Some(self.freed),
            Some(row) if row.expires <= now => Some(row.expires),
            Some(_) => None,
        }
    }
}

impl HeldGuard {
    /// Tells whether the deadline of the guard has not passed.
    pub(super) fn is_valid(&self) -> bool {
        !self.watch.remaining().is_zero()
    }

    /// Tells whether no fault can explain a loss of this guard.
    pub(super) fn must_not_be_lost(&self, calm: Option<Duration>) -> bool {
        let in_peace = calm.is_some_and(|calm| self.since > calm);
        in_peace && self.renew == Renew::Auto && !self.forced
    }

    /// Tells whether a loss of this guard still needs a notice.
    pub(super) const fn needs_notice(&self) -> bool {
        !self.notified && !self.leaving && !self.forced
    }
}
