//! Runs batches: builds the requests, sends them, and returns one answer for each operation.

use std::sync::Arc;

use distlock_backend_kit::{
    batch::{Executor, Failure, Reply},
    operation::{Answer, Operation, OperationKind},
};
use distlock_core::{Attempt, Error, Moment, Renewed, Result};
use redis::Value;

use crate::{
    connection::{Connection, WaiterRegistry},
    format::keys::KeyLayout,
    operations::{
        Histories, WaiterChecks,
        answer::{ReplyOrigin, answer},
        request::{self, BatchKind, KeyedOperation},
    },
    routing::{Call, MaxAge, Router},
};

/// The router to the servers, and the data that operations keep for later ones.
pub(crate) struct ServerAccess {
    pub(crate) router: Router,
    pub(crate) layout: KeyLayout,
    pub(crate) waiters: Arc<WaiterRegistry>,
    pub(crate) waiter_checks: Arc<WaiterChecks>,
    pub(crate) histories: Arc<Histories>,
}

/// The executor that the batches call.
pub(crate) struct BatchExecutor(pub(crate) Arc<ServerAccess>);

impl ServerAccess {
    /// Sends operations of one kind, sorted by key, and returns an answer for each.
    async fn run(&self, kind: BatchKind, ops: &[Box<KeyedOperation>]) -> Vec<Reply<Answer>> {
        let confirmed_at = match self.confirm_primary(kind, ops).await {
            Ok(confirmed_at) => confirmed_at,
            Err(error) => return refuse(ops, &error).collect(),
        };
        let calls = self.parts(ops).map(|part| self.call(kind, part));
        let responses = self.router.ask_all(calls.collect()).await;
        let mut answers = Vec::with_capacity(ops.len());
        for (part, response) in self.parts(ops).zip(responses) {
            match response {
                Ok(response) if response.slot_migrating => {
                    answers.extend(part.iter().map(|_| Reply::Alone));
                }
                Ok(mut response) => {
                    // Every script answers with a list. So nil is never taken for success.
                    let replies = match response.replies.pop() {
                        Some(Value::Array(replies)) => replies,
                        _ => Vec::new(),
                    };
                    let origin = self.origin(&response.connection, confirmed_at);
                    answers.extend(part.iter().enumerate().map(|(at, op)| {
                        let reply = replies.get(at).unwrap_or(&Value::Nil);
                        let answer = self.read(op, reply, &response.connection, &origin);
                        Reply::Done(match answer {
                            // A push will tell when the key changes.
                            Ok(Answer::Acquired(Attempt::Busy(holder)))
                                if op.with_waiters && response.is_tracked =>
                            {
                                Ok(Answer::BusyNotified(holder))
                            }
                            answer => answer,
                        })
                    }));
                }
                Err(error) => answers.extend(refuse(part, &error)),
            }
        }
        answers
    }

    /// Returns the call for operations that share a request.
    fn call(&self, kind: BatchKind, part: &[Box<KeyedOperation>]) -> Call {
        let (command, script) = request::request(&self.layout, kind, part);
        let call = Call::script(part[0].target.bucket, command, script);
        let call = match part {
            [op] if self.router.is_cluster() => {
                match request::request_for_migrating_slot(&self.layout, op) {
                    Some(alone) => call.replace_while_migrating(alone),
                    None => call,
                }
            }
            _ => call.split_while_migrating(),
        };
        if kind.operation == OperationKind::Acquire && kind.with_waiters {
            call.tracking(part.iter().map(|op| &*op.target.key))
        } else {
            call
        }
    }

    /// Splits operations, which are sorted by bucket, into groups that may share a request. In a
    /// cluster, a group has the operations of one bucket; otherwise one group has all operations.
    fn parts<'a>(
        &self,
        ops: &'a [Box<KeyedOperation>],
    ) -> impl Iterator<Item = &'a [Box<KeyedOperation>]> {
        let together = !self.router.is_cluster();
        ops.chunk_by(move |a, b| together || a.target.bucket == b.target.bucket)
    }

    /// Confirms with a majority of the sentinels that the primary is still the primary, before
    /// anything is written there.
    ///
    /// A renewed lease counts from the sending of its renewal, so the sentinels must be asked after
    /// that moment. A grant carries the moment from which it counts, so an earlier round is enough.
    async fn confirm_primary(
        &self,
        kind: BatchKind,
        ops: &[Box<KeyedOperation>],
    ) -> Result<Option<Moment>> {
        let max_age = if kind.operation == OperationKind::Renew {
            MaxAge::Since(self.router.connector.clock().now())
        } else if ops.iter().all(|op| op.is_release()) {
            return Ok(None);
        } else {
            MaxAge::PartOfLease(ops.iter().filter_map(|op| op.operation.ttl()).min())
        };
        self.router.confirm_primary(max_age).await
    }

    fn origin(&self, connection: &Connection, confirmed_at: Option<Moment>) -> ReplyOrigin {
        ReplyOrigin {
            history: self.histories.number(connection.epoch()),
            epoch: self.router.epoch(connection),
            confirmed_at,
        }
    }

    /// Reads a script's reply to one operation, and records the epoch that the answer came from.
    fn read(
        &self,
        op: &KeyedOperation,
        reply: &Value,
        connection: &Connection,
        origin: &ReplyOrigin,
    ) -> Result<Answer> {
        let bucket = op.target.bucket;
        let clock = &**self.router.connector.clock();
        let histories = &*self.histories;
        histories.observe(bucket, origin.history, || {
            let now = connection.server_micros(clock);
            // A token granted by this answer belongs to the new epoch, although it was made before
            // the clock was read.
            let now = op.granted(reply).map_or(now, |token| now.min(token));
            (!connection.is_outdated()).then_some(now)
        });
        let answer = answer(op, reply, origin, histories)?;
        match (&op.operation, &answer) {
            (Operation::Renew(lease, _), Answer::Renewed(Renewed::Extended { .. }))
                // An answer from before a change of the epoch does not show that the lock survived
                // the change.
                if !connection.is_outdated() =>
            {
                histories.record_survival(bucket, lease);
            }
            (Operation::Release(lease), _) => {
                histories.forget(lease.owner);
            }
            _ => {}
        }
        Ok(answer)
    }
}

/// Answers all these operations with one error.
fn refuse<'a>(
    ops: &'a [Box<KeyedOperation>],
    error: &'a Error,
) -> impl Iterator<Item = Reply<Answer>> + 'a {
    ops.iter().map(|_| Reply::Done(Err(error.clone())))
}

impl Executor for BatchExecutor {
    type Kind = BatchKind;
    // Operations are boxed, because queues move them many times.
    type Op = Box<KeyedOperation>;
    type Answer = Answer;

    fn kind(&self, op: &Box<KeyedOperation>) -> BatchKind {
        op.kind()
    }

    fn is_urgent(&self, kind: BatchKind) -> bool {
        kind.operation == OperationKind::Renew
    }

    fn key<'a>(&self, op: &'a Box<KeyedOperation>) -> &'a str {
        &op.target.key
    }

    fn bytes(&self, op: &Box<KeyedOperation>) -> usize {
        op.bytes()
    }

    async fn run(
        &self,
        kind: BatchKind,
        ops: &[Box<KeyedOperation>],
    ) -> Result<Vec<Reply<Answer>>, Failure> {
        Ok(self.0.run(kind, ops).await)
    }

    fn undo(&self, op: &Box<KeyedOperation>, answer: &Answer) -> Option<Box<KeyedOperation>> {
        op.undo(answer).map(Box::new)
    }

    fn outlives_caller(&self, op: &Box<KeyedOperation>) -> bool {
        op.operation.outlives_caller()
    }
}
