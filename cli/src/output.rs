//! Prints results to standard output, and everything else to standard error.

use std::{
    fmt,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use distlock::{HolderInfo, LockInfo, backend::presentable};
use serde::Serialize;

use crate::{
    exit::{Failure, Outcome},
    stderr,
};

/// Writes one line of result.
pub fn print_line(text: impl fmt::Display) -> Outcome<()> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Writes one line of result as JSON.
pub fn print_json(value: &impl Serialize) -> Outcome<()> {
    print_line(serde_json::to_string(value).map_err(io::Error::from)?)
}

/// Writes a result that contains its own line ends.
pub fn print_bytes(text: &[u8]) -> Outcome<()> {
    // A terminal shows both streams, so earlier messages are written first.
    stderr::catch_up();
    let mut out = io::stdout().lock();
    out.write_all(text)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::of_output(&error))
}

/// Prints a message or a warning to standard error. This function never waits for a slow reader: a
/// message that does not fit into the queue is dropped.
pub fn print_message(text: impl fmt::Display) {
    stderr::queue_or_drop(&format!(
        "{}: {}\n",
        stderr::program(),
        presentable(&text.to_string())
    ));
}

/// Prints the message of a failure to standard error. The message is never dropped.
pub(crate) fn print_error(text: impl fmt::Display) {
    let text = presentable(&text.to_string());
    stderr::queue_always(&format!("{}: error: {text}\n", stderr::program()));
}

/// A lock in the form of `--json`; unknown fields are null.
#[derive(Serialize)]
pub(crate) struct LockJson<'a> {
    name: &'a str,
    kind: &'static str,
    state: &'static str,
    holder: Option<&'a str>,
    meta: Option<&'a str>,
    token: Option<u64>,
    epoch: Option<&'a str>,
    acquired_at: Option<String>,
    expires_in_ms: Option<u64>,
    waiters: Option<u32>,
    /// The first waiters, from a store that keeps a queue of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue: Vec<WaitingJson<'a>>,
}

/// One waiter.
#[derive(Serialize)]
struct WaitingJson<'a> {
    /// The position in the queue; 1 is the next one.
    position: usize,
    holder: &'a str,
    meta: Option<&'a str>,
}

impl<'a> From<&'a LockInfo> for LockJson<'a> {
    fn from(info: &'a LockInfo) -> Self {
        let held = info.held.as_ref();
        Self {
            name: info.name.as_str(),
            kind: "lock",
            state: if held.is_some() { "held" } else { "free" },
            holder: held.map(|held| held.holder.as_str()),
            meta: held.and_then(|held| held.meta.as_deref()),
            token: held.and_then(|held| held.token).map(u64::from),
            epoch: info.epoch.as_ref().map(distlock::Epoch::as_str),
            acquired_at: held
                .and_then(|held| held.acquired_at)
                .and_then(format_rfc3339),
            expires_in_ms: held.and_then(|held| held.expires_in).map(whole_millis),
            waiters: info.waiters,
            queue: (1..)
                .zip(&info.queue)
                .map(|(position, waiting)| WaitingJson {
                    position,
                    holder: &waiting.holder,
                    meta: waiting.meta.as_deref(),
                })
                .collect(),
        }
    }
}

/// Describes the holder of a lock: `held by bob@host:12 since 2026-01-02T03:04:05Z, token 7, for
/// 3.2s more unless it is renewed`.
pub(crate) fn describe_holder(held: &HolderInfo) -> String {
    let mut text = format!("held by {}", held.holder.escape_debug());
    if let Some(at) = held.acquired_at.and_then(format_rfc3339) {
        text += &format!(" since {at}");
    }
    if let Some(token) = held.token {
        text += &format!(", token {token}");
    }
    if let Some(left) = held.expires_in {
        text += &format!(", for {} more unless it is renewed", format_seconds(left));
    }
    text
}

/// Formats a duration to a tenth of a second: `3.2s`.
pub(crate) fn format_seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

/// A duration in whole milliseconds.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a wall-clock time to the millisecond; `None` if the calendar cannot express it.
pub(crate) fn format_rfc3339(time: SystemTime) -> Option<String> {
    let time = jiff::Timestamp::try_from(time).ok()?;
    Some(format!("{time:.3}"))
}
