//! The metrics of one locker.
//!
//! This module owns the names of the metrics, which are the same for every backend. The handles are
//! created when the locker is built. A metrics recorder must be installed before that, or the
//! metrics of this locker are not recorded.

use metrics::{Counter, Gauge, Histogram};

use crate::contract::LossReason;

#[derive(Debug)]
pub(crate) struct Meters {
    backend: &'static str,
    pub(crate) acquired: Counter,
    pub(crate) busy: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) failed: Counter,
    pub(crate) acquire_seconds: Histogram,
    pub(crate) released: Counter,
    pub(crate) release_unconfirmed: Counter,
    pub(crate) released_in_background: Counter,
    pub(crate) handed_over: Counter,
    pub(crate) renewed: Counter,
    pub(crate) renew_failed: Counter,
    pub(crate) abandoned: Counter,
    pub(crate) held: Gauge,
}

impl Meters {
    pub(crate) fn new(backend: &'static str) -> Self {
        let counter = |name, result| counter(backend, name, result);
        Self {
            backend,
            acquired: counter("distlock_acquire_total", "acquired"),
            busy: counter("distlock_acquire_total", "busy"),
            timed_out: counter("distlock_acquire_total", "timeout"),
            failed: counter("distlock_acquire_total", "error"),
            acquire_seconds: metrics::histogram!("distlock_acquire_seconds", "backend" => backend),
            released: counter("distlock_release_total", "clean"),
            release_unconfirmed: counter("distlock_release_total", "unconfirmed"),
            released_in_background: counter("distlock_release_total", "background"),
            handed_over: counter("distlock_release_total", "handed_over"),
            renewed: counter("distlock_renew_total", "renewed"),
            renew_failed: counter("distlock_renew_total", "failed"),
            abandoned: counter("distlock_acquire_total", "abandoned"),
            held: metrics::gauge!("distlock_held", "backend" => backend),
        }
    }

    pub(crate) fn count_loss(&self, reason: LossReason) {
        let reason = match reason {
            LossReason::Expired => "expired",
            LossReason::ForceReleased => "force_released",
            LossReason::HistoryChanged => "history_changed",
            LossReason::Removed => "removed",
            LossReason::SessionLost => "session_lost",
            LossReason::TakenOver => "taken_over",
            LossReason::Unreachable => "unreachable",
        };
        metrics::counter!("distlock_lost_total", "backend" => self.backend, "reason" => reason)
            .increment(1);
    }
}

fn counter(backend: &'static str, name: &'static str, result: &'static str) -> Counter {
    metrics::counter!(name, "backend" => backend, "result" => result)
}
