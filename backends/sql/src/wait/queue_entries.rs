//! Renews the queue entries of this process at the store.

use distlock_backend_kit::queue_entry::ENTRY_LEASE;

use super::wait_group::WaitGroup;
use crate::dialect::{Dialect, QueueEntry};

/// Takes or renews queue entries. Wakes the waiters of each name whose entry became the first.
pub(super) async fn renew_queue_entries<D: Dialect>(
    group: &WaitGroup,
    dialect: &D,
    entries: &[QueueEntry],
) {
    let kept = dialect.renew_queue_entries(entries, ENTRY_LEASE).await;
    let now = dialect.context().clock.now();
    let gone = group.waiting().note_renewed(entries, kept, now);
    // A waiter may leave during this request, and give its entry up on another connection. If the
    // renewal arrives after that, the renewal creates the entry again. So the entry is removed
    // here once more.
    if !gone.is_empty()
        && let Err(error) = dialect.leave_queues(&gone).await
    {
        tracing::debug!(%error, "queue entries were not removed; they end with their lease");
    }
}
