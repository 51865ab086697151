//! Keeping the places of this process in the store queue.

use distlock_core::line::PLACE_LEASE;

use super::wait_group::WaitGroup;
use crate::dialect::{Dialect, QueueEntry};

/// Takes or renews places, and wakes those who are first now.
pub(super) async fn renew_queue_entries<D: Dialect>(
    group: &WaitGroup,
    dialect: &D,
    entries: &[QueueEntry],
) {
    let kept = dialect.renew_queue_entries(entries, PLACE_LEASE).await;
    let now = dialect.clock().now();
    let gone = group.waiting().note_renewed(entries, kept, now);
    // Whoever left meanwhile gave the place up on another connection, perhaps before it was
    // renewed on this one.
    if !gone.is_empty()
        && let Err(error) = dialect.leave_queues(&gone).await
    {
        tracing::debug!(%error, "places in lines were not given up");
    }
}
