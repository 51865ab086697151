//! Batches of the frequent kinds, with one statement for all rows and one that reads them: a server carries these out in a
//! fraction of the time that it takes for as many statements.

use std::collections::HashMap;

use distlock_core::{
    AcquireRequest, FencingToken, Lease, LockName, OwnerId, Result, TicketStep, Ttl, batch::Failure,
};
use sqlx::mysql::MySqlRow;

use super::{Batch, BrokenBatch, Outcome};
use crate::{
    dialect::mysql::{
        link::Flavour,
        rows,
        statements::{SET_BATCH_NOW, Statements},
    },
    error::Access,
    op::Op,
};

/// What can be said in one statement.
pub(super) enum Bulk<'a> {
    Acquire(Vec<&'a AcquireRequest>),
    Release(Vec<&'a Lease>),
    Renew(Vec<&'a Lease>, Ttl),
}

impl<'a> Bulk<'a> {
    /// The same kind throughout, and nothing special in it; `None` for others, and for one alone.
    pub(super) fn of(ops: &[&'a Op]) -> Option<Self> {
        if ops.len() < 2 {
            return None;
        }
        let known = |lease: &'a Lease| lease.token.is_some().then_some(lease);
        match ops.first()? {
            Op::Acquire(_) => ops
                .iter()
                .map(|op| match op {
                    Op::Acquire(request) => Some(request),
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(Self::Acquire),
            Op::Release(_) => ops
                .iter()
                .map(|op| match op {
                    Op::Release(lease) => known(lease),
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(Self::Release),
            Op::Renew(_, first) => ops
                .iter()
                .map(|op| match op {
                    Op::Renew(lease, renewal)
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

    fn name(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Release(_) => "release",
            Self::Renew(..) => "renew",
        }
    }

    /// Its statements.
    fn script(&self, statements: &Statements, mark: i64, flavour: Flavour) -> String {
        let change = match self {
            Self::Acquire(requests) => statements.acquire_all(requests, mark, flavour),
            Self::Release(leases) => statements.release_all(leases, mark),
            Self::Renew(leases, ttl) => statements.renew_all(leases, *ttl),
        };
        format!("{SET_BATCH_NOW}; {change}")
    }

    /// What came of each, by the rows that came back. A row that cannot be read is nobody's: whoever asked for it is told
    /// so when it is looked at again.
    fn outcomes(&self, rows: &[MySqlRow]) -> Vec<Outcome> {
        let rows: HashMap<Vec<u8>, _> = rows
            .iter()
            .filter_map(|row| Some((rows::column(row, 0).ok()?, row)))
            .collect();
        let row = |name: &LockName| rows.get(name.as_str().as_bytes()).copied();
        let known = |lease: &Lease, token: u64| Some(token) == lease.token.map(FencingToken::get);
        match self {
            Self::Acquire(requests) => requests
                .iter()
                .map(|request| held_by(row(&request.name)?, request.owner))
                .collect(),
            Self::Renew(leases, _) => leases
                .iter()
                .map(|lease| {
                    let token = held_by(row(&lease.name)?, lease.owner);
                    token.filter(|token| known(lease, *token))
                })
                .collect(),
            Self::Release(leases) => leases
                .iter()
                .map(|lease| {
                    let row = row(&lease.name)
                        .filter(|row| number(row, 1).is_some_and(|token| known(lease, token)));
                    number(row?, 2)
                })
                .collect(),
        }
    }
}

/// The token of a row of name, holder and token, where this is the holder.
fn held_by(row: &MySqlRow, owner: OwnerId) -> Option<u64> {
    let holder: Option<Vec<u8>> = rows::column(row, 1).ok()?;
    (holder? == owner.as_uuid().as_bytes())
        .then(|| number(row, 2))
        .flatten()
}

fn number(row: &MySqlRow, index: usize) -> Option<u64> {
    let number: i64 = rows::column(row, index).ok()?;
    u64::try_from(number).ok()
}

impl Batch<'_> {
    /// One transaction, in one round trip, with one statement that changes all rows.
    pub(super) async fn attempt_together(
        &mut self,
        bulk: &Bulk<'_>,
    ) -> Result<Result<Vec<Outcome>, BrokenBatch>, Failure> {
        let shared = self.shared;
        let open = self.link.ready(shared).await.map_err(Failure::Whole)?;
        let script = bulk.script(&shared.statements, shared.group.mark(), open.flavour);
        let failed = match open.send(shared, bulk.name(), script, Access::Write).await {
            Ok(answers) => return Ok(Ok(bulk.outcomes(&answers.rows))),
            Err(broken) => {
                if !broken.failed.meaning.reconnect && !open.roll_back(shared).await {
                    self.link.disconnect();
                }
                broken.failed
            }
        };
        Ok(Err(BrokenBatch {
            at: None,
            failed: self.link.failed(failed),
        }))
    }
}
