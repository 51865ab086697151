//! Sends a batch: one statement for each row, all in one round trip and one transaction.
//!
//! A batch is sent again only when nothing of it was carried out, or when a second send is
//! harmless. Rows that other transactions have locked are left out, so that one locked row delays
//! one operation and not the whole batch.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};

use distlock_backend_kit::batch::{Failure, Reply};
use distlock_core::{Epoch, Error, LockName, Moment, Result};
use sqlx::mysql::MySqlQueryResult;

use super::{
    answers::{Outcome, answer},
    bulk::BulkStatement,
    locked_rows::LockedRows,
    refused_rows::RefusedRows,
};
use crate::{
    dialect::{
        LockRow, Reaped,
        mysql::{
            context::StoreContext,
            errors::MySqlTrouble,
            lookup::read_rows,
            pool::ConnectionSlot,
            raw_connection::PartialFailure,
            rows,
            statements::{BATCH_NOW, NOW, SET_BATCH_NOW},
        },
    },
    operation::{Answer, Operation, answer_after_resend},
    statement_error::{Access, StatementError},
};

/// How often a transaction that the server rolled back is sent again, within the time limit.
const ATTEMPTS: u32 = 12;

/// The pause before a row that was found locked once is read again.
const PROBE_PAUSE: Duration = Duration::from_millis(20);

/// One batch in flight.
pub(crate) struct Batch<'a> {
    pub(crate) ops: &'a [Operation],
    pub(crate) context: &'a StoreContext,
    pub(crate) slot: &'a mut ConnectionSlot,
    pub(crate) locked_rows: &'a LockedRows,
    pub(crate) earlier_send: Option<EarlierSend>,
    /// The rows, if they were read after the operations were carried out.
    pub(crate) rows_after: Option<HashMap<LockName, Result<LockRow>>>,
}

/// The first send of operations that were sent twice, with its error.
pub(crate) struct EarlierSend {
    why: Error,
    /// The positions of these operations in the batch: rows that others had locked were left out
    /// the first time.
    sent: Vec<usize>,
}

impl<'a> Batch<'a> {
    pub(crate) async fn send(mut self) -> Result<Vec<Reply<Answer>>, Failure> {
        let now = self.context.clock.now();
        self.locked_rows.forget_before(now);
        if let [op] = self.ops {
            self.probe(op).await.map_err(StatementError::into_failure)?;
        }
        let done = self.carry_out(now).await;
        // The reason of the second failure does not matter: the first may have been carried out.
        let done = done.map_err(|failure| match &self.earlier_send {
            Some(earlier_send) => Failure::Whole(earlier_send.why.clone()),
            None => failure,
        })?;
        let refused = done.iter().filter(|it| it.result.is_none());
        let refused: Vec<_> = refused.filter_map(|it| it.op.lock()).collect();
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

    /// Carries the operations out, as often as the server rolls them back, except those whose rows
    /// are locked by others.
    async fn carry_out(&mut self, started: Moment) -> Result<Vec<CarriedOut<'a>>, Failure> {
        let (ops, context) = (self.ops, self.context);
        let lone = ops.len() == 1;
        let mut sent: Vec<usize> = (0..ops.len())
            .filter(|at| lone || !self.locked_rows.contains(&ops[*at]))
            .collect();
        // One row was found locked lately, so that others may be locked too, and a lease may be too
        // short to wait for each.
        if !lone && !self.locked_rows.is_empty() && matches!(ops, [Operation::Renew(..), ..]) {
            self.leave_out_locked(&mut sent).await;
        }
        let (mut attempt, mut together) = (0, true);
        while !sent.is_empty() {
            let batch: Vec<_> = sent.iter().map(|at| &ops[*at]).collect();
            let bulk = BulkStatement::of(&batch).filter(|_| together);
            let attempted = match &bulk {
                Some(bulk) => self.attempt_in_one_statement(bulk).await?,
                None => self.attempt(&batch).await?,
            };
            let broken = match attempted {
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
            let late = context.clock.now().since(started) > context.config.statement_timeout / 2;
            match (broken.failed.mysql_trouble(), broken.at) {
                // One statement for all rows does not tell which row is locked. All locked rows
                // must be left out at once, because each further one would be waited for.
                (Some(MySqlTrouble::Locked), _) if bulk.is_some() => {
                    context.counters.count_retry();
                    together = self.leave_out_locked(&mut sent).await;
                }
                // One statement for all rows does not tell which row refused either: statements of
                // their own do.
                (Some(MySqlTrouble::NotAll), _) if bulk.is_some() => together = false,
                // The statement that waited is the one whose row is locked.
                (Some(MySqlTrouble::Locked), Some(at)) => {
                    self.locked_rows.note(batch[at], context.clock.now(), true);
                    if lone {
                        return Err(broken.failed.into_failure());
                    }
                    sent.remove(at);
                    self.leave_out_locked(&mut sent).await;
                    if !sent.is_empty() {
                        context.counters.count_retry();
                    }
                }
                (Some(MySqlTrouble::Deadlock), _) if attempt < ATTEMPTS && !late => {
                    context.counters.count_retry();
                    let pause = Duration::from_micros(fastrand::u64(100..2000) << attempt.min(5));
                    context.clock.sleep(pause).await;
                }
                // For example after a restart of the server.
                _ if self.earlier_send.is_none()
                    && !late
                    && broken.failed.lost_connection()
                    && batch.iter().all(|op| op.may_be_resent()) =>
                {
                    context.counters.count_retry();
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

    /// Finds the operations whose rows other transactions have locked, without waiting for any, and
    /// leaves those out. Returns whether there were some.
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
        // A problem of the connection shows when the operations are sent.
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
        let now = context.clock.now();
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

    /// Sends one transaction.
    async fn attempt(
        &mut self,
        ops: &[&Operation],
    ) -> Result<Result<Vec<Outcome>, FailedBatch>, Failure> {
        let context = self.context;
        let hint_id = context.wait_group.hint_id();
        let kind = ops.first().map_or("write", |op| op.kind().name());
        let open = self.slot.ready(context).await.map_err(Failure::Whole)?;
        if let [op] = ops {
            let prepared = context.statements.prepared(open.flavour);
            if let Some(prepared) = prepared.query(op, hint_id).filter(|_| open.prepares) {
                match open.send_prepared(context, kind, prepared).await {
                    Ok(answers) => return Ok(Ok(outcomes(ops, &answers.done))),
                    Err(broken)
                        if broken.failed.mysql_trouble() == Some(MySqlTrouble::NotPrepared) =>
                    {
                        open.stop_preparing(broken);
                    }
                    Err(broken) => return Ok(Err(self.broken_alone(broken))),
                }
            }
            let text = context.statements.write(op, hint_id, open.flavour, NOW);
            return Ok(match open.send(context, kind, text, Access::Write).await {
                Ok(answers) => Ok(outcomes(ops, &answers.done)),
                Err(broken) => Err(self.broken_alone(broken)),
            });
        }
        let statement = |op| {
            context
                .statements
                .write(op, hint_id, open.flavour, BATCH_NOW)
        };
        let mut script = format!("{SET_BATCH_NOW}; START TRANSACTION");
        for op in ops {
            script.push_str("; ");
            script.push_str(&statement(op));
        }
        script.push_str("; COMMIT");
        // The two statements before the first operation's, and the one after the last.
        let (before, all) = (2, ops.len() + 3);
        let broken = match open.send(context, kind, script, Access::Write).await {
            Ok(mut answers) if answers.done.len() == all => {
                answers.done.truncate(all - 1);
                answers.done.drain(..before);
                return Ok(Ok(outcomes(ops, &answers.done)));
            }
            Ok(answers) => PartialFailure {
                failed: StatementError::out_of_step(rows::corrupt(
                    "the server answered to another number of statements than were sent",
                ))
                .after_partial_work(true),
                done: answers.done.len(),
            },
            Err(broken) => broken,
        };
        // Nothing was committed if the server says that a statement before failed: it carries out
        // none after that.
        if !broken.failed.meaning.reconnect && !open.roll_back(context).await {
            self.slot.disconnect();
        }
        let at = broken.done.checked_sub(before);
        Ok(Err(FailedBatch {
            at: at.filter(|at| *at < ops.len()),
            failed: self.slot.failed(broken.failed),
        }))
    }

    /// The failure of a lone operation.
    fn broken_alone(&mut self, broken: PartialFailure) -> FailedBatch {
        FailedBatch {
            at: Some(0),
            failed: self.slot.failed(broken.failed),
        }
    }

    /// Fails at once for a row that was found locked a while ago and still is: waiting for it would
    /// delay all others.
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
                    context.clock.sleep(PROBE_PAUSE).await;
                    continue;
                }
                self.locked_rows.note(op, context.clock.now(), true);
            }
            return Err(self.slot.failed(broken.failed));
        }
    }

    async fn refused_rows(&mut self, names: &[&LockName]) -> RefusedRows {
        let context = self.context;
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
        let (epoch, history_changed) = (open.epoch.clone(), context.history_changed());
        let rows = match (self.rows_after.take(), names) {
            (Some(rows), _) => Ok(rows),
            (None, []) => Ok(HashMap::new()),
            (None, names) => read_rows(open, context, names, Access::Read)
                .await
                .map(|rows| rows.into_iter().collect()),
        };
        RefusedRows {
            rows: rows.map_err(|failed| self.slot.failed(failed).into_error()),
            epoch,
            history_changed,
        }
    }
}

/// An operation whose statement was carried out.
struct CarriedOut<'a> {
    /// Its position in the batch.
    at: usize,
    op: &'a Operation,
    result: Outcome,
}

fn outcomes(ops: &[&Operation], done: &[MySqlQueryResult]) -> Vec<Outcome> {
    let outcome = |(op, result): (&&Operation, &MySqlQueryResult)| {
        took_effect(op, result).then(|| result.last_insert_id())
    };
    ops.iter().zip(done).map(outcome).collect()
}

/// Why a batch failed, and at which of its operations.
pub(super) struct FailedBatch {
    pub(super) at: Option<usize>,
    pub(super) failed: StatementError,
}

/// Whether the statement did what the operation asked for.
fn took_effect(op: &Operation, result: &MySqlQueryResult) -> bool {
    match op {
        Operation::Acquire(_) | Operation::Create(..) => result.last_insert_id() > 0,
        _ => result.rows_affected() > 0,
    }
}
