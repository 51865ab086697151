//! The answer to an operation, from the result of its statement or from the row that refused it.

use distlock_core::{
    AcquireRequest, Attempt, Deleted, Forced, Grant, HandOver, Lease, LockName, LossFeed,
    LossReason, ReleaseOutcome, Renewal, Renewed, Result, Written,
};

use super::refused_rows::RefusedRows;
use crate::{
    dialect::{
        self,
        mysql::{rows, statements::WANTED},
    },
    operation::{Answer, Operation},
};

/// The report of a release when another process waits. The engine then leaves the lock to the other
/// processes once, after a run of hand-overs inside this one.
pub(super) const RELEASE_WANTED: u64 = 2;

/// The report of a release when no other process waits.
pub(super) const UNWANTED: u64 = 1;

/// The report when another process waits for this lock, or for one that was freed in the same
/// statement.
pub(super) const PERHAPS_WANTED: u64 = 3;

/// The outcome of an operation: the token, version or report of its statement, or `None` when it
/// was refused.
pub(super) type Outcome = Option<u64>;

pub(super) fn answer(op: &Operation, id: Outcome, refused_rows: &RefusedRows) -> Result<Answer> {
    match op {
        Operation::Acquire(request) => acquired(request, id, refused_rows),
        Operation::Renew(lease, renewal) => renewed(lease, renewal, id, refused_rows),
        Operation::HandOver(lease, next) => handed_over(lease, next, id, refused_rows),
        Operation::Release(_) => Ok(released(id)),
        Operation::Force(name, _) => forced(name, id, refused_rows),
        Operation::Create(..) | Operation::Replace(..) => written(id),
        Operation::Delete(..) => Ok(deleted(id)),
    }
}

pub(super) fn acquired(
    request: &AcquireRequest,
    token: Option<u64>,
    refused_rows: &RefusedRows,
) -> Result<Answer> {
    let Some(token) = token else {
        // The row is gone by now: the lock was held when the statement asked.
        let row = refused_rows.row(&request.name)?;
        return Ok(Answer::Acquired(Attempt::Busy(
            row.and_then(|row| row.held),
        )));
    };
    let grant = Grant::new(
        rows::token(token)?,
        refused_rows.epoch.clone(),
        request.ttl.duration(),
    );
    Ok(Answer::Acquired(Attempt::Acquired(grant)))
}

pub(super) fn released(says: Option<u64>) -> Answer {
    Answer::Released(match says {
        Some(says) => ReleaseOutcome::Released {
            others_waiting: (says != PERHAPS_WANTED).then_some(says == RELEASE_WANTED),
        },
        None => ReleaseOutcome::NotHeld,
    })
}

pub(super) fn forced(
    name: &LockName,
    freed: Option<u64>,
    refused_rows: &RefusedRows,
) -> Result<Answer> {
    if freed.is_some() {
        return Ok(Answer::Forced(Forced::Released));
    }
    Ok(Answer::Forced(match refused_rows.row(name)? {
        Some(row) if row.held.is_some() => Forced::OtherToken(row.last_token),
        Some(_) | None => Forced::NotHeld,
    }))
}

pub(super) fn renewed(
    lease: &Lease,
    renewal: &Renewal,
    token: Option<u64>,
    refused_rows: &RefusedRows,
) -> Result<Answer> {
    Ok(Answer::Renewed(match token {
        Some(token) => Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: refused_rows.epoch.clone(),
            token: rows::token(token)?,
            loss: LossFeed::silent(),
        },
        None => Renewed::NotHeld(why_lost(lease, refused_rows)?),
    }))
}

pub(super) fn handed_over(
    lease: &Lease,
    next: &AcquireRequest,
    says: Option<u64>,
    refused_rows: &RefusedRows,
) -> Result<Answer> {
    Ok(Answer::HandedOver(match says {
        Some(says) => {
            let token = rows::token(says & !WANTED)?;
            let mut grant = Grant::new(token, refused_rows.epoch.clone(), next.ttl.duration());
            grant.others_waiting = Some(says & WANTED != 0);
            HandOver::Done(grant)
        }
        None => HandOver::NotHeld(why_lost(lease, refused_rows)?),
    }))
}

fn why_lost(lease: &Lease, refused_rows: &RefusedRows) -> Result<LossReason> {
    let row = refused_rows.row(&lease.name)?;
    Ok(dialect::why_lost(
        lease,
        row.as_ref(),
        refused_rows.history_changed,
    ))
}

pub(super) fn written(version: Option<u64>) -> Result<Answer> {
    Ok(Answer::Written(match version {
        Some(version) => Written::Stored(rows::version(version)?),
        None => Written::Conflict,
    }))
}

pub(super) fn deleted(changed: Option<u64>) -> Answer {
    Answer::Deleted(match changed {
        Some(_) => Deleted::Done,
        None => Deleted::Conflict,
    })
}
