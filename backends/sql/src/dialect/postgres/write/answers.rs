//! The answer to an operation, from the effect of its statement or from its row.

use distlock_core::{
    Attempt, Deleted, Forced, Grant, HandOver, Lease, LossFeed, ReleaseOutcome, Renewal, Renewed,
    Result, TicketStep, Version, Written,
};

use super::outcome::{Effect, RefusedRows};
use crate::{
    dialect::{
        postgres::{context::StoreContext, rows::LockRowAndNonce},
        why_lost,
    },
    operation::{Answer, Operation},
    wait::RENEW_HINT_BELOW,
};

/// The answer to an operation that was carried out.
pub(super) fn carried_out(op: &Operation, done: Effect, context: &StoreContext) -> Result<Answer> {
    let (token, others_waiting) = match done {
        Effect::Freed { others_waiting } => {
            return Ok(match op {
                Operation::Force(..) => Answer::Forced(Forced::Released),
                _ => Answer::Released(ReleaseOutcome::Released {
                    others_waiting: Some(others_waiting),
                }),
            });
        }
        Effect::HandedOver {
            token,
            others_waiting,
        } => (token?, Some(others_waiting)),
        Effect::Token(token) => (token?, None),
    };
    let grant = |ttl: distlock_core::Ttl| {
        let mut grant = Grant::new(token, context.epoch(), ttl.duration());
        grant.others_waiting = others_waiting;
        grant
    };
    let version = Version::new(token.get());
    Ok(match op {
        Operation::Acquire(request) => Answer::Acquired(Attempt::Acquired(grant(request.ttl))),
        Operation::HandOver(_, next) => Answer::HandedOver(HandOver::Done(grant(next.ttl))),
        Operation::Renew(_, renewal) => Answer::Renewed(Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: context.epoch(),
            token,
            loss: LossFeed::silent(),
        }),
        Operation::Create(..) | Operation::Replace(..) => Answer::Written(Written::Stored(version)),
        Operation::Delete(..) => Answer::Deleted(Deleted::Done),
        Operation::Release(_) | Operation::Force(..) => Answer::Released(ReleaseOutcome::NotHeld),
    })
}

/// The answer to an operation that was not carried out, from its row; `None` when nothing in the
/// row forbids the operation.
pub(super) fn refused(
    op: &Operation,
    refused_rows: &Result<RefusedRows>,
    context: &StoreContext,
) -> Option<Result<Answer>> {
    let refused_rows = match refused_rows {
        Ok(refused_rows) => refused_rows,
        Err(error) => return Some(Err(error.clone())),
    };
    let look = match op.lock().and_then(|name| refused_rows.locks.get(name)) {
        Some(Ok(look)) => Some(look),
        Some(Err(error)) => return Some(Err(error.clone())),
        None => None,
    };
    let lost = |lease: &Lease| why_lost(lease, look.map(|it| &it.row), context.history_changed());
    let record = |key| refused_rows.records.get(key).copied();
    let answer = match op {
        Operation::Acquire(request) => {
            let row = &look?.row;
            let held = row.held.as_ref()?;
            if row.owner == Some(request.owner) {
                return None;
            }
            if row.hint_remaining > RENEW_HINT_BELOW {
                Answer::BusyNotified(held.clone())
            } else {
                Answer::Acquired(Attempt::Busy(Some(held.clone())))
            }
        }
        Operation::Renew(lease, renewal) => {
            if look.is_some_and(|look| holds(look, lease) && fits(look, renewal)) {
                return None;
            }
            Answer::Renewed(Renewed::NotHeld(lost(lease)))
        }
        Operation::HandOver(lease, _) => {
            if look.is_some_and(|look| holds(look, lease)) {
                return None;
            }
            Answer::HandedOver(HandOver::NotHeld(lost(lease)))
        }
        Operation::Release(lease) => {
            if look.is_some_and(|look| stands_in(look, lease)) {
                return None;
            }
            Answer::Released(ReleaseOutcome::NotHeld)
        }
        Operation::Force(_, expected) => match look.filter(|look| look.row.held.is_some()) {
            Some(look) if look.row.last_token == *expected => return None,
            Some(look) => Answer::Forced(Forced::OtherToken(look.row.last_token)),
            None => Answer::Forced(Forced::NotHeld),
        },
        Operation::Create(key, _) => {
            record(key)?;
            Answer::Written(Written::Conflict)
        }
        Operation::Replace(key, _, version) => {
            if record(key) == Some(*version) {
                return None;
            }
            Answer::Written(Written::Conflict)
        }
        Operation::Delete(key, version) => {
            if record(key) == Some(*version) {
                return None;
            }
            Answer::Deleted(Deleted::Conflict)
        }
    };
    Some(Ok(answer))
}

fn stands_in(look: &LockRowAndNonce, lease: &Lease) -> bool {
    look.row.owner == Some(lease.owner)
        && lease.token.is_none_or(|token| token == look.row.last_token)
}

fn holds(look: &LockRowAndNonce, lease: &Lease) -> bool {
    look.row.held.is_some() && stands_in(look, lease)
}

fn fits(look: &LockRowAndNonce, renewal: &Renewal) -> bool {
    match renewal.ticket {
        TicketStep::Keep | TicketStep::Issue(_) => true,
        TicketStep::Redeem(nonce) => look.nonce == Some(nonce),
    }
}
