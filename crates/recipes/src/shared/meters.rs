//! The metrics of shared locks.

use std::time::Duration;

use distlock_core::{Attempt, ErrorKind, Result};

use super::record::Wish;

const ACQUIRED: &str = "distlock_shared_acquire_total";
const ACQUIRE_SECONDS: &str = "distlock_shared_acquire_seconds";
const WRITES: &str = "distlock_shared_writes_total";
const DEAD: &str = "distlock_shared_dead_total";

pub(super) fn describe() {
    metrics::describe_counter!(
        ACQUIRED,
        "Requests for shared locks and permits, by their result"
    );
    metrics::describe_histogram!(
        ACQUIRE_SECONDS,
        metrics::Unit::Seconds,
        "Time from the call for a shared lock or permits to the grant, with the wait"
    );
    metrics::describe_counter!(WRITES, "Writes of the lists of holders, by their result");
    metrics::describe_counter!(
        DEAD,
        "Entries of dead holders that this process removed from the lists of holders"
    );
}

/// Counts one attempt without a wait.
pub(super) fn attempted<T>(wish: Wish, answer: &Result<Attempt<T>>) {
    let result = match answer {
        Ok(Attempt::Acquired(_)) => "acquired",
        Ok(Attempt::Busy(_)) => "busy",
        Err(_) => "error",
    };
    count(wish, result);
}

/// Counts one request that could wait.
pub(super) fn acquired<T>(wish: Wish, answer: &Result<T>, took: Duration) {
    let result = match answer {
        Ok(_) => {
            metrics::histogram!(ACQUIRE_SECONDS, "mode" => mode(wish)).record(took.as_secs_f64());
            "acquired"
        }
        Err(error) if error.kind() == ErrorKind::Timeout => "timeout",
        Err(_) => "error",
    };
    count(wish, result);
}

fn count(wish: Wish, result: &'static str) {
    metrics::counter!(ACQUIRED, "mode" => mode(wish), "result" => result).increment(1);
}

const fn mode(wish: Wish) -> &'static str {
    match wish {
        Wish::Read => "read",
        Wish::Write => "write",
        Wish::Permits(_) => "permits",
    }
}

/// Counts one write of a list of holders, and the dead ones that it removed.
pub(super) fn written(result: &'static str, dead: u64) {
    metrics::counter!(WRITES, "result" => result).increment(1);
    if dead > 0 {
        metrics::counter!(DEAD).increment(dead);
    }
}
