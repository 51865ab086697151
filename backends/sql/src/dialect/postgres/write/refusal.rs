//! The answer to an operation that its statement did not carry out.
//!
//! An operation counts as refused only if its row does not allow the operation. If the row allows
//! the operation, the row was locked or has changed since the statement, and the operation is sent
//! again.

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{Lease, Renewal, Result, TicketStep};

use super::outcome::RefusedRows;
use crate::{
    dialect::{
        postgres::{context::StoreContext, rows::LockRowAndNonce},
        refused,
    },
    wait::RENEW_HINT_BELOW,
};

/// The answer to an operation that was not carried out, from its row; `None` when the row allows
/// the operation.
pub(super) fn refusal(
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
    if is_allowed(op, look, refused_rows) {
        return None;
    }
    let row = look.map(|look| &look.row);
    if let (Operation::Acquire(_), Some(row)) = (op, row)
        && row.held.is_some()
        && row.hint_remaining > RENEW_HINT_BELOW
    {
        return Some(Ok(Answer::BusyNotified(row.held.clone())));
    }
    Some(Ok(refused(op, row, context.epochs.changed())))
}

/// Whether the row, in the state in which it was read, allows the operation.
fn is_allowed(op: &Operation, look: Option<&LockRowAndNonce>, refused_rows: &RefusedRows) -> bool {
    let version = |key| refused_rows.records.get(key).copied();
    match op {
        Operation::Acquire(request) => {
            look.is_none_or(|look| look.row.held.is_none() || look.row.owner == Some(request.owner))
        }
        Operation::Renew(lease, renewal) => {
            look.is_some_and(|look| holds(look, lease) && fits(look, renewal))
        }
        Operation::HandOver(lease, _) => look.is_some_and(|look| holds(look, lease)),
        Operation::Release(lease) => look.is_some_and(|look| stands_in(look, lease)),
        Operation::ForceRelease(_, expected) => {
            look.is_some_and(|look| look.row.held.is_some() && look.row.last_token == *expected)
        }
        Operation::Create(key, _) => version(key).is_none(),
        Operation::Replace(key, _, expected) | Operation::Delete(key, expected) => {
            version(key) == Some(*expected)
        }
    }
}

/// Whether the row has the owner and the token of the lease, even if the lease has expired.
fn stands_in(look: &LockRowAndNonce, lease: &Lease) -> bool {
    look.row.owner == Some(lease.owner)
        && lease.token.is_none_or(|token| token == look.row.last_token)
}

/// Whether the lease still holds the lock.
fn holds(look: &LockRowAndNonce, lease: &Lease) -> bool {
    look.row.held.is_some() && stands_in(look, lease)
}

/// Whether the row allows the renewal's change of the ticket: a ticket that is redeemed must be the
/// ticket in the row.
fn fits(look: &LockRowAndNonce, renewal: &Renewal) -> bool {
    match renewal.ticket {
        TicketStep::Keep | TicketStep::Issue(_) => true,
        TicketStep::Redeem(nonce) => look.nonce == Some(nonce),
    }
}
