//! The answer to an operation, from the report of its statement or from its row.

use distlock_backend_kit::operation::{Answer, Operation};
use distlock_core::{Error, ErrorKind, Result};

use super::refused_rows::RefusedRows;
use crate::dialect::{
    Effect, carried_out,
    mysql::{rows, statements::WANTED},
    refused,
};

/// The report of each release of a shared statement, if another process waits for at least one of
/// the released locks. The statement does not show for which lock.
pub(super) const PERHAPS_WANTED: u64 = 2;

/// The outcome of an operation: the token, version or other report of its statement. `None` means
/// that the operation was refused. For an acquire, `None` can also mean that only the row shows the
/// outcome.
pub(super) type Outcome = Option<u64>;

pub(super) fn answer(
    op: &Operation,
    outcome: Outcome,
    refused_rows: &RefusedRows,
) -> Result<Answer> {
    let epoch = &refused_rows.epoch;
    if let Some(report) = outcome {
        return carried_out(op, effect(op, report), epoch);
    }
    let row = refused_rows.row(op).map_err(|error| match op {
        Operation::Acquire(_) if refused_rows.rows.is_err() => unknown(error),
        _ => error,
    })?;
    if let (Operation::Acquire(request), Some(row)) = (op, row)
        && row.owner == Some(request.owner)
    {
        let effect = Effect {
            number: Some(Ok(row.last_token)),
            others_waiting: None,
        };
        return carried_out(op, effect, epoch);
    }
    Ok(refused(op, row, refused_rows.history_changed))
}

fn effect(op: &Operation, report: u64) -> Effect {
    let mut effect = Effect::default();
    match op {
        // After several hand-overs within one process, the engine leaves the lock to another
        // process, but only if another process certainly waits. So an uncertain report is `None`.
        Operation::Release(_) => {
            effect.others_waiting = (report != PERHAPS_WANTED).then_some(report > 0);
        }
        Operation::HandOver(..) => {
            effect.number = Some(rows::token(report & !WANTED));
            effect.others_waiting = Some(report & WANTED != 0);
        }
        Operation::ForceRelease(..) | Operation::Delete(..) => {}
        _ => effect.number = Some(rows::token(report)),
    }
    effect
}

/// The error for an operation whose statement was carried out, but whose row could not be read.
fn unknown(error: Error) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the row was written, but could not be read afterwards",
    )
    .caused_by(error)
}
