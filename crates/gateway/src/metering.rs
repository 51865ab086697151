//! The recorder behind `/metrics`, one per process.
//!
//! This module must never replace a recorder that the program installed itself.

use std::sync::OnceLock;

use distlock_listen::EXPIRY;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;

/// Upper ends of the histograms' buckets, in seconds: from a round trip on one host to a node
/// lease.
const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Counter of events that a program could not print.
const EVENTS_LOST: &str = "distlock_events_lost_total";
/// Counter of refused tokens, by their kind.
const REFUSED_TOKENS: &str = "distlock_token_refused_total";
/// Counter of clients' messages, by outcome.
const MESSAGES: &str = "distlock_messages_total";

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the process's metrics recorder, once; later calls do nothing.
///
/// Call this function before the store is opened, because lockers get their counters when they are
/// built. If the program has installed a recorder itself, that recorder stays, and `/metrics` is
/// then empty.
pub fn install_metrics() {
    handle();
}

/// Returns the handle of the recorder, and installs the recorder at the first call.
pub(crate) fn handle() -> PrometheusHandle {
    HANDLE
        .get_or_init(|| {
            let recorder = match PrometheusBuilder::new().set_buckets(&SECONDS) {
                Ok(builder) => builder.build_recorder(),
                Err(_) => unreachable!("there are buckets"),
            };
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            handle
        })
        .clone()
}

/// Describes the gateway's own metrics and sets them to 0, so that `/metrics` shows them from the
/// start.
pub(crate) fn describe() {
    for (name, help) in [
        (
            EVENTS_LOST,
            "Events that were to be printed and are lost: the output was full or too slow",
        ),
        (
            "distlock_connections_cut_total",
            "Connections that were reset after the grace",
        ),
        (
            "distlock_connections_refused_total",
            "Connections for which there was no place",
        ),
        (
            "distlock_peer_calls_refused_total",
            "Calls between nodes that were refused, with their token or in the TLS handshake",
        ),
    ] {
        metrics::describe_counter!(name, help);
        metrics::counter!(name).increment(0);
    }
    metrics::describe_counter!(REFUSED_TOKENS, "Tokens that were refused, by their kind");
    for kind in ["admin", "send", "login"] {
        metrics::counter!(REFUSED_TOKENS, "token" => kind).increment(0);
    }
    metrics::describe_counter!(MESSAGES, "Messages of clients by what became of them");
    for outcome in ["delivered", "written", "stored", "failed"] {
        metrics::counter!(MESSAGES, "outcome" => outcome).increment(0);
    }
    metrics::describe_histogram!(
        "distlock_profile_seconds",
        metrics::Unit::Seconds,
        "Answers about profiles"
    );
    metrics::describe_histogram!(
        "distlock_may_send_seconds",
        metrics::Unit::Seconds,
        "Answers about who may send to whom"
    );
    metrics::describe_histogram!(
        "distlock_save_seconds",
        metrics::Unit::Seconds,
        "Answers of the service that saves"
    );
    metrics::describe_gauge!(
        EXPIRY,
        metrics::Unit::Seconds,
        "Time until the first certificate of a file expires, negative afterwards"
    );
    Collector::default().describe();
    metrics::describe_gauge!("distlock_build_info", "1, with the version of this node");
    metrics::gauge!("distlock_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Reads the metrics of this process from the system.
pub(crate) fn collect_process() {
    Collector::default().collect();
}

/// Counts [`Event`](distlock_kickout::Event)s that the program was to print and could not.
pub fn count_lost_events(events: u64) {
    metrics::counter!(EVENTS_LOST).increment(events);
}

/// Counts a token that was refused; `kind` is `admin`, `send` or `login`.
pub(crate) fn count_refused_token(kind: &'static str) {
    metrics::counter!(REFUSED_TOKENS, "token" => kind).increment(1);
}

/// Counts a client's message by its outcome.
pub(crate) fn count_message(outcome: &'static str) {
    metrics::counter!(MESSAGES, "outcome" => outcome).increment(1);
}
