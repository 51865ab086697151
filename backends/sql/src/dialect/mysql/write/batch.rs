//! Sends a batch in one round trip and one transaction.
//!
//! A batch is sent again only if no operation was carried out, or if a second send is harmless.
//! Operations on rows that other transactions have locked are left out, so that a locked row delays
//! one operation and not the whole batch.
//!
//! A handle remembers the rows that other transactions had locked recently. A batch leaves
//! operations on these rows out. A lone operation on such a row sends a probe first. An entry is
//! only a guess: a probe that finds the row unlocked removes the entry.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};

use distlock_backend_kit::{
    batch::{Failure, Reply},
    operation::{Answer, Operation},
};
use distlock_core::{Epoch, Error, LockName, Moment, Result, sync::Mutex};

use super::request::{Outcome, RefusedRows, Request, answer};
use crate::{
    dialect::{
        Reaped, lock_of_refusal,
        mysql::{
            context::StoreContext,
            errors::MySqlTrouble,
            pool::ConnectionSlot,
            rows::{self, read_rows},
        },
    },
    resend::{answer_after_resend, may_be_resent},
    statement_error::{Access, StatementError},
};

/// The largest number of sends of a transaction that the server rolls back each time.
const ATTEMPTS: u32 = 12;

/// The pause between the two probes of a row that was found locked only once.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// One batch in flight.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Operation],
    pub(crate) context: &'a StoreContext,
    pub(crate) slot: &'a mut ConnectionSlot,
    pub(crate) locked_rows: &'a LockedRows,
    pub(crate) earlier_send: Option<EarlierSend>,
}

/// The first send of operations that are sent twice.
pub(crate) struct EarlierSend {
    /// The error of the first send.
    why: Error,
    /// The positions in the batch of the operations that were sent the first time. Operations on
    /// locked rows were left out.
    sent: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub(crate) async fn send(mut self) -> Result<Vec<Reply<Answer>>, Failure> {
        let now = self.context.common.clock.now();
        self.locked_rows.forget_before(now);
        if let [op] = self.ops {
            self.probe(op).await.map_err(StatementError::into_failure)?;
        }
        let done = self.carry_out(now).await;
        // After two sends, the error of the first send is reported, because the first send may have
        // been carried out.
        let done = done.map_err(|failure| match &self.earlier_send {
            Some(earlier_send) => Failure::Whole(earlier_send.why.clone()),
            None => failure,
        })?;
        let refused = done.iter().filter(|it| it.result.is_none());
        let refused: Vec<_> = refused.filter_map(|it| lock_of_refusal(it.op)).collect();
        let refused_rows = self.refused_rows(&refused).await;
        let mut replies: Vec<_> = self.ops.iter().map(|_| Reply::Alone).collect();
        for it in done {
            replies[it.at] = Reply::Done(answer(it.op, it.result, &refused_rows));
        }
        if let Some(earlier_send) = &self.earlier_send {
            for at in &earlier_send.sent {
                let reply = mem::replace(&mut replies[*at], Reply::Alone);
                replies[*at] = answer_after_resend(reply, &earlier_send.why);
            }
        }
        Ok(replies)
    }

    /// Carries the operations out, except those whose rows other transactions have locked. Sends
    /// the transaction again if the server rolls it back.
    async fn carry_out(&mut self, started: Moment) -> Result<Vec<CarriedOut<'a>>, Failure> {
        let (ops, context) = (self.ops, self.context);
        let lone = ops.len() == 1;
        let mut sent: Vec<usize> = (0..ops.len())
            .filter(|at| lone || !self.locked_rows.contains(&ops[*at]))
            .collect();
        // A row was found locked recently, so that other rows may be locked too. The lease of a
        // renewal may be too short to wait for each locked row in turn, so that all locked rows are
        // found with one request.
        if !lone && !self.locked_rows.is_empty() && matches!(ops, [Operation::Renew(..), ..]) {
            self.leave_out_locked(&mut sent).await;
        }
        let (mut attempt, mut together) = (0, true);
        while !sent.is_empty() {
            let batch: Vec<_> = sent.iter().map(|at| &ops[*at]).collect();
            let broken = match self.attempt(&batch, together).await? {
                Ok(results) => {
                    let done = sent.into_iter().zip(results);
                    let done = done.map(|(at, result)| CarriedOut {
                        at,
                        op: &ops[at],
                        result,
                    });
                    return Ok(done.collect());
                }
                Err(broken) => broken,
            };
            attempt += 1;
            let late =
                context.common.clock.now().since(started) > context.config.statement_timeout / 2;
            match (broken.failed.mysql_trouble(), broken.at) {
                // One statement for all rows does not report which row is locked. All locked rows
                // are left out now: the next send would wait for each locked row that remains.
                (Some(MySqlTrouble::Locked), _) if broken.shared_statement => {
                    context.common.counters.count_retry();
                    together = self.leave_out_locked(&mut sent).await;
                }
                // One statement for all rows does not report which row does not match. The next
                // send has a statement for each row.
                (Some(MySqlTrouble::NotAll), _) if broken.shared_statement => together = false,
                // The statement at the position `at` has waited for its locked row.
                (Some(MySqlTrouble::Locked), Some(at)) => {
                    self.locked_rows
                        .note(batch[at], context.common.clock.now(), true);
                    if lone {
                        return Err(broken.failed.into_failure());
                    }
                    sent.remove(at);
                    self.leave_out_locked(&mut sent).await;
                    if !sent.is_empty() {
                        context.common.counters.count_retry();
                    }
                }
                (Some(MySqlTrouble::Deadlock), _) if attempt < ATTEMPTS && !late => {
                    context.common.counters.count_retry();
                    let pause = Duration::from_micros(fastrand::u64(100..2000) << attempt.min(5));
                    context.common.clock.sleep(pause).await;
                }
                // For example after a restart of the server.
                _ if self.earlier_send.is_none()
                    && !late
                    && broken.failed.lost_connection()
                    && batch.iter().all(|op| may_be_resent(op)) =>
                {
                    context.common.counters.count_retry();
                    self.earlier_send = Some(EarlierSend {
                        why: broken.failed.into_error(),
                        sent: sent.clone(),
                    });
                }
                _ => return Err(broken.failed.into_failure()),
            }
        }
        Ok(Vec::new())
    }

    /// Removes the operations whose rows other transactions have locked from `sent`, without
    /// waiting for a row. Returns whether there was at least one such row.
    async fn leave_out_locked(&mut self, sent: &mut Vec<usize>) -> bool {
        let (ops, context, locked_rows) = (self.ops, self.context, self.locked_rows);
        let table = match ops.first().and_then(Operation::lock) {
            Some(_) => Reaped::Locks,
            None => Reaped::Records,
        };
        let keys: Vec<_> = sent.iter().map(|at| ops[*at].key().as_bytes()).collect();
        if keys.is_empty() {
            return false;
        }
        let asked = context.statements.there_and_unlocked(table, &keys);
        // A failed connection is not reported here: sending the operations reports the same error.
        let Ok(open) = self.slot.ready(context).await else {
            return false;
        };
        let rows = match open.send(context, "probe", asked, Access::Read).await {
            Ok(answers) => answers.rows,
            Err(broken) => {
                self.slot.failed(broken.failed);
                return false;
            }
        };
        let (mut locked, mut unlocked) = (HashSet::new(), HashSet::new());
        for row in &rows {
            let found = rows::column::<i64>(row, 0).and_then(|it| Ok((it, rows::column(row, 1)?)));
            let _: bool = match found {
                Ok((0, key)) => locked.insert(key),
                Ok((_, key)) => unlocked.insert(key),
                Err(_) => false,
            };
        }
        locked.retain(|key: &Vec<u8>| !unlocked.contains(key));
        let now = context.common.clock.now();
        sent.retain(|at| {
            let op = &ops[*at];
            let is_locked = locked.contains(op.key().as_bytes());
            if is_locked && !locked_rows.is_confirmed(op) {
                locked_rows.note(op, now, false);
            }
            !is_locked
        });
        !locked.is_empty()
    }

    /// Sends the operations once, as one transaction. If `together` is true, operations can share a
    /// statement.
    async fn attempt(
        &mut self,
        ops: &[&Operation],
        together: bool,
    ) -> Result<Result<Vec<Outcome>, FailedBatch>, Failure> {
        let context = self.context;
        let (statements, hint_id) = (&context.statements, context.common.wait_group.hint_id());
        let kind = ops.first().map_or("write", |op| op.kind().name());
        let open = self.slot.ready(context).await.map_err(Failure::Whole)?;
        let request = Request::of(ops, together, statements, hint_id, open.flavour);
        let answered = match &request {
            Request::Single(statement) => open.send_statement(context, kind, statement).await,
            Request::Transaction { statements, .. } => {
                let script = statements.join("; ");
                open.send(context, kind, script, Access::Write).await
            }
        };
        let (failed, at) = match answered {
            Ok(answers) => match request.outcomes(ops, &answers.done) {
                Ok(outcomes) => return Ok(Ok(outcomes)),
                Err(corrupt) => (
                    StatementError::out_of_step(corrupt).after_partial_work(true),
                    None,
                ),
            },
            Err(broken) => match &request {
                Request::Single(_) => (broken.failed, Some(0)),
                // After a failed statement, the server carries out no later statement of the same
                // request. So an error from the server means that nothing was committed.
                Request::Transaction { before, .. } => {
                    if !broken.failed.meaning.reconnect && !open.roll_back(context).await {
                        self.slot.disconnect();
                    }
                    let at = broken.done.checked_sub(*before);
                    (broken.failed, at.filter(|at| *at < ops.len()))
                }
            },
        };
        let shared_statement = request.shares_statement(ops);
        Ok(Err(FailedBatch {
            at: at.filter(|_| !shared_statement),
            shared_statement,
            failed: self.slot.failed(failed),
        }))
    }

    /// Fails at once if the row of `op` was found locked recently and is still locked. A wait for
    /// this row would keep the connection from all other operations.
    async fn probe(&mut self, op: &Operation) -> Result<(), StatementError> {
        if !self.locked_rows.contains(op) {
            return Ok(());
        }
        let context = self.context;
        let Ok(open) = self.slot.ready(context).await else {
            return Ok(());
        };
        let mut confirmed = self.locked_rows.is_confirmed(op);
        loop {
            let statement = context.statements.probe(op);
            let probed = open.send(context, "probe", statement, Access::Read).await;
            let Err(broken) = probed else {
                self.locked_rows.forget(op);
                return Ok(());
            };
            if broken.failed.mysql_trouble() == Some(MySqlTrouble::Locked) {
                if !confirmed {
                    confirmed = true;
                    context.common.clock.sleep(PROBE_PAUSE).await;
                    continue;
                }
                self.locked_rows.note(op, context.common.clock.now(), true);
            }
            return Err(self.slot.failed(broken.failed));
        }
    }

    /// Reads the rows of these names. If the connection has failed since the statement, a new
    /// connection reads the rows: only the row shows the outcome of a refused acquire.
    async fn refused_rows(&mut self, names: &[&LockName]) -> RefusedRows {
        let context = self.context;
        let mut may_reconnect = true;
        loop {
            let open = match self.slot.ready(context).await {
                Ok(open) => open,
                Err(error) => {
                    return RefusedRows {
                        rows: Err(error),
                        epoch: Epoch::new(""),
                        history_changed: false,
                    };
                }
            };
            let epoch = open.epoch.clone();
            let rows = match names {
                [] => Ok(Vec::new()),
                names => read_rows(open, context, names, Access::Read).await,
            };
            let rows = rows.map_err(|failed| self.slot.failed(failed));
            match rows {
                Err(failed)
                    if may_reconnect && failed.meaning.reconnect && !failed.is_timeout() =>
                {
                    may_reconnect = false;
                }
                rows => {
                    return RefusedRows {
                        rows: rows
                            .map(|rows| rows.into_iter().collect())
                            .map_err(StatementError::into_error),
                        epoch,
                        history_changed: context.epochs.changed(),
                    };
                }
            }
        }
    }
}

/// An operation whose statement was carried out.
struct CarriedOut<'a> {
    /// The position of the operation in the batch.
    at: usize,
    op: &'a Operation,
    result: Outcome,
}

/// The failure of a batch.
struct FailedBatch {
    /// The position of the operation whose statement failed, if known.
    at: Option<usize>,
    /// Whether one statement changed the rows of all operations.
    shared_statement: bool,
    failed: StatementError,
}

/// The time for which a row that was found locked counts as locked.
const LOCKED_FOR: Duration = Duration::from_secs(60);

/// The rows that other transactions had locked, by lock name or record key.
#[derive(Debug, Default)]
pub(crate) struct LockedRows(Mutex<HashMap<String, SeenLocked>>);

/// The last time when a row was found locked.
#[derive(Clone, Copy, Debug)]
struct SeenLocked {
    at: Moment,
    /// Whether the row was locked for longer than a statement waits, or was found locked more than
    /// once.
    confirmed: bool,
}

impl LockedRows {
    pub(super) fn forget_before(&self, now: Moment) {
        self.0
            .lock()
            .retain(|_, seen| now.since(seen.at) < LOCKED_FOR);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub(super) fn contains(&self, op: &Operation) -> bool {
        self.0.lock().contains_key(op.key())
    }

    pub(super) fn is_confirmed(&self, op: &Operation) -> bool {
        self.0
            .lock()
            .get(op.key())
            .is_some_and(|seen| seen.confirmed)
    }

    pub(super) fn note(&self, op: &Operation, at: Moment, confirmed: bool) {
        self.0
            .lock()
            .insert(op.key().to_owned(), SeenLocked { at, confirmed });
    }

    pub(super) fn forget(&self, op: &Operation) {
        self.0.lock().remove(op.key());
    }
}
