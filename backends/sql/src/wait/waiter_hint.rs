//! Waiter hints: a mark on a held row that says which process waits for it.
//!
//! A holder that frees the row reads from the hint whether another process waits. A hint expires by
//! itself; a missing hint costs time and never correctness.

use std::time::Duration;

/// How long a hint lasts. With [`RENEW_HINT_BELOW`], a waiter writes once in 4 s.
pub(super) const HINT_LIFETIME: Duration = Duration::from_secs(5);

/// A hint is renewed when no more than this remains.
pub(crate) const RENEW_HINT_BELOW: Duration = Duration::from_secs(1);

/// The hint of several processes. A process that finds another process's hint writes this value
/// instead of its own. The process of the first hint may hold the lock by now, or it set the hint
/// after it had taken the lock; a process is not told of its own waiters, so that its hint alone
/// would hide the second process.
pub(crate) const SEVERAL_PROCESSES: i64 = 0;

/// How long a hint still counts for the process with the id `ours`: the rest of its life (`left`),
/// or zero if it is another process's hint.
pub(crate) fn remaining_of_hint(hint_id: i64, ours: i64, left: Duration) -> Duration {
    if hint_id == ours || hint_id == SEVERAL_PROCESSES {
        left
    } else {
        Duration::ZERO
    }
}
