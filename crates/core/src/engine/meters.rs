//! The metrics of one locker.
//!
//! This module owns the names of the metrics with their help texts, which are the same for every
//! backend. The handles are created when the locker is built. A metrics recorder must be installed
//! before that, or the metrics of this locker are not recorded.

use metrics::{Counter, Gauge, Histogram};

use crate::contract::LossReason;

const ACQUIRE: &str = "distlock_acquire_total";
const ACQUIRE_SECONDS: &str = "distlock_acquire_seconds";
const HELD: &str = "distlock_held";
const LOST: &str = "distlock_lost_total";
const RELEASE: &str = "distlock_release_total";
const RENEW: &str = "distlock_renew_total";

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
        describe_all();
        let counter = |name, result| counter(backend, name, result);
        Self {
            backend,
            acquired: counter(ACQUIRE, "acquired"),
            busy: counter(ACQUIRE, "busy"),
            timed_out: counter(ACQUIRE, "timeout"),
            failed: counter(ACQUIRE, "error"),
            acquire_seconds: metrics::histogram!(ACQUIRE_SECONDS, "backend" => backend),
            released: counter(RELEASE, "clean"),
            release_unconfirmed: counter(RELEASE, "unconfirmed"),
            released_in_background: counter(RELEASE, "background"),
            handed_over: counter(RELEASE, "handed_over"),
            renewed: counter(RENEW, "renewed"),
            renew_failed: counter(RENEW, "failed"),
            abandoned: counter(ACQUIRE, "abandoned"),
            held: metrics::gauge!(HELD, "backend" => backend),
        }
    }

    pub(crate) fn count_loss(&self, reason: LossReason) {
        let reason = match reason {
            LossReason::Expired => "expired",
            LossReason::ForceReleased => "force_released",
            LossReason::HistoryChanged => "history_changed",
            LossReason::Moved => "moved",
            LossReason::Removed => "removed",
            LossReason::SessionLost => "session_lost",
            LossReason::TakenOver => "taken_over",
            LossReason::Unreachable => "unreachable",
        };
        metrics::counter!(LOST, "backend" => self.backend, "reason" => reason).increment(1);
    }
}

/// Gives every metric its help text.
fn describe_all() {
    for (name, help) in [
        (ACQUIRE, "Requests for a lock by their result"),
        (LOST, "Locks that were lost while they were held"),
        (RELEASE, "Releases by their result"),
        (RENEW, "Renewals of held locks by their result"),
    ] {
        metrics::describe_counter!(name, help);
    }
    metrics::describe_histogram!(
        ACQUIRE_SECONDS,
        metrics::Unit::Seconds,
        "Time from the call to the grant of the lock, waiting included"
    );
    metrics::describe_gauge!(HELD, "Locks that are held now");
}

fn counter(backend: &'static str, name: &'static str, result: &'static str) -> Counter {
    metrics::counter!(name, "backend" => backend, "result" => result)
}
