//! What an operation is answered, from what its statement did or from the row that it found.

use distlock_core::{
    Attempt, Deleted, Forced, Grant, HandOver, Lease, LossFeed, ReleaseOutcome, Renewal, Renewed,
    Result, TicketStep, Version, Written,
};

use super::outcome::{Done, Looks};
use crate::{
    dialect::{
        postgres::{context::Shared, rows::Look},
        why_lost,
    },
    op::{Answer, Op},
    wait::RENEW_WANTED,
};

/// The answer to an operation that was carried out.
pub(super) fn carried_out(op: &Op, done: Done, shared: &Shared) -> Result<Answer> {
    let (token, others_waiting) = match done {
        Done::Freed { others_waiting } => {
            return Ok(match op {
                Op::Force(..) => Answer::Forced(Forced::Released),
                _ => Answer::Released(ReleaseOutcome::Released {
                    others_waiting: Some(others_waiting),
                }),
            });
        }
        Done::HandedOver {
            token,
            others_waiting,
        } => (token?, Some(others_waiting)),
        Done::Token(token) => (token?, None),
    };
    let grant = |ttl: distlock_core::Ttl| {
        let mut grant = Grant::new(token, shared.epoch(), ttl.duration());
        grant.others_waiting = others_waiting;
        grant
    };
    let version = Version::new(token.get());
    Ok(match op {
        Op::Acquire(request) => Answer::Acquired(Attempt::Acquired(grant(request.ttl))),
        Op::HandOver(_, next) => Answer::HandedOver(HandOver::Done(grant(next.ttl))),
        Op::Renew(_, renewal) => Answer::Renewed(Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: shared.epoch(),
            token,
            loss: LossFeed::silent(),
        }),
        Op::Create(..) | Op::Replace(..) => Answer::Written(Written::Stored(version)),
        Op::Delete(..) => Answer::Deleted(Deleted::Done),
        Op::Release(_) | Op::Force(..) => Answer::Released(ReleaseOutcome::NotHeld),
    })
}

/// The answer to an operation that was not carried out, from its row; `None` when nothing in the row speaks against it.
pub(super) fn refused(op: &Op, looks: &Result<Looks>, shared: &Shared) -> Option<Result<Answer>> {
    let looks = match looks {
        Ok(looks) => looks,
        Err(error) => return Some(Err(error.clone())),
    };
    let look = match op.lock().and_then(|name| looks.locks.get(name)) {
        Some(Ok(look)) => Some(look),
        Some(Err(error)) => return Some(Err(error.clone())),
        None => None,
    };
    let lost = |lease: &Lease| why_lost(lease, look.map(|it| &it.row), shared.history_changed());
    let record = |key| looks.records.get(key).copied();
    let answer = match op {
        Op::Acquire(request) => {
            let row = &look?.row;
            let held = row.held.as_ref()?;
            if row.owner == Some(request.owner) {
                return None;
            }
            if row.wanted_for > RENEW_WANTED {
                Answer::Told(held.clone())
            } else {
                Answer::Acquired(Attempt::Busy(Some(held.clone())))
            }
        }
        Op::Renew(lease, renewal) => {
            if look.is_some_and(|look| holds(look, lease) && fits(look, renewal)) {
                return None;
            }
            Answer::Renewed(Renewed::NotHeld(lost(lease)))
        }
        Op::HandOver(lease, _) => {
            if look.is_some_and(|look| holds(look, lease)) {
                return None;
            }
            Answer::HandedOver(HandOver::NotHeld(lost(lease)))
        }
        Op::Release(lease) => {
            if look.is_some_and(|look| stands_in(look, lease)) {
                return None;
            }
            Answer::Released(ReleaseOutcome::NotHeld)
        }
        Op::Force(_, expected) => match look.filter(|look| look.row.held.is_some()) {
            Some(look) if look.row.last_token == *expected => return None,
            Some(look) => Answer::Forced(Forced::OtherToken(look.row.last_token)),
            None => Answer::Forced(Forced::NotHeld),
        },
        Op::Create(key, _) => {
            record(key)?;
            Answer::Written(Written::Conflict)
        }
        Op::Replace(key, _, version) => {
            if record(key) == Some(*version) {
                return None;
            }
            Answer::Written(Written::Conflict)
        }
        Op::Delete(key, version) => {
            if record(key) == Some(*version) {
                return None;
            }
            Answer::Deleted(Deleted::Conflict)
        }
    };
    Some(Ok(answer))
}

fn stands_in(look: &Look, lease: &Lease) -> bool {
    look.row.owner == Some(lease.owner)
        && lease.token.is_none_or(|token| token == look.row.last_token)
}

fn holds(look: &Look, lease: &Lease) -> bool {
    look.row.held.is_some() && stands_in(look, lease)
}

fn fits(look: &Look, renewal: &Renewal) -> bool {
    match renewal.ticket {
        TicketStep::Keep | TicketStep::Issue(_) => true,
        TicketStep::Redeem(nonce) => look.nonce == Some(nonce),
    }
}
