//! The metrics of the flow: every name with its help text.
//!
//! Every counter exists from the start with the value 0. If a counter appeared only with its first
//! event, a query for the counter's increase would miss that event.

use crate::model::notice::Code;

/// Counter of calls to other nodes that were not answered.
pub(crate) const PEER_FAILED: &str = "distlock_peer_calls_failed_total";

const COUNTERS: [(&str, &str); 10] = [
    (
        "distlock_record_conflict_total",
        "Writes that found their record changed, and were made again",
    ),
    (
        "distlock_sessions_drained_total",
        "Sessions that a draining node sent elsewhere",
    ),
    (
        "distlock_duplicates_detected_total",
        "Two active sessions in one slot: must stay 0",
    ),
    (
        "distlock_slots_swept_total",
        "Slots of dead nodes that were cleared",
    ),
    (
        "distlock_login_lock_lost_total",
        "Logins that lost the account's lock",
    ),
    (
        PEER_FAILED,
        "Calls of this node to other nodes that failed: the log names node and cause",
    ),
    (
        "distlock_node_fenced_total",
        "Times that the node lost its lease and ended its sessions",
    ),
    (
        "distlock_stale_delete_refused_total",
        "Late logouts that changed nothing",
    ),
    (
        "distlock_stale_delivery_refused_total",
        "Messages for sessions that were not current any more",
    ),
    (
        "distlock_stale_kick_refused_total",
        "Late kicks that changed nothing",
    ),
];

const LOGIN: &str = "distlock_login_total";
const LOGIN_RESULTS: [&str; 6] = [
    "admitted",
    "busy",
    "denied",
    "superseded",
    "unknown",
    "error",
];
const THROTTLED: &str = "distlock_login_throttled_total";
const ENDS: &str = "distlock_session_ends_total";
const SESSIONS: &str = "distlock_sessions";

const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "distlock_takeover_seconds",
        "From a login until the older session has its notice",
    ),
    (
        "distlock_login_lock_wait_seconds",
        "Logins' waits for the account's lock",
    ),
    (
        "distlock_login_lock_hold_seconds",
        "How long logins keep the account's lock",
    ),
];

const GAUGES: [(&str, &str); 3] = [
    (SESSIONS, "Sessions on this node"),
    (
        "distlock_revocations_pending",
        "Sessions that must go and are not known to be gone",
    ),
    (
        "distlock_lease_remaining_seconds",
        "What is left of the node's lease",
    ),
];

/// Registers every metric with its help text, and makes every counter and gauge exist.
pub(crate) fn register_all() {
    for (name, help) in COUNTERS {
        metrics::describe_counter!(name, help);
        metrics::counter!(name).increment(0);
    }
    for (name, help) in HISTOGRAMS {
        metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
    }
    for (name, help) in GAUGES {
        metrics::describe_gauge!(name, help);
        metrics::gauge!(name).increment(0.0);
    }
    metrics::describe_counter!(LOGIN, "Logins by their outcome");
    for result in LOGIN_RESULTS {
        metrics::counter!(LOGIN, "result" => result).increment(0);
    }
    metrics::describe_counter!(THROTTLED, "Logins that storm control turned away");
    for scope in ["account", "node"] {
        metrics::counter!(THROTTLED, "scope" => scope).increment(0);
    }
    metrics::describe_counter!(
        ENDS,
        "Sessions that ended, by the code of their notice; none for those that left"
    );
    metrics::counter!(ENDS, "code" => "none").increment(0);
    for code in Code::ALL {
        metrics::counter!(ENDS, "code" => code_label(code)).increment(0);
    }
}

/// Counts a login by its outcome.
pub(crate) fn count_login(result: &'static str) {
    metrics::counter!(LOGIN, "result" => result).increment(1);
}

/// Counts a login that storm control refused; `scope` is the exceeded bound.
pub(crate) fn count_throttled_login(scope: &'static str) {
    metrics::counter!(THROTTLED, "scope" => scope).increment(1);
}

pub(crate) fn count_session_start() {
    metrics::gauge!(SESSIONS).increment(1.0);
}

/// Counts the end of a session by the code in its notice, if the session had a notice.
pub(crate) fn count_session_end(code: Option<Code>) {
    metrics::gauge!(SESSIONS).decrement(1.0);
    metrics::counter!(ENDS, "code" => code.map_or("none", code_label)).increment(1);
}

/// The value of the label `code`.
const fn code_label(code: Code) -> &'static str {
    match code.number() {
        1 => "1",
        2 => "2",
        3 => "3",
        4 => "4",
        5 => "5",
        6 => "6",
        7 => "7",
        8 => "8",
        _ => "9",
    }
}
