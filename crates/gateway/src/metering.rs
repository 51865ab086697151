//! The gateway's own metrics.

use std::time::SystemTime;

use distlock_listen::MetricsPage;

/// Counter of events that a program could not print.
const EVENTS_LOST: &str = "distlock_events_lost_total";
/// Counter of refused tokens, by their kind.
const REFUSED_TOKENS: &str = "distlock_token_refused_total";
/// Number of open streams of events.
const EVENT_STREAMS: &str = "distlock_event_streams";
/// Counter of streams of events whose reader did not read.
const CUT_EVENT_STREAMS: &str = "distlock_event_streams_cut_total";
/// Number of public keys for login tokens.
const LOGIN_KEYS: &str = "distlock_login_keys";
/// When these keys were read.
const LOGIN_KEYS_READ: &str = "distlock_login_keys_read_timestamp_seconds";
/// Counter of reads of these keys, by result.
const LOGIN_KEY_READS: &str = "distlock_login_key_reads_total";
/// Counter of logins whose token names another key.
const LOGIN_KEY_UNKNOWN: &str = "distlock_login_key_unknown_total";
/// Counter of attempts to give an event to a web hook, by result.
const HOOK_ATTEMPTS: &str = "distlock_hook_attempts_total";
/// Counter of events that a web hook did not get, by reason.
const HOOK_DROPPED: &str = "distlock_hook_dropped_total";
/// Number of events that wait for a web hook.
const HOOK_WAITING: &str = "distlock_hook_waiting";
/// Counter of clients' messages, by outcome.
const MESSAGES: &str = "distlock_messages_total";

/// Installs the process's metrics recorder, once; later calls do nothing.
///
/// Call this function before the store is opened, because lockers get their counters when they are
/// built. If the program has installed a recorder itself, that recorder stays, and `/metrics` is
/// then empty.
pub fn install_metrics() {
    let _ = MetricsPage::install();
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
            CUT_EVENT_STREAMS,
            "Streams of events that were cut off because their reader did not read",
        ),
        (
            LOGIN_KEY_UNKNOWN,
            "Logins that got busy, because their token names a key that is not known",
        ),
        (
            "distlock_connections_cut_total",
            "Connections that were reset after the grace",
        ),
        (
            "distlock_peer_calls_refused_total",
            "Calls between nodes that were refused, with their token or in the TLS handshake",
        ),
    ] {
        metrics::describe_counter!(name, help);
        metrics::counter!(name).increment(0);
    }
    metrics::describe_gauge!(EVENT_STREAMS, "Open streams of events");
    metrics::gauge!(EVENT_STREAMS).increment(0.0);
    metrics::describe_counter!(REFUSED_TOKENS, "Tokens that were refused, by their kind");
    for kind in ["admin", "send", "login"] {
        metrics::counter!(REFUSED_TOKENS, "token" => kind).increment(0);
    }
    metrics::describe_gauge!(LOGIN_KEYS, "Public keys that check login tokens");
    metrics::describe_gauge!(
        LOGIN_KEYS_READ,
        metrics::Unit::Seconds,
        "When public keys for login tokens were read the last time, in seconds since 1970"
    );
    metrics::describe_counter!(
        LOGIN_KEY_READS,
        "Reads of the public keys for login tokens, by result"
    );
    for result in ["ok", "failed"] {
        metrics::counter!(LOGIN_KEY_READS, "result" => result).increment(0);
    }
    metrics::describe_counter!(MESSAGES, "Messages of clients by what became of them");
    for outcome in ["delivered", "written", "stored", "failed"] {
        metrics::counter!(MESSAGES, "outcome" => outcome).increment(0);
    }
    metrics::describe_counter!(
        HOOK_ATTEMPTS,
        "Attempts to give an event to a web hook, by result"
    );
    metrics::describe_counter!(
        HOOK_DROPPED,
        "Events that a web hook wants and did not get, by reason"
    );
    metrics::describe_gauge!(HOOK_WAITING, "Events that wait for a web hook");
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
}

/// Counts [`Event`](distlock_kickout::Event)s that the program was to print and could not.
pub fn count_lost_events(events: u64) {
    metrics::counter!(EVENTS_LOST).increment(events);
}

/// Counts an open stream of events, until the result is dropped.
pub(crate) fn count_event_stream() -> impl Drop {
    struct Open;
    impl Drop for Open {
        fn drop(&mut self) {
            metrics::gauge!(EVENT_STREAMS).decrement(1.0);
        }
    }
    metrics::gauge!(EVENT_STREAMS).increment(1.0);
    Open
}

/// Counts a stream of events that was cut off because its reader did not read.
pub(crate) fn count_cut_event_stream() {
    metrics::counter!(CUT_EVENT_STREAMS).increment(1);
}

/// Counts a token that was refused; `kind` is `admin`, `send` or `login`.
pub(crate) fn count_refused_token(kind: &'static str) {
    metrics::counter!(REFUSED_TOKENS, "token" => kind).increment(1);
}

/// Sets the number of public keys for login tokens, and the time when they were read.
pub(crate) fn set_login_keys(keys: usize, read: SystemTime) {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a metric is a float, and keys are few"
    )]
    metrics::gauge!(LOGIN_KEYS).set(keys as f64);
    let read = read.duration_since(SystemTime::UNIX_EPOCH);
    metrics::gauge!(LOGIN_KEYS_READ).set(read.unwrap_or_default().as_secs_f64());
}

/// Counts a read of the public keys for login tokens.
pub(crate) fn count_login_key_read(ok: bool) {
    let result = if ok { "ok" } else { "failed" };
    metrics::counter!(LOGIN_KEY_READS, "result" => result).increment(1);
}

/// Counts a login whose token names a public key that is not known.
pub(crate) fn count_unknown_login_key() {
    metrics::counter!(LOGIN_KEY_UNKNOWN).increment(1);
}

/// Counts a client's message by its outcome.
pub(crate) fn count_message(outcome: &'static str) {
    metrics::counter!(MESSAGES, "outcome" => outcome).increment(1);
}

/// Why an event did not reach a web hook.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HookDrop {
    /// Too many events waited.
    Full,
    /// The receiver did not take it in time.
    Expired,
    /// The receiver had answered 410.
    Gone,
    /// The node stopped.
    Stopped,
    /// More happened than the node keeps, before this event was read.
    Missed,
}

impl HookDrop {
    const ALL: [Self; 5] = [
        Self::Full,
        Self::Expired,
        Self::Gone,
        Self::Stopped,
        Self::Missed,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::Stopped => "stopped",
            Self::Missed => "missed",
        }
    }
}

/// Counts the events of one web hook.
#[derive(Debug)]
pub(crate) struct HookMeter(String);

impl HookMeter {
    /// Sets the counters of this web hook to 0, so that `/metrics` shows them from the start.
    pub(crate) fn new(hook: &str) -> Self {
        let meter = Self(hook.to_owned());
        for result in ["delivered", "failed"] {
            metrics::counter!(HOOK_ATTEMPTS, "hook" => meter.0.clone(), "result" => result)
                .increment(0);
        }
        for reason in HookDrop::ALL {
            meter.count_dropped(reason, 0);
        }
        meter
    }

    pub(crate) fn count_attempt(&self, delivered: bool) {
        let result = if delivered { "delivered" } else { "failed" };
        metrics::counter!(HOOK_ATTEMPTS, "hook" => self.0.clone(), "result" => result).increment(1);
    }

    pub(crate) fn count_dropped(&self, reason: HookDrop, events: u64) {
        metrics::counter!(HOOK_DROPPED, "hook" => self.0.clone(), "reason" => reason.name())
            .increment(events);
    }

    pub(crate) fn set_waiting(&self, events: usize) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a metric is a float, and a queue is short"
        )]
        metrics::gauge!(HOOK_WAITING, "hook" => self.0.clone()).set(events as f64);
    }
}
