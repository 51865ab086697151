//! Keeping locks, and passing them on.

use distlock_core::{
    AcquireRequest, Grant, HandOver, Lease, LossFeed, LossReason, Renewal, Renewed, Result,
};

use super::Refusals;
use crate::{
    dialect::{
        self,
        mysql::{rows, statements::WANTED},
    },
    op::Answer,
};

pub(super) fn renewed(
    lease: &Lease,
    renewal: &Renewal,
    token: Option<u64>,
    refusals: &Refusals,
) -> Result<Answer> {
    Ok(Answer::Renewed(match token {
        Some(token) => Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: refusals.epoch.clone(),
            token: rows::token(token)?,
            loss: LossFeed::silent(),
        },
        None => Renewed::NotHeld(why_lost(lease, refusals)?),
    }))
}

pub(super) fn handed_over(
    lease: &Lease,
    next: &AcquireRequest,
    says: Option<u64>,
    refusals: &Refusals,
) -> Result<Answer> {
    Ok(Answer::HandedOver(match says {
        Some(says) => {
            let token = rows::token(says & !WANTED)?;
            let mut grant = Grant::new(token, refusals.epoch.clone(), next.ttl.duration());
            grant.others_waiting = Some(says & WANTED != 0);
            HandOver::Done(grant)
        }
        None => HandOver::NotHeld(why_lost(lease, refusals)?),
    }))
}

fn why_lost(lease: &Lease, refusals: &Refusals) -> Result<LossReason> {
    let row = refusals.row(&lease.name)?;
    Ok(dialect::why_lost(
        lease,
        row.as_ref(),
        refusals.history_changed,
    ))
}
