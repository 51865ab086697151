//! A row of the lock table.

use std::time::Duration;

use distlock_core::{HolderInfo, Lease, LossReason, OwnerId};

/// What a force-release leaves in the `meta` of the row that it frees. That column of a free row is
/// otherwise null (or, after a change by hand, what the last holder had), and the next grant
/// overwrites it. Versions that do not know the trace never read it.
pub(crate) const FORCED: &str = "force-released";

/// A row of the lock table, as of now.
#[derive(Clone, Debug)]
pub(crate) struct LockRow {
    /// Who stands in it, also when the lease is over.
    pub(crate) owner: Option<OwnerId>,
    /// Whom it holds back now.
    pub(crate) held: Option<HolderInfo>,
    pub(crate) last_token: distlock_core::FencingToken,
    /// Whether the lease of that token was ended by force, and nobody was granted the lock since.
    pub(crate) forced: bool,
    /// When the lease ends, or when it was freed, as the row says it; `None` when that was before this boot.
    pub(crate) until: Option<i64>,
    /// How long a mark still stands that tells of this process when it waits: its own, or that of several.
    pub(crate) hint_remaining: Duration,
}

impl LockRow {
    /// When it becomes free unless it is renewed; zero when it is free.
    pub(crate) fn free_in(&self) -> Duration {
        match &self.held {
            Some(holder) => holder.expires_in.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        }
    }
}

/// Why a lease that its row does not confirm is lost.
pub(crate) fn why_lost(lease: &Lease, row: Option<&LockRow>, history_changed: bool) -> LossReason {
    match row {
        None if history_changed => LossReason::HistoryChanged,
        None => LossReason::Removed,
        Some(row) => match row.owner {
            None if row.forced && lease.token == Some(row.last_token) => LossReason::ForceReleased,
            None => LossReason::Removed,
            Some(owner) if owner == lease.owner && row.held.is_none() => LossReason::Expired,
            // Also our own identity under another token, or with a ticket that was redeemed already.
            Some(_) => LossReason::TakenOver,
        },
    }
}
