//! Marks of held rows as wanted.

use std::time::Duration;

/// How long a held row is marked as wanted, and how little may be left before the mark is renewed: one write in 4 s.
pub(super) const HINT_LIFETIME: Duration = Duration::from_secs(5);

pub(crate) const RENEW_HINT_BELOW: Duration = Duration::from_secs(1);

/// The mark of several processes: a process that finds another's mark leaves this instead. One whose own mark it was may hold
/// the lock by now, or marked it only after it had taken it; it does not tell itself.
pub(crate) const SEVERAL_PROCESSES: i64 = 0;

/// How long a mark, which stands for `left`, tells the process whose own is `ours` when it waits.
pub(crate) fn remaining_of_hint(hint_id: i64, ours: i64, left: Duration) -> Duration {
    if hint_id == ours || hint_id == SEVERAL_PROCESSES {
        left
    } else {
        Duration::ZERO
    }
}
