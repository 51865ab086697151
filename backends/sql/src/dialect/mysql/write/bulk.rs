//! Batches of the frequent kinds, with one statement for all rows: a server carries it out in a fraction of the time that it
//! takes for as many statements. It tells whether all went as it nearly always does; the rows are read only when not.

use std::{collections::HashMap, time::Duration};

use distlock_core::{
    AcquireRequest, FencingToken, Lease, LockName, Result, TicketStep, Ttl, batch::Failure,
};

use super::{
    Batch, BrokenBatch, Outcome,
    release::{PERHAPS_WANTED, UNWANTED},
};
use crate::{
    dialect::{
        LockRow,
        mysql::{
            dialect::look,
            errors::MySqlTrouble,
            prepared::Prepared,
            rows,
            server::Flavour,
            statements::Statements,
            wire::{self, Answers},
        },
    },
    error::{Access, Failed},
    op::Op,
};

/// A lease of at least this long outlives what a server lets a statement wait for a locked row, which for some is twice as
/// long as they were told, and one more round. Shorter ones are not waited for.
const WAITS: Duration = Duration::from_secs(8);

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

    /// Whether it waits for a row that somebody else has locked.
    fn waits(&self) -> bool {
        match self {
            Self::Renew(_, ttl) => ttl.duration() >= WAITS,
            Self::Acquire(_) | Self::Release(_) => true,
        }
    }

    /// Its statements.
    fn script(&self, statements: &Statements, mark: i64, flavour: Flavour) -> String {
        match self {
            Self::Acquire(requests) => statements.acquire_all(requests, mark, flavour),
            Self::Release(leases) => statements.release_all(leases, mark),
            Self::Renew(leases, ttl) => statements.renew_all(leases, *ttl, self.waits()),
        }
    }

    /// The statement that the server is to remember, if there is one.
    fn prepared(&self, prepared: &Prepared, mark: i64) -> Option<wire::Prepared<'a>> {
        match self {
            Self::Acquire(requests) => prepared.acquire_all(requests, mark),
            Self::Release(_) | Self::Renew(..) => None,
        }
    }

    /// As [`Self::outcomes`], of the one statement.
    fn outcomes_prepared(&self, answers: &Answers) -> Result<Option<Vec<Outcome>>> {
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

    /// What came of each, where that was the same; `None` when the rows must be looked at.
    fn outcomes(&self, answers: &Answers) -> Result<Option<Vec<Outcome>>> {
        // How many statements it is made of, and which of them changes the rows.
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

impl Batch<'_> {
    /// One round trip, with one statement that changes all rows.
    pub(super) async fn attempt_together(
        &mut self,
        bulk: &Bulk<'_>,
    ) -> Result<Result<Vec<Outcome>, BrokenBatch>, Failure> {
        let shared = self.shared;
        let open = self.link.ready(shared).await.map_err(Failure::Whole)?;
        let (statements, mark) = (&shared.statements, shared.group.mark());
        let mut answered = None;
        if open.prepares
            && let Some(prepared) = bulk.prepared(statements.prepared(open.flavour), mark)
        {
            match open.send_prepared(shared, bulk.name(), prepared).await {
                Err(broken) if broken.failed.mysql_trouble() == Some(MySqlTrouble::NotPrepared) => {
                    open.sends_text_only(broken);
                }
                done => answered = Some(done),
            }
        }
        let prepared = answered.is_some();
        let answered = match answered {
            Some(answered) => answered,
            None => {
                let script = bulk.script(statements, mark, open.flavour);
                open.send(shared, bulk.name(), script, Access::Write).await
            }
        };
        let outcomes = |answers: &Answers| match prepared {
            true => bulk.outcomes_prepared(answers),
            false => bulk.outcomes(answers),
        };
        let failed = match answered {
            Ok(answers) => match (outcomes(&answers), bulk) {
                (Ok(Some(outcomes)), _) => return Ok(Ok(outcomes)),
                (Ok(None), Bulk::Acquire(requests)) => {
                    let names: Vec<_> = requests.iter().map(|request| &request.name).collect();
                    match look(open, shared, &names, Access::Write).await {
                        Ok(rows) => return Ok(Ok(self.held_by(requests, rows))),
                        Err(failed) => failed.after(true),
                    }
                }
                (Ok(None), _) => {
                    Failed::out_of_step(rows::corrupt("the server gave no answer")).after(true)
                }
                (Err(corrupt), _) => Failed::out_of_step(corrupt).after(true),
            },
            Err(mut broken) => {
                // Of these alone, what is carried out counts at once.
                let before = usize::from(!prepared);
                let granted = matches!(bulk, Bulk::Acquire(_)) && broken.done > before;
                broken.failed = broken.failed.after(granted);
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

    /// What came of each, by the rows as they are now; they also tell the refused why. A row that cannot be read is nobody's:
    /// whoever asked for it is told so.
    fn held_by(
        &mut self,
        requests: &[&AcquireRequest],
        rows: Vec<(LockName, Result<LockRow>)>,
    ) -> Vec<Outcome> {
        let rows: HashMap<_, _> = rows.into_iter().collect();
        let outcome = |request: &&AcquireRequest| {
            let row = rows.get(&request.name)?.as_ref().ok()?;
            (row.owner == Some(request.owner)).then_some(row.last_token.get())
        };
        let outcomes = requests.iter().map(outcome).collect();
        self.looked = Some(rows);
        outcomes
    }
}
