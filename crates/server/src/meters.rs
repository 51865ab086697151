//! The metrics of a server.

use std::sync::Arc;

use metrics::Counter;

use crate::session::SessionContext;

const GRANTED: &str = "distlock_server_granted_total";
const REFUSED: &str = "distlock_server_refused_total";
const HELD: &str = "distlock_server_held";
const WAITING: &str = "distlock_server_waiting";
const SESSIONS: &str = "distlock_server_sessions";
const EXPIRED: &str = "distlock_server_expired_total";
const RECOVERY: &str = "distlock_server_recovery_seconds";
const FULL: &str = "distlock_server_backpressure_total";
const CUT: &str = "distlock_server_slow_readers_total";

/// Why an operation or a call is refused.
const REASONS: [&str; 9] = [
    "token",
    "operation",
    "prefix",
    "names",
    "names_of_session",
    "waiters",
    "waiters_of_name",
    "recovery",
    "unfinished",
];

/// The counters of what happens often.
#[derive(Clone)]
pub(crate) struct Meters {
    granted: Counter,
    /// A session was not read, because it had as many operations without an answer as it may have.
    pub(crate) full: Counter,
    /// A session was ended, because its client read nothing.
    pub(crate) cut: Counter,
}

impl Meters {
    /// Describes all metrics, and sets them to 0, so that a page shows them from the start.
    pub(crate) fn new(in_memory: bool) -> Self {
        metrics::describe_counter!(GRANTED, "Locks that were granted");
        metrics::describe_counter!(REFUSED, "Calls and operations that were refused, by reason");
        metrics::describe_gauge!(WAITING, "Callers that wait for a lock");
        metrics::describe_gauge!(SESSIONS, "Open sessions");
        metrics::describe_counter!(
            FULL,
            "Times that a session was not read because it had too many operations without an answer"
        );
        metrics::describe_counter!(
            CUT,
            "Sessions that the server ended because their client read nothing"
        );
        if in_memory {
            metrics::describe_gauge!(HELD, "Locks in the memory of this server");
            metrics::describe_counter!(EXPIRED, "Leases in the memory of this server that expired");
            metrics::describe_gauge!(
                RECOVERY,
                metrics::Unit::Seconds,
                "Time until locks are granted again after a crash"
            );
        }
        for reason in REASONS {
            metrics::counter!(REFUSED, "reason" => reason).increment(0);
        }
        Self {
            granted: metrics::counter!(GRANTED),
            full: metrics::counter!(FULL),
            cut: metrics::counter!(CUT),
        }
    }

    pub(crate) fn count_grant(&self) {
        self.granted.increment(1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

/// Counts a refusal for one of the known reasons.
pub(crate) fn count_refusal(reason: &'static str) {
    metrics::counter!(REFUSED, "reason" => reason).increment(1);
}

/// Sets the metrics that are read for each answer.
pub(crate) fn observe(context: &Arc<SessionContext>) {
    metrics::gauge!(WAITING).set(as_gauge(context.waiters.taken()));
    metrics::gauge!(SESSIONS).set(as_gauge(context.tasks.len()));
    let Some(host) = context.operations.host() else {
        return;
    };
    let seen = host.observe();
    metrics::gauge!(HELD).set(as_gauge(seen.held));
    metrics::counter!(EXPIRED).absolute(seen.expired);
    metrics::gauge!(RECOVERY).set(seen.recovery.as_secs_f64());
}

fn as_gauge(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}
