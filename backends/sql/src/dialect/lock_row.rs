//! A row of the lock table, and the reason of a loss that follows from the row.

use std::time::Duration;

use distlock_core::{HolderInfo, Lease, LossReason, OwnerId};
use uuid::Uuid;

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
    pub(crate) last_token: distlock_core::FencingToken,
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
