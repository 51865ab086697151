//! Waiter hints: a mark on a held row that says which process waits for it.
//!
//! A release reads from the hint whether another process waits. A hint expires without any request.
//! Without a hint, a waiter finds the free lock later, at its next poll; exclusion never depends on
//! a hint.

use std::time::Duration;

/// The lifetime of a hint. Together with [`RENEW_HINT_BELOW`], a process writes its hint once in
/// 4 s.
pub(super) const HINT_LIFETIME: Duration = Duration::from_secs(5);

/// A hint is renewed when no more than this remains.
pub(crate) const RENEW_HINT_BELOW: Duration = Duration::from_secs(1);

/// The hint of several processes. A process that finds the hint of another process writes this
/// value instead of its own id. The reason: the first process may hold the lock by now, or it may
/// have set the hint after it had taken the lock. A holder ignores the hint of its own process. So
/// the first process's hint alone would hide the second process from the holder.
pub(crate) const SEVERAL_PROCESSES: i64 = 0;

/// The remaining time in which a hint stands for the process with the id `ours`: `left` if the hint
/// is from this process or from several processes, and zero if the hint is from another process.
pub(crate) fn remaining_of_hint(hint_id: i64, ours: i64, left: Duration) -> Duration {
    if hint_id == ours || hint_id == SEVERAL_PROCESSES {
        left
    } else {
        Duration::ZERO
    }
}
