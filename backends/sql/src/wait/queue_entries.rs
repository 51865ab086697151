//! Renews the queue entries of this process at the store.

use distlock_backend_kit::queue_entry::ENTRY_LEASE;

use super::wait_group::WaitGroup;
use crate::dialect::{Dialect, QueueEntry};

/// Takes or renews queue entries, and wakes the waiters that are first now.
pub(super) async fn renew_queue_entries<D: Dialect>(
    group: &WaitGroup,
    dialect: &D,
    entries: &[QueueEntry],
) {
    let kept = dialect.renew_queue_entries(entries, ENTRY_LEASE).await;
    let now = dialect.clock().now();
    let gone = group.waiting().note_renewed(entries, kept, now);
    // A waiter that left meanwhile gave the entry up on another connection, perhaps before this
    // request renewed it. The entry is removed again here.
    if !gone.is_empty()
        && let Err(error) = dialect.leave_queues(&gone).await
    {
        tracing::debug!(%error, "queue entries were not given up");
    }
}
