//! Batches of the frequent kinds, with one statement for all rows and one that reads them: a server carries these out in a
//! fraction of the time that it takes for as many statements.

use std::collections::HashMap;

use distlock_core::{AcquireRequest, Lease, Result, TicketStep, Ttl, batch::Failure};

use super::{Batch, BrokenBatch, Outcome};
use crate::{
    dialect::{
        LockRow,
        mysql::{rows, statements::SET_BATCH_NOW},
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

    /// What came of each. The rows are as they were left by an acquisition, but as they were found by the others; nobody
    /// else could change them in between.
    fn outcomes(&self, rows: &HashMap<String, LockRow>) -> Vec<Outcome> {
        match self {
            Self::Acquire(requests) => requests
                .iter()
                .map(|request| {
                    let row = rows.get(request.name.as_str())?;
                    (row.owner == Some(request.owner)).then_some(row.last_token.get())
                })
                .collect(),
            Self::Release(leases) => leases
                .iter()
                .map(|lease| {
                    let row = ours(rows, lease)?;
                    let others = row.wanted.is_some_and(|(_, ours)| !ours);
                    Some(if others { 2 } else { 1 })
                })
                .collect(),
            Self::Renew(leases, _) => leases
                .iter()
                .map(|lease| {
                    let row = ours(rows, lease)?;
                    row.held.is_some().then_some(row.last_token.get())
                })
                .collect(),
        }
    }
}

fn ours<'a>(rows: &'a HashMap<String, LockRow>, lease: &Lease) -> Option<&'a LockRow> {
    let row = rows.get(lease.name.as_str())?;
    (row.owner == Some(lease.owner) && Some(row.last_token) == lease.token).then_some(row)
}

impl Batch<'_> {
    /// One transaction, in one round trip, with one statement for all rows.
    pub(super) async fn attempt_together(
        &mut self,
        bulk: &Bulk<'_>,
    ) -> Result<Result<Vec<Outcome>, BrokenBatch>, Failure> {
        let shared = self.shared;
        let mark = shared.group.mark();
        let open = self.link.ready(shared).await.map_err(Failure::Whole)?;
        let statements = &shared.statements;
        let change = match bulk {
            Bulk::Acquire(requests) => {
                let names = requests.iter().map(|request| &request.name);
                let look = statements.look_in_batch(names, false);
                let take = statements.acquire_all(requests, mark, open.flavour);
                format!("{take}; {look}")
            }
            Bulk::Release(leases) => {
                let look = statements.look_in_batch(leases.iter().map(|lease| &lease.name), true);
                format!("{look}; {}", statements.release_all(leases))
            }
            Bulk::Renew(leases, ttl) => {
                let look = statements.look_in_batch(leases.iter().map(|lease| &lease.name), true);
                format!("{look}; {}", statements.renew_all(leases, *ttl))
            }
        };
        let script = format!("{SET_BATCH_NOW}; START TRANSACTION; {change}; COMMIT");
        let failed = match open.send(shared, bulk.name(), script, Access::Write).await {
            Ok(answers) => {
                // A row that cannot be read is nobody's: whoever asked for it is told so when it is looked at again.
                let read = |row| {
                    let (name, row) = rows::lock(row, shared).ok()?;
                    Some((name.as_str().to_owned(), row.ok()?))
                };
                let rows = answers.rows.iter().filter_map(read).collect();
                return Ok(Ok(bulk.outcomes(&rows)));
            }
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
