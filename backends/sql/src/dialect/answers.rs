//! The answer to an operation: from the effect of its statement, or from the row for which the
//! operation was refused.
//!
//! These rules hold for every dialect. A dialect only reports the effect of its statement.
//!
//! A row of the lock table also gives the reason of a loss.

use std::time::Duration;

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{
    Attempt, Deleted, Epoch, Error, ErrorKind, FencingToken, Forced, Grant, HandOver, HolderInfo,
    Lease, LockName, LossFeed, LossReason, OwnerId, ReleaseOutcome, Renewed, Result, Ttl, Version,
    Written,
};
use uuid::Uuid;

/// The effect of an operation that its statement carried out.
#[derive(Default)]
pub(crate) struct Effect {
    /// The token or version in the row; `None` where the row was freed or deleted.
    pub(crate) number: Option<Result<FencingToken>>,
    /// Whether another process waits for the lock; `None` if the statement does not report this.
    pub(crate) others_waiting: Option<bool>,
}

/// The answer to an operation that its statement carried out.
pub(crate) fn carried_out(op: &Operation, effect: Effect, epoch: &Epoch) -> Result<Answer> {
    let others_waiting = effect.others_waiting;
    let number = || effect.number.unwrap_or_else(|| Err(without_number()));
    let grant = |token: FencingToken, ttl: Ttl| {
        let mut grant = Grant::new(token, epoch.clone(), ttl.duration());
        grant.others_waiting = others_waiting;
        grant
    };
    Ok(match op {
        Operation::Acquire(request) => {
            Answer::Acquired(Attempt::Acquired(grant(number()?, request.ttl)))
        }
        Operation::HandOver(_, next) => {
            Answer::HandedOver(HandOver::Done(grant(number()?, next.ttl)))
        }
        Operation::Renew(_, renewal) => Answer::Renewed(Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: epoch.clone(),
            token: number()?,
            loss: LossFeed::silent(),
        }),
        Operation::Create(..) | Operation::Replace(..) => {
            Answer::Written(Written::Stored(Version::new(number()?.get())))
        }
        Operation::Release(_) => Answer::Released(ReleaseOutcome::Released { others_waiting }),
        Operation::ForceRelease(..) => Answer::Forced(Forced::Released),
        Operation::Delete(..) => Answer::Deleted(Deleted::Done),
    })
}

/// The lock whose row gives the reason of a refusal; `None` for an operation that has only one
/// reason to be refused.
pub(crate) fn lock_of_refusal(op: &Operation) -> Option<&LockName> {
    match op {
        Operation::Release(_) => None,
        op => op.lock(),
    }
}

/// The answer to an operation that changed nothing. `row` is the lock's row after the refusal;
/// `None` when there is no row.
pub(crate) fn refused(op: &Operation, row: Option<&LockRow>, history_changed: bool) -> Answer {
    let why_lost = |lease| why_lost(lease, row, history_changed);
    match op {
        // The row was held by another owner when the statement ran. If there is no row now, the
        // reaper has removed the row since then.
        Operation::Acquire(_) => {
            Answer::Acquired(Attempt::Busy(row.and_then(|row| row.held.clone())))
        }
        Operation::Renew(lease, _) => Answer::Renewed(Renewed::NotHeld(why_lost(lease))),
        Operation::HandOver(lease, _) => Answer::HandedOver(HandOver::NotHeld(why_lost(lease))),
        Operation::Release(_) => Answer::Released(ReleaseOutcome::NotHeld),
        Operation::ForceRelease(..) => Answer::Forced(match row.filter(|row| row.held.is_some()) {
            Some(row) => Forced::OtherToken(row.last_token),
            None => Forced::NotHeld,
        }),
        Operation::Create(..) | Operation::Replace(..) => Answer::Written(Written::Conflict),
        Operation::Delete(..) => Answer::Deleted(Deleted::Conflict),
    }
}

fn without_number() -> Error {
    Error::new(
        ErrorKind::Internal,
        "the statement reported neither a token nor a version",
    )
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
