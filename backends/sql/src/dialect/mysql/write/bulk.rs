//! One statement for all rows of a batch, for the frequent kinds.
//!
//! A server carries it out in a fraction of the time that it takes for one statement per row. Its
//! result tells whether all rows went the usual way; only otherwise are the rows read.

use std::time::Duration;

use distlock_core::{AcquireRequest, FencingToken, Lease, Result, TicketStep, Ttl};

use super::answers::{Outcome, PERHAPS_WANTED, UNWANTED};
use crate::{
    dialect::mysql::{
        flavour::Flavour,
        raw_connection::StatementResults,
        rows,
        statements::{PreparedQuery, PreparedStatements, Statements},
    },
    operation::Operation,
};

/// A renewal waits for a locked row only if the lease is at least this long. Such a lease outlives
/// the server's lock wait, which on some servers is twice as long as configured, and one more
/// round.
const WAIT_FROM_TTL: Duration = Duration::from_secs(8);

/// The operations of one statement.
pub(super) enum BulkStatement<'a> {
    Acquire(Vec<&'a AcquireRequest>),
    Release(Vec<&'a Lease>),
    Renew(Vec<&'a Lease>, Ttl),
}

impl<'a> BulkStatement<'a> {
    /// The statement of operations of one kind without special features; `None` for other batches
    /// and for a lone operation.
    pub(super) fn of(ops: &[&'a Operation]) -> Option<Self> {
        if ops.len() < 2 {
            return None;
        }
        let known = |lease: &'a Lease| lease.token.is_some().then_some(lease);
        match ops.first()? {
            Operation::Acquire(_) => ops
                .iter()
                .map(|op| match op {
                    Operation::Acquire(request) => Some(request),
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(Self::Acquire),
            Operation::Release(_) => ops
                .iter()
                .map(|op| match op {
                    Operation::Release(lease) => known(lease),
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(Self::Release),
            Operation::Renew(_, first) => ops
                .iter()
                .map(|op| match op {
                    Operation::Renew(lease, renewal)
                        if renewal.ticket == TicketStep::Keep && renewal.ttl == first.ttl =>
                    {
                        known(lease)
                    }
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(|leases| Self::Renew(leases, first.ttl)),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Release(_) => "release",
            Self::Renew(..) => "renew",
        }
    }

    /// Whether it waits for a row that another transaction has locked.
    fn waits(&self) -> bool {
        match self {
            Self::Renew(_, ttl) => ttl.duration() >= WAIT_FROM_TTL,
            Self::Acquire(_) | Self::Release(_) => true,
        }
    }

    /// Its text.
    pub(super) fn script(&self, statements: &Statements, hint_id: i64, flavour: Flavour) -> String {
        match self {
            Self::Acquire(requests) => statements.acquire_all(requests, hint_id, flavour),
            Self::Release(leases) => statements.release_all(leases, hint_id),
            Self::Renew(leases, ttl) => statements.renew_all(leases, *ttl, self.waits()),
        }
    }

    /// The prepared statement, if there is one.
    pub(super) fn prepared(
        &self,
        prepared: &PreparedStatements,
        hint_id: i64,
    ) -> Option<PreparedQuery<'a>> {
        match self {
            Self::Acquire(requests) => prepared.acquire_all(requests, hint_id),
            Self::Release(_) | Self::Renew(..) => None,
        }
    }

    /// As [`Self::outcomes`], of the prepared statement.
    pub(super) fn outcomes_prepared(
        &self,
        answers: &StatementResults,
    ) -> Result<Option<Vec<Outcome>>> {
        let (Self::Acquire(requests), [done]) = (self, answers.done.as_slice()) else {
            return Err(rows::corrupt(
                "the server answered to another statement than was sent",
            ));
        };
        Ok(match done.last_insert_id() {
            1 => None,
            now => Some(vec![Some(now); requests.len()]),
        })
    }

    /// The outcome of each operation, if the result covers all; `None` when the rows must be read.
    pub(super) fn outcomes(&self, answers: &StatementResults) -> Result<Option<Vec<Outcome>>> {
        // The number of statements, and the position of the one that changes the rows.
        let (all, change) = match self {
            Self::Acquire(_) => (3, 1),
            Self::Release(_) | Self::Renew(..) if self.waits() => (5, 2),
            Self::Release(_) | Self::Renew(..) => (6, 3),
        };
        let change = answers.done.get(change);
        let (Some(change), true) = (change, answers.done.len() == all) else {
            return Err(rows::corrupt(
                "the server answered to another number of statements than were sent",
            ));
        };
        let said_so = change.last_insert_id() > 0;
        Ok(match self {
            Self::Acquire(_) if said_so => None,
            Self::Acquire(requests) => {
                let now = answers.rows.first();
                let now = now.ok_or_else(|| rows::corrupt("the server does not tell the time"))?;
                let token: i64 = rows::column(now, 0)?;
                let token = u64::try_from(token);
                let token = token.map_err(|_| rows::corrupt("the server's time is negative"))?;
                Some(vec![Some(token); requests.len()])
            }
            Self::Release(leases) => {
                let says = if said_so { PERHAPS_WANTED } else { UNWANTED };
                Some(vec![Some(says); leases.len()])
            }
            Self::Renew(leases, _) => {
                let tokens = leases.iter().map(|lease| lease.token);
                Some(tokens.map(|token| token.map(FencingToken::get)).collect())
            }
        })
    }
}
