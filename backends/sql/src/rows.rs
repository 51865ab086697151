//! A row of the lock table, with the reason of a loss that follows from it, and an entry of the
//! store queue, as every dialect reads them.

use std::time::Duration;

use distlock_backend_kit::queue_entry::ContendersAhead;
use distlock_core::{
    FencingToken, HolderInfo, HolderLabel, Lease, LockName, LossReason, OwnerId, Result,
};
use uuid::Uuid;

/// The entry of one contender in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) name: LockName,
    /// A random id, so that a late request about an earlier entry of this process does not change a
    /// later entry.
    pub(crate) id: i64,
    /// The label of the waiter for whom the entry was made, which `inspect` shows.
    pub(crate) holder: HolderLabel,
}

/// The answer of the store to the renewal of one entry: the lock's name, the number of entries
/// ahead, and the microseconds until all of them have ended. `None` for values that no queue has.
pub(crate) fn renewed_entry(
    name: String,
    count: i64,
    ended_in: i64,
) -> Option<(LockName, ContendersAhead)> {
    let ahead = ContendersAhead {
        count: u32::try_from(count).ok()?,
        ended_in: Duration::from_micros(u64::try_from(ended_in).unwrap_or(0)),
    };
    Some((LockName::new(name).ok()?, ahead))
}

/// The number of living entries of a queue and the first of them, from rows that each have that
/// number and one label.
pub(crate) fn shown_queue(
    rows: impl Iterator<Item = Result<(i64, String)>>,
) -> Result<(u32, Vec<HolderInfo>)> {
    let (mut count, mut queue) = (0, Vec::new());
    for row in rows {
        let (entries, label) = row?;
        count = u32::try_from(entries).unwrap_or(u32::MAX);
        queue.push(HolderInfo::new(label));
    }
    Ok((count, queue))
}

/// The value that a force-release stores in the column `meta` of the row that becomes free. In any
/// other free row, `meta` is null (or, after a change by hand, the value of the last holder). The
/// next grant overwrites `meta`.
pub(crate) const FORCED: &str = "force-released";

/// A row of the lock table at the time of reading.
#[derive(Clone, Debug)]
pub(crate) struct LockRow {
    /// The owner in the row. An expired row still has its owner; `None` after any release.
    pub(crate) owner: Option<OwnerId>,
    /// The present holder; `None` when the lock is free.
    pub(crate) held: Option<HolderInfo>,
    pub(crate) last_token: FencingToken,
    /// The nonce of the ticket that can be used now; `None` without such a ticket, and in dialects
    /// that do not use it.
    pub(crate) nonce: Option<Uuid>,
    /// Whether a force-release ended the lease with the token `last_token`, and the lock was not
    /// granted again since then.
    pub(crate) forced: bool,
    /// The time when the lock became free, in the store's own time; `None` in dialects that do not
    /// use this time.
    pub(crate) freed_at: Option<i64>,
    /// The remaining time in which the row's hint stands for the waiters of this process: the hint
    /// is from this process or from several processes.
    pub(crate) hint_remaining: Duration,
}

impl LockRow {
    /// Whether the row has the owner, the token and the ticket of the lease, even if the lease has
    /// expired. A ticket ends with its lease.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn has(&self, lease: &Lease) -> bool {
        self.owner == Some(lease.owner)
            && lease.token.is_none_or(|token| token == self.last_token)
            && (lease.nonce.is_none() || (lease.nonce == self.nonce && self.held.is_some()))
    }

    /// The time until the lock becomes free without a renewal; zero when the lock is free.
    pub(crate) fn free_in(&self) -> Duration {
        match &self.held {
            Some(holder) => holder.expires_in.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        }
    }
}

/// The reason of a loss, for a lease that is not held according to its row.
pub(crate) fn why_lost(lease: &Lease, row: Option<&LockRow>, history_changed: bool) -> LossReason {
    match row {
        None if history_changed => LossReason::HistoryChanged,
        None => LossReason::Removed,
        Some(row) => match row.owner {
            None if row.forced && lease.token == Some(row.last_token) => LossReason::ForceReleased,
            None => LossReason::Removed,
            Some(owner) if owner == lease.owner && row.held.is_none() => LossReason::Expired,
            // The row may also hold the lease's own owner id, with another token or another ticket.
            // That is a takeover too.
            Some(_) => LossReason::TakenOver,
        },
    }
}
