//! The answer to an operation, from the report of its statement or from its row.

use distlock_core::{Error, ErrorKind, Result};

use super::refused_rows::RefusedRows;
use crate::{
    dialect::{
        Effect, carried_out,
        mysql::{rows, statements::WANTED},
        refused,
    },
    operation::{Answer, Operation},
};

/// The report of releases that share a statement when another process waits for one of the locks.
pub(super) const PERHAPS_WANTED: u64 = 2;

/// The outcome of an operation: the token, version or other report of its statement. `None` when it
/// was refused, and for an acquire also when its row tells.
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
        // The engine leaves the lock to the other processes once, after a run of hand-overs inside
        // this one, if another process waits for certain.
        Operation::Release(_) => {
            effect.others_waiting = (report != PERHAPS_WANTED).then_some(report > 0);
        }
        Operation::HandOver(..) => {
            effect.number = Some(rows::token(report & !WANTED));
            effect.others_waiting = Some(report & WANTED != 0);
        }
        Operation::Force(..) | Operation::Delete(..) => {}
        _ => effect.number = Some(rows::token(report)),
    }
    effect
}

/// The statement was carried out, but it is unknown what it did to this row.
fn unknown(error: Error) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "the row could not be read after the statement",
    )
    .caused_by(error)
}
