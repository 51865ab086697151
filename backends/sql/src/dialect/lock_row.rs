//! A row of the lock table, and the reason for which it ends a lease.

use std::time::Duration;

use distlock_core::{HolderInfo, Lease, LossReason, OwnerId};

/// The trace of a force-release in the `meta` of the row that it frees. In a free row that column
/// is otherwise null (or, after a change by hand, the last holder's value), and the next grant
/// overwrites it. Versions that do not know the trace never read it.
pub(crate) const FORCED: &str = "force-released";

/// A row of the lock table at the time of reading.
#[derive(Clone, Debug)]
pub(crate) struct LockRow {
    /// The owner in the row. It stays when the lease expires; `None` after any release.
    pub(crate) owner: Option<OwnerId>,
    /// The present holder; `None` when the lock is free.
    pub(crate) held: Option<HolderInfo>,
    pub(crate) last_token: distlock_core::FencingToken,
    /// Whether the lease of that token was ended by force, and nobody was granted the lock since.
    pub(crate) forced: bool,
    /// When the lock was freed, in the store's own time, where the dialect needs it.
    pub(crate) freed_at: Option<i64>,
    /// How long the row's hint still tells of this process's waiters: its own hint, or that of
    /// several processes.
    pub(crate) hint_remaining: Duration,
}

impl LockRow {
    /// The time until the lock becomes free unless it is renewed; zero when it is free.
    pub(crate) fn free_in(&self) -> Duration {
        match &self.held {
            Some(holder) => holder.expires_in.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        }
    }
}

/// The reason of a loss, for a lease that its row does not confirm.
pub(crate) fn why_lost(lease: &Lease, row: Option<&LockRow>, history_changed: bool) -> LossReason {
    match row {
        None if history_changed => LossReason::HistoryChanged,
        None => LossReason::Removed,
        Some(row) => match row.owner {
            None if row.forced && lease.token == Some(row.last_token) => LossReason::ForceReleased,
            None => LossReason::Removed,
            Some(owner) if owner == lease.owner && row.held.is_none() => LossReason::Expired,
            // Our own owner id under another token, or with a ticket that was redeemed already, is
            // a takeover as well.
            Some(_) => LossReason::TakenOver,
        },
    }
}
