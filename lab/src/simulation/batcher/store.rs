//! The store behind a batcher. The store answers when the run tells it to, and records every
//! operation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use distlock::{
    Error, ErrorKind,
    backend::batch::{Executor, Failure, Limits, Reply},
};
use distlock_core::sync::Mutex;
use tokio::sync::oneshot;

use crate::simulation::{
    planted_bugs::EngineBug,
    promise::{Breach, SimulationPromise},
};

/// The kinds of operations. A batch has operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum OperationKind {
    Renew,
    Release,
    Acquire,
}

/// One operation of a caller, or the undo of such an operation.
#[derive(Clone, Debug)]
pub(super) struct BatchOperation {
    pub(super) kind: OperationKind,
    pub(super) key: String,
    /// The key that the batcher sees. This key differs from `key` only under `BatchSharesKeys`. The
    /// batcher then does not see that two operations have the same key.
    pub(super) visible_key: String,
    pub(super) number: u64,
    pub(super) undo: bool,
}

/// The result of a batch at the store.
#[derive(Clone, Debug)]
pub(super) enum BatchResult {
    Done,
    /// The store skips the operations whose entry is true.
    Skips(Vec<bool>),
    /// The batch fails, and each of its operations may be sent alone.
    Split,
    /// The batch fails with all its operations.
    Whole,
}

/// A batch in flight.
pub(super) struct SentBatch {
    pub(super) ops: Vec<BatchOperation>,
    pub(super) result: oneshot::Sender<BatchResult>,
}

/// The state of the store, and everything that was observed.
#[derive(Default)]
pub(super) struct BatcherObservations {
    pub(super) in_flight: BTreeMap<u64, SentBatch>,
    /// The number of the last batch.
    pub(super) last: u64,
    /// The step in which each operation was requested. `given_up` has the step in which its caller
    /// was dropped.
    pub(super) asked: BTreeMap<u64, u64>,
    pub(super) given_up: BTreeMap<u64, u64>,
    /// Operations that the store has performed.
    pub(super) applied: BTreeSet<u64>,
    /// Operations that the store has skipped, or whose batch has failed.
    pub(super) failed: BTreeSet<u64>,
    /// Grants that were not undone.
    pub(super) granted: BTreeSet<u64>,
    /// By key: the operation that acquired the lock last.
    pub(super) holder: BTreeMap<String, u64>,
    /// The number of the present step.
    pub(super) moment: u64,
    pub(super) broken: Option<Breach>,
    /// The lines of the trace.
    pub(super) lines: Vec<(&'static str, u64)>,
}

impl BatcherObservations {
    /// Records a broken promise. Only the first one of a run is kept.
    pub(super) fn record_breach(&mut self, detail: String) {
        let promise = SimulationPromise::Batches;
        self.broken.get_or_insert(Breach { promise, detail });
    }

    /// Performs an operation at the store. Checks that the operation happens once. Checks also that
    /// the undo of an earlier abandoned grant of this key came first.
    fn apply(&mut self, op: &BatchOperation) {
        self.lines.push(("applied", op.number));
        if op.undo {
            self.granted.remove(&op.number);
            if self.holder.get(&op.key) == Some(&op.number) {
                self.holder.remove(&op.key);
            }
            return;
        }
        if !self.applied.insert(op.number) {
            self.record_breach(format!("operation {} was sent twice", op.number));
        }
        if op.kind != OperationKind::Acquire {
            return;
        }
        let before = self.holder.insert(op.key.clone(), op.number);
        let given_up = before.and_then(|it| self.given_up.get(&it));
        if given_up.is_some() && given_up < self.asked.get(&op.number) {
            self.record_breach(format!(
                "operation {} was sent before the grant of operation {before:?} was undone",
                op.number
            ));
        }
        self.granted.insert(op.number);
    }

    /// Checks a batch that is about to be sent: its limits, its order, and that no batch in flight
    /// has one of its keys.
    fn check_sent_batch(&mut self, ops: &[BatchOperation], limits: Limits) {
        let one_kind = ops.iter().all(|op| op.kind == ops[0].kind);
        let sorted = ops.is_sorted_by(|one, other| one.visible_key < other.visible_key);
        if ops.len() > limits.operations || !one_kind || !sorted {
            self.record_breach(format!("a batch breaks the limits: {ops:?}"));
        }
        let mut out = self.in_flight.values().flat_map(|batch| &batch.ops);
        let shared = out.find(|it| ops.iter().any(|op| op.key == it.key));
        if let Some(shared) = shared.map(|it| it.key.clone()) {
            self.record_breach(format!("{shared} is in two batches"));
        }
        if self.in_flight.len() >= 2 * limits.in_flight {
            self.record_breach("too many batches are in flight".to_owned());
        }
    }
}

/// The store, as the batcher sees it.
pub(super) struct BatchStore {
    pub(super) seen: Arc<Mutex<BatcherObservations>>,
    pub(super) limits: Limits,
    pub(super) bug: Option<EngineBug>,
}

impl BatchStore {
    /// Tells whether this is the planted bug.
    fn has_bug(&self, bug: EngineBug) -> bool {
        self.bug == Some(bug)
    }
}

impl Executor for BatchStore {
    type Kind = OperationKind;
    type Op = BatchOperation;
    type Answer = u64;

    fn kind(&self, op: &BatchOperation) -> OperationKind {
        op.kind
    }

    fn is_urgent(&self, kind: OperationKind) -> bool {
        kind == OperationKind::Renew
    }

    fn key<'a>(&self, op: &'a BatchOperation) -> &'a str {
        &op.visible_key
    }

    async fn run(
        &self,
        _: OperationKind,
        ops: &[BatchOperation],
    ) -> Result<Vec<Reply<u64>>, Failure> {
        let answered = {
            let mut seen = self.seen.lock();
            seen.check_sent_batch(ops, self.limits);
            seen.last += 1;
            let (number, ops) = (seen.last, ops.to_vec());
            seen.lines.push(("batch goes out", number));
            let (result, answered) = oneshot::channel();
            seen.in_flight.insert(number, SentBatch { ops, result });
            answered
        };
        let result = answered.await.unwrap_or(BatchResult::Whole);
        let mut seen = self.seen.lock();
        let error = || Error::new(ErrorKind::Unavailable, "refused");
        let skips = match result {
            BatchResult::Done => vec![false; ops.len()],
            BatchResult::Skips(skips) => skips,
            BatchResult::Split | BatchResult::Whole => {
                seen.failed.extend(ops.iter().map(|op| op.number));
                return Err(match result {
                    BatchResult::Split => Failure::Split(error()),
                    _ => Failure::Whole(error()),
                });
            }
        };
        let mut replies = Vec::new();
        for (op, skipped) in ops.iter().zip(skips) {
            if skipped {
                seen.failed.insert(op.number);
                replies.push(Reply::Alone);
            } else {
                seen.apply(op);
                replies.push(Reply::Done(Ok(op.number)));
            }
        }
        if self.has_bug(EngineBug::BatchAnswersRotated) {
            replies.rotate_left(1);
        }
        let has_lost_caller = ops.iter().any(|op| seen.given_up.contains_key(&op.number));
        if self.has_bug(EngineBug::BatchForgetsANeighbour) && has_lost_caller {
            replies.pop();
        }
        Ok(replies)
    }

    fn undo(&self, op: &BatchOperation, _: &u64) -> Option<BatchOperation> {
        let wanted =
            op.kind == OperationKind::Acquire && !self.has_bug(EngineBug::BatchUndoesNothing);
        wanted.then(|| BatchOperation {
            kind: OperationKind::Release,
            undo: true,
            ..op.clone()
        })
    }

    fn outlives_caller(&self, op: &BatchOperation) -> bool {
        op.kind == OperationKind::Release
    }
}
