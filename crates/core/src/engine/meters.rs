//! The metrics of one locker.
//!
//! This module owns the names of the metrics with their help texts, which are the same for every
//! backend, and the groups that a program makes of its lock names. The handles are created when the
//! locker is built, or at the first lock of a group. A metrics recorder must be installed before
//! that, or the metrics of this locker are not recorded. Invariant: a lock's name is never a label.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::{Counter, Gauge, Histogram, Label, Unit};

use crate::{
    contract::LossReason,
    sync::Mutex,
    types::{name::LockName, ttl::Ttl},
};

const ACQUIRE: &str = "distlock_acquire_total";
const ACQUIRE_CONTENDED: &str = "distlock_acquire_contended_total";
const ACQUIRE_SECONDS: &str = "distlock_acquire_seconds";
const HELD: &str = "distlock_held";
const HOLD_SECONDS: &str = "distlock_hold_seconds";
const LOST: &str = "distlock_lost_total";
const RELEASE: &str = "distlock_release_total";
const RENEW: &str = "distlock_renew_total";
const RENEW_SLACK: &str = "distlock_renew_slack_seconds";
const WAITING: &str = "distlock_waiting";

/// The most groups of one locker. A program that makes a group of each name would otherwise fill
/// the memory of its recorder.
const MOST_GROUPS: usize = 100;
/// The group of all names whose own group would be one too many.
const OTHER: &str = "other";

/// Makes the group of a name.
pub(crate) type GroupOf = Arc<dyn Fn(&str) -> &str + Send + Sync>;

/// The metrics of the names of one locker.
pub(crate) enum MetersByName {
    OfAll(Arc<Meters>),
    ByGroup {
        backend: &'static str,
        group_of: GroupOf,
        groups: Mutex<HashMap<String, Arc<Meters>>>,
    },
}

impl MetersByName {
    pub(crate) fn new(backend: &'static str, group_of: Option<GroupOf>) -> Self {
        describe_all();
        match group_of {
            None => Self::OfAll(Arc::new(Meters::new(backend, None))),
            Some(group_of) => Self::ByGroup {
                backend,
                group_of,
                groups: Mutex::default(),
            },
        }
    }

    /// The metrics of a name. This function calls code of the program, so only the task of a caller
    /// may call it. Later steps of the same lock keep the answer.
    pub(crate) fn of(&self, name: &LockName) -> Arc<Meters> {
        let (backend, group_of, groups) = match self {
            Self::OfAll(meters) => return Arc::clone(meters),
            Self::ByGroup {
                backend,
                group_of,
                groups,
            } => (backend, group_of, groups),
        };
        // Called before the mutex is locked: the program's code may be slow, or panic.
        let wanted = group_of(name.as_str());
        let mut groups = groups.lock();
        let is_one_too_many = groups.len() >= MOST_GROUPS && !groups.contains_key(wanted);
        let group = if is_one_too_many { OTHER } else { wanted };
        if let Some(meters) = groups.get(group) {
            return Arc::clone(meters);
        }
        let meters = Arc::new(Meters::new(backend, Some(group)));
        groups.insert(group.to_owned(), Arc::clone(&meters));
        drop(groups);
        if is_one_too_many {
            tracing::warn!(
                backend,
                "metrics_group has made {MOST_GROUPS} groups, and all further ones count as the \
                 group {OTHER:?}: it should make few groups of many names",
            );
        }
        meters
    }
}

/// The metrics of all locks of one locker, or of one group.
#[derive(Debug)]
pub(crate) struct Meters {
    /// The labels of every metric.
    labels: Vec<Label>,
    pub(crate) acquired: Counter,
    pub(crate) busy: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) failed: Counter,
    pub(crate) abandoned: Counter,
    contended: Counter,
    waiting: Gauge,
    pub(crate) acquire_seconds: Histogram,
    pub(crate) held: Gauge,
    pub(crate) hold_seconds: Histogram,
    renewed: Counter,
    renewed_late: Counter,
    pub(crate) renew_failed: Counter,
    renew_slack: Histogram,
    pub(crate) released: Counter,
    pub(crate) release_unconfirmed: Counter,
    pub(crate) released_in_background: Counter,
    pub(crate) handed_over: Counter,
}

impl Meters {
    fn new(backend: &'static str, group: Option<&str>) -> Self {
        let mut labels = vec![Label::from_static_parts("backend", backend)];
        labels.extend(group.map(|group| Label::new("group", group.to_owned())));
        let counter = |name, result| {
            let mut labels = labels.clone();
            labels.push(Label::from_static_parts("result", result));
            metrics::counter!(name, labels)
        };
        let gauge = |name| metrics::gauge!(name, labels.clone());
        let histogram = |name| metrics::histogram!(name, labels.clone());
        Self {
            acquired: counter(ACQUIRE, "acquired"),
            busy: counter(ACQUIRE, "busy"),
            timed_out: counter(ACQUIRE, "timeout"),
            failed: counter(ACQUIRE, "error"),
            abandoned: counter(ACQUIRE, "abandoned"),
            contended: metrics::counter!(ACQUIRE_CONTENDED, labels.clone()),
            waiting: gauge(WAITING),
            acquire_seconds: histogram(ACQUIRE_SECONDS),
            held: gauge(HELD),
            hold_seconds: histogram(HOLD_SECONDS),
            renewed: counter(RENEW, "renewed"),
            renewed_late: counter(RENEW, "late"),
            renew_failed: counter(RENEW, "failed"),
            renew_slack: histogram(RENEW_SLACK),
            released: counter(RELEASE, "clean"),
            release_unconfirmed: counter(RELEASE, "unconfirmed"),
            released_in_background: counter(RELEASE, "background"),
            handed_over: counter(RELEASE, "handed_over"),
            labels,
        }
    }

    /// Counts a call that waits from now on for a lock that is not free.
    pub(crate) fn begin_to_wait(&self) -> Waiting {
        self.contended.increment(1);
        self.waiting.increment(1.0);
        Waiting(self.waiting.clone())
    }

    /// Counts a confirmed renewal of a lease of this TTL, of which `left` was left at the answer.
    pub(crate) fn count_renewal(&self, left: Duration, ttl: Ttl) {
        self.renew_slack.record(left.as_secs_f64());
        // An ordinary renewal leaves more than half of the lease. With less than a quarter, the
        // next one that is as slow may come too late.
        if left < ttl.duration() / 4 {
            self.renewed_late.increment(1);
        } else {
            self.renewed.increment(1);
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
        let mut labels = self.labels.clone();
        labels.push(Label::from_static_parts("reason", reason));
        metrics::counter!(LOST, labels).increment(1);
    }
}

/// One call that waits for a lock. It is counted until this value is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Gives every metric its help text.
fn describe_all() {
    for (name, help) in [
        (ACQUIRE, "Requests for a lock by their result"),
        (
            ACQUIRE_CONTENDED,
            "Requests for a lock that had to wait, because the lock was not free",
        ),
        (LOST, "Locks that were lost while they were held"),
        (RELEASE, "Releases by their result"),
        (RENEW, "Renewals of held locks by their result"),
    ] {
        metrics::describe_counter!(name, help);
    }
    for (name, help) in [
        (
            ACQUIRE_SECONDS,
            "Time from the call to the grant of the lock, waiting included",
        ),
        (
            HOLD_SECONDS,
            "Time from the request that got the lock to its release or loss",
        ),
        (
            RENEW_SLACK,
            "What was left of the lease when its renewal was confirmed",
        ),
    ] {
        metrics::describe_histogram!(name, Unit::Seconds, help);
    }
    metrics::describe_gauge!(HELD, "Locks that are held now");
    metrics::describe_gauge!(WAITING, "Calls that wait now for a lock that is not free");
}
