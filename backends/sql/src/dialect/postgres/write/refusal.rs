//! The answer to an operation that its statement did not carry out.
//!
//! An operation counts as refused only if its row does not allow the operation. If the row allows
//! the operation, the row was locked or has changed since the statement, and the operation is sent
//! again.

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{Lease, Result};

use super::outcome::RefusedRows;
use crate::{
    dialect::{LockRow, postgres::context::StoreContext, refused},
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
    let row = match op.lock().and_then(|name| refused_rows.locks.get(name)) {
        Some(Ok(row)) => Some(row),
        Some(Err(error)) => return Some(Err(error.clone())),
        None => None,
    };
    if is_allowed(op, row, refused_rows) {
        return None;
    }
    if let (Operation::Acquire(_), Some(row)) = (op, row)
        && row.held.is_some()
        && row.hint_remaining > RENEW_HINT_BELOW
    {
        return Some(Ok(Answer::BusyNotified(row.held.clone())));
    }
    Some(Ok(refused(op, row, context.epochs.changed())))
}

/// Whether the row, in the state in which it was read, allows the operation.
fn is_allowed(op: &Operation, row: Option<&LockRow>, refused_rows: &RefusedRows) -> bool {
    let version = |key| refused_rows.records.get(key).copied();
    match op {
        Operation::Acquire(request) => {
            row.is_none_or(|row| row.held.is_none() || row.owner == Some(request.owner))
        }
        Operation::Renew(lease, _) | Operation::HandOver(lease, _) => {
            row.is_some_and(|row| holds(row, lease))
        }
        Operation::Release(lease) => row.is_some_and(|row| row.has(lease)),
        Operation::ForceRelease(_, expected) => {
            row.is_some_and(|row| row.held.is_some() && row.last_token == *expected)
        }
        Operation::Create(key, _) => version(key).is_none(),
        Operation::Replace(key, _, expected) | Operation::Delete(key, expected) => {
            version(key) == Some(*expected)
        }
    }
}

/// Whether the lease still holds the lock.
fn holds(row: &LockRow, lease: &Lease) -> bool {
    row.held.is_some() && row.has(lease)
}
