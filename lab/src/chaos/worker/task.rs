//! One task of a worker: its connections, and the steps that all of its uses of locks share.

use std::{sync::Arc, time::Duration};

use distlock::{Clock as _, Guard, LockBuilder, LockWatch, Locker, Records, Store, SystemClock};
use fastrand::Rng;
use tokio::sync::watch;

use super::{
    referee_client::{HistoryWriter, RefereeClient},
    settings::WorkerSettings,
};
use crate::chaos::history::{Event, HoldEnd, HoldNumber, Micros, micros, now};

/// See the module.
pub(super) struct WorkerTask {
    pub(super) settings: Arc<WorkerSettings>,
    pub(super) history: Arc<HistoryWriter>,
    pub(super) referee: RefereeClient,
    pub(super) locker: Locker,
    pub(super) store: Store,
    pub(super) records: Arc<dyn Records>,
    pub(super) rng: Rng,
    pub(super) number: u32,
    pub(super) is_brief: bool,
    /// Turns true when the work is over.
    pub(super) stop: watch::Receiver<bool>,
}

/// How a lock is asked for, drawn anew each time.
pub(super) struct DrawnOptions {
    pub(super) builder: LockBuilder,
    /// For how long it stays taken at least, also if it is released sooner.
    pub(super) min_hold_us: Micros,
}

impl WorkerTask {
    pub(super) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    pub(super) fn ttl(&mut self) -> Duration {
        let (least, most) = self.settings.ttl_ms;
        Duration::from_millis(self.rng.u64(least..=most))
    }

    /// One of the few locks that all fight for, or of the many that are held for a moment.
    pub(super) fn name(&mut self) -> String {
        let names = if self.is_brief {
            &self.settings.quiet_names
        } else {
            &self.settings.names
        };
        names[self.rng.usize(..names.len())].clone()
    }

    /// Up to the longest TTL.
    pub(super) fn random_wait(&mut self) -> Duration {
        Duration::from_millis(self.rng.u64(..=self.settings.ttl_ms.1))
    }

    /// Options that most callers never set, each of them now and then.
    pub(super) fn with_options(&mut self, mut builder: LockBuilder) -> DrawnOptions {
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
            // Short beside each lease: nothing but the lease keeps a lock that its holder has left.
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

    /// Notes the minimum hold time of a lock, before the lock is used.
    pub(super) fn note_min_hold(&self, hold: HoldNumber, asked: Micros, min_hold_us: Micros) {
        if min_hold_us > 0 {
            self.history.note(Event::Keeps {
                hold,
                until: asked + min_hold_us,
            });
        }
    }

    /// A moment in which others get their turn, also after a call that failed at once.
    pub(super) async fn pause(&mut self) {
        SystemClock
            .sleep(Duration::from_micros(self.rng.u64(..8_000)))
            .await;
    }

    pub(super) fn granted(&self, guard: &Guard, asked: Micros, resumed: Option<u64>) -> u64 {
        let hold = self.history.number();
        self.history.note(Event::Granted {
            hold,
            name: guard.name().to_string(),
            token: guard.token().get(),
            asked,
            at: now(),
            resumed,
        });
        hold
    }

    /// Asks a guard, and says so if it said yes.
    pub(super) fn is_valid(&self, hold: HoldNumber, watch: &LockWatch) -> bool {
        let from = now();
        let valid = watch.is_valid();
        let to = now();
        if valid {
            self.history.note(Event::Valid {
                hold,
                from,
                to,
                deadline: micros(watch.deadline()),
            });
        }
        valid
    }

    pub(super) fn note_end(&self, hold: HoldNumber, watch: &LockWatch, how: HoldEnd) {
        self.history.note(Event::Ended {
            hold,
            at: now(),
            deadline: micros(watch.deadline()),
            how,
        });
    }
}
