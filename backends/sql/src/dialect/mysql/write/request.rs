//! The form in which the operations of a batch are sent: always one round trip.
//!
//! One statement for many rows takes a server much less time than one statement for each row. But
//! one statement for many rows does not report which row was locked or in another state than
//! expected. After such a result, the operations are sent again with a statement for each row.
//!
//! The answer to an operation comes from the report of its statement, or from the row for which the
//! operation was refused.

use std::{collections::HashMap, time::Duration};

use distlock_backend_kit::operation::{Answer, Operation, OperationKind};
use distlock_core::{
    AcquireRequest, Epoch, Error, ErrorKind, FencingToken, Lease, LockName, Result, TicketStep,
};
use sqlx::mysql::MySqlQueryResult;

use crate::{
    dialect::{
        Effect, carried_out, lock_of_refusal,
        mysql::{
            flavour::Flavour,
            rows,
            statements::{READ_THE_ROWS, Statement, Statements, WANTED},
        },
        refused,
    },
    rows::LockRow,
};

/// A renewal waits for a locked row only if the lease is at least this long. Such a lease is longer
/// than the server's lock wait (on some servers, twice the configured time) and a second send
/// together.
const WAIT_FROM_TTL: Duration = Duration::from_secs(8);

/// The operations as one request.
pub(super) enum Request<'a> {
    /// One statement, which is a transaction of its own: a lone operation, or any number of
    /// acquires.
    Single(Statement<'a>),
    /// A transaction of several statements.
    Transaction {
        statements: Vec<String>,
        /// The number of statements before the first one that changes rows.
        before: usize,
        /// Whether the transaction has one statement for the rows of all leases, and changes all
        /// these rows or none.
        all_or_none: bool,
    },
}

impl<'a> Request<'a> {
    /// The request for these operations, which are all of one kind. If `together` is true, the
    /// operations share a statement where their kind allows that.
    pub(super) fn of(
        ops: &[&'a Operation],
        together: bool,
        statements: &Statements,
        hint_id: i64,
        flavour: Flavour,
    ) -> Self {
        if let [op] = ops {
            return Self::Single(statements.of_one(op, hint_id, flavour));
        }
        if together {
            if let Some(requests) = acquires(ops) {
                return Self::Single(statements.acquire(&requests, hint_id, flavour));
            }
            if let (Some(leases), Some(first)) = (alike_leases(ops), ops.first()) {
                let (change, waits) = match first {
                    Operation::Renew(_, renewal) => (
                        statements.renew(&leases, renewal),
                        renewal.ttl.duration() >= WAIT_FROM_TTL,
                    ),
                    _ => (statements.release(&leases, hint_id), true),
                };
                return Self::Transaction {
                    statements: statements.all_or_none(&change, &leases, waits),
                    before: if waits { 1 } else { 2 },
                    all_or_none: true,
                };
            }
        }
        let each = ops.iter().map(|op| statements.of_one(op, hint_id, flavour));
        let texts = each.map(|statement| statement.to_text());
        let all = std::iter::once("START TRANSACTION".to_owned())
            .chain(texts)
            .chain(["COMMIT".to_owned()]);
        Self::Transaction {
            statements: all.collect(),
            before: 1,
            all_or_none: false,
        }
    }

    /// Whether one statement changes the rows of all operations, so that an error does not tell
    /// which row caused it.
    pub(super) fn shares_statement(&self, ops: &[&Operation]) -> bool {
        let is_shared = !matches!(
            self,
            Self::Transaction {
                all_or_none: false,
                ..
            }
        );
        is_shared && ops.len() > 1
    }

    /// The outcome of each operation, from the results of the statements.
    pub(super) fn outcomes(
        &self,
        ops: &[&Operation],
        done: &[MySqlQueryResult],
    ) -> Result<Vec<Outcome>> {
        let (before, sent) = match self {
            Self::Single(_) => (0, 1),
            Self::Transaction {
                statements, before, ..
            } => (*before, statements.len()),
        };
        let changes = done.get(before..).filter(|_| done.len() == sent);
        let [change, ..] = changes.unwrap_or_default() else {
            return Err(rows::corrupt(
                "the number of answers is not the number of statements that were sent",
            ));
        };
        if !self.shares_statement(ops) {
            let changes = changes.unwrap_or_default();
            return Ok(ops
                .iter()
                .zip(changes)
                .map(|(op, done)| outcome(op, done))
                .collect());
        }
        let outcome = |op: &&Operation| match op {
            Operation::Release(_) if change.last_insert_id() > 0 => Some(PERHAPS_WANTED),
            Operation::Renew(lease, _) => lease.token.map(FencingToken::get),
            op => outcome(op, change),
        };
        Ok(ops.iter().map(outcome).collect())
    }
}

/// The report of an operation's statement; `None` if the statement changed nothing, or if the rows
/// must be read.
fn outcome(op: &Operation, done: &MySqlQueryResult) -> Outcome {
    let report = done.last_insert_id();
    let took_effect = match op {
        Operation::Acquire(_) => report != READ_THE_ROWS,
        Operation::Create(..) => report > 0,
        _ => done.rows_affected() > 0,
    };
    took_effect.then_some(report)
}

/// The requests, if all operations are acquires.
fn acquires<'a>(ops: &[&'a Operation]) -> Option<Vec<&'a AcquireRequest>> {
    let acquires = ops.iter().filter(|op| op.kind() == OperationKind::Acquire);
    let requests: Vec<_> = acquires.filter_map(|op| op.request()).collect();
    (requests.len() == ops.len()).then_some(requests)
}

/// The leases, if the operations can share a statement: all are releases, or all are renewals with
/// the same TTL that change neither ticket nor token. Each lease must have a token, and none may
/// use a ticket.
fn alike_leases<'a>(ops: &[&'a Operation]) -> Option<Vec<&'a Lease>> {
    let plain_ttl = |op: &Operation| match op {
        Operation::Renew(_, renewal)
            if renewal.ticket == TicketStep::Keep && renewal.token_floor.is_none() =>
        {
            Some(Some(renewal.ttl))
        }
        Operation::Release(_) => Some(None),
        _ => None,
    };
    let first = plain_ttl(ops.first()?)?;
    let leases = ops.iter().map(|op| {
        let lease = op.lease()?;
        let is_alike = plain_ttl(op) == Some(first);
        (is_alike && lease.token.is_some() && lease.nonce.is_none()).then_some(lease)
    });
    leases.collect()
}

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

/// The rows of refused operations, and the store's history.
pub(super) struct RefusedRows {
    pub(super) rows: Result<HashMap<LockName, Result<LockRow>>>,
    pub(super) epoch: Epoch,
    pub(super) history_changed: bool,
}

impl RefusedRows {
    /// The row of a refused operation. `None` when there is no row, or when the refusal has only
    /// one possible reason and the row was not read.
    pub(super) fn row(&self, op: &Operation) -> Result<Option<&LockRow>> {
        let Some(name) = lock_of_refusal(op) else {
            return Ok(None);
        };
        let rows = self.rows.as_ref().map_err(Clone::clone)?;
        rows.get(name)
            .map(Result::as_ref)
            .transpose()
            .map_err(Clone::clone)
    }
}
