//! The answer to an operation: from the effect of its statement, or from the row for which the
//! operation was refused.
//!
//! These rules hold for every dialect. A dialect only reports the effect of its statement.

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{
    Attempt, Deleted, Epoch, Error, ErrorKind, FencingToken, Forced, Grant, HandOver, LockName,
    LossFeed, ReleaseOutcome, Renewed, Result, Ttl, Version, Written,
};

use crate::rows::{LockRow, why_lost};

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
