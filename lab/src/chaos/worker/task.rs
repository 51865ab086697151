//! One task of a worker: its connections, and the steps that all uses of locks share.

use std::{future::Future, sync::Arc, time::Duration};

use distlock::{
    Clock as _, Ended, Guard, LockBuilder, LockWatch, Locker, Moment, Records, Store, SystemClock,
};
use distlock_recipes::shared::SharedWatch;
use fastrand::Rng;
use tokio::sync::watch;

use super::{
    referee_client::{HistoryWriter, RefereeClient},
    shared::SharedLocks,
};
use crate::chaos::{
    history::{Event, HoldEnd, HoldMode, HoldNumber, Micros, micros_since_boot, now},
    worker_settings::WorkerSettings,
};

/// One task of a worker.
pub(super) struct WorkerTask {
    pub(super) settings: Arc<WorkerSettings>,
    pub(super) history: Arc<HistoryWriter>,
    pub(super) referee: RefereeClient,
    pub(super) locker: Locker,
    pub(super) store: Store,
    pub(super) records: Arc<dyn Records>,
    pub(super) shared_locks: SharedLocks,
    pub(super) rng: Rng,
    pub(super) number: u32,
    pub(super) is_brief: bool,
    /// Becomes true when the faults have ended.
    pub(super) stop: watch::Receiver<bool>,
}

/// The watch of a guard, exclusive or shared.
pub(super) trait HoldWatch: Send + Sync + 'static {
    fn is_valid(&self) -> bool;
    fn deadline(&self) -> Moment;
    fn ended(&self) -> impl Future<Output = Ended> + Send;
}

impl HoldWatch for LockWatch {
    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn deadline(&self) -> Moment {
        Self::deadline(self)
    }

    fn ended(&self) -> impl Future<Output = Ended> + Send {
        Self::ended(self)
    }
}

impl HoldWatch for SharedWatch {
    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn deadline(&self) -> Moment {
        Self::deadline(self)
    }

    fn ended(&self) -> impl Future<Output = Ended> + Send {
        Self::ended(self)
    }
}

/// A lock builder with random options.
pub(super) struct DrawnOptions {
    pub(super) builder: LockBuilder,
    /// The minimum hold time: the lock stays taken for this time, even after an earlier release.
    pub(super) min_hold_us: Micros,
}

impl WorkerTask {
    /// Tells whether the faults have ended.
    pub(super) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Draws a TTL between the shortest and the longest TTL of the run.
    pub(super) fn draw_ttl(&mut self) -> Duration {
        let (least, most) = self.settings.ttl_ms;
        Duration::from_millis(self.rng.u64(least..=most))
    }

    /// Returns one of the few contended locks or, for a brief task, one of the many quiet locks.
    pub(super) fn draw_name(&mut self) -> String {
        let names = if self.is_brief {
            &self.settings.quiet_names
        } else {
            &self.settings.names
        };
        names[self.rng.usize(..names.len())].clone()
    }

    /// Returns a random time up to the longest TTL.
    pub(super) fn draw_wait(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(..=self.settings.ttl_ms.1))
    }

    /// Sets options that most callers never use, each with a small probability.
    pub(super) fn draw_options(&mut self, mut builder: LockBuilder) -> DrawnOptions {
        let mut min_hold_us = 0;
        if self.rng.u32(..8) == 0 {
            builder = builder.holder(format!("worker {}", self.settings.worker));
        }
        if self.rng.u32(..8) == 0 {
            builder = builder.meta("x".repeat(self.rng.usize(..4096)));
        }
        if self.rng.u32(..8) == 0 {
            builder = builder.give_up_when_unreachable();
        }
        if self.rng.u32(..10) == 0 {
            // The minimum hold time is shorter than every lease, because only the lease keeps a
            // released lock.
            let longest = self.settings.ttl_ms.0 / 3;
            let time = Duration::from_millis(self.rng.u64(1..=longest));
            min_hold_us = u64::try_from(time.as_micros()).unwrap_or_default();
            builder = builder.min_hold(time);
        }
        DrawnOptions {
            builder,
            min_hold_us,
        }
    }

    /// Records the minimum hold time of a lock, before the lock is used.
    pub(super) fn record_min_hold(&self, hold: HoldNumber, asked: Micros, min_hold_us: Micros) {
        if min_hold_us > 0 {
            self.history.record(Event::Keeps {
                hold,
                until: asked + min_hold_us,
            });
        }
    }

    /// Pauses for a moment, so that other tasks run even if every call fails at once.
    pub(super) async fn pause(&mut self) {
        SystemClock
            .sleep(Duration::from_micros(self.rng.u64(..8_000)))
            .await;
    }

    /// Records a grant that was requested at `asked`, and returns the number of the hold. `resumed`
    /// is the number of the resumed ticket.
    pub(super) fn record_grant(&self, guard: &Guard, asked: Micros, resumed: Option<u64>) -> u64 {
        let hold = self.history.next_number();
        self.history.record(Event::Granted {
            hold,
            name: guard.name().to_string(),
            token: guard.token().get(),
            asked,
            at: now(),
            resumed,
            mode: HoldMode::Alone,
        });
        hold
    }

    /// Records the end of a wait in the order of arrival. `passes_for` is the documented time for
    /// which somebody who comes later may pass the first that waits.
    pub(super) fn record_wait(
        &self,
        name: &str,
        asked: Micros,
        hold: Option<HoldNumber>,
        passes_for: Duration,
    ) {
        self.history.record(Event::Waited {
            name: name.to_owned(),
            asked,
            at: now(),
            hold,
            passed_us: u64::try_from(passes_for.as_micros()).unwrap_or_default(),
        });
    }

    /// Calls `is_valid()`, and records a positive answer.
    pub(super) fn check_validity(&self, hold: HoldNumber, watch: &impl HoldWatch) -> bool {
        let from = now();
        let valid = watch.is_valid();
        let to = now();
        if valid {
            self.history.record(Event::Valid {
                hold,
                from,
                to,
                deadline: micros_since_boot(watch.deadline()),
            });
        }
        valid
    }

    /// Records the end of a hold.
    pub(super) fn record_end(&self, hold: HoldNumber, watch: &impl HoldWatch, how: HoldEnd) {
        self.history.record(Event::Ended {
            hold,
            at: now(),
            deadline: micros_since_boot(watch.deadline()),
            how,
        });
    }
}
