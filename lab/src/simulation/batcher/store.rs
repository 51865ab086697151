//! The store behind a batcher: it answers when it is told to, and sees everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use distlock::{
    Error, ErrorKind,
    batch::{Executor, Failure, Limits, Reply},
};
use tokio::sync::oneshot;

use crate::simulation::{
    plants::Plant,
    promise::{Broken, Promise},
    world::locked,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Renew,
    Release,
    Acquire,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) key: String,
    /// The key as the batcher sees it.
    pub(super) shown: String,
    pub(super) number: u64,
    pub(super) undo: bool,
}

/// The fate of a batch at the store.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Done,
    /// Nothing happened to those of which this is true.
    Skips(Vec<bool>),
    Split,
    Whole,
}

pub(super) struct Flight {
    pub(super) ops: Vec<Op>,
    pub(super) fate: oneshot::Sender<Fate>,
}

/// The store's side, and everything that was seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) last: u64,
    /// When each operation was asked for, and given up.
    pub(super) asked: BTreeMap<u64, u64>,
    pub(super) given_up: BTreeMap<u64, u64>,
    pub(super) applied: BTreeSet<u64>,
    pub(super) failed: BTreeSet<u64>,
    /// Grants that were not taken back.
    pub(super) granted: BTreeSet<u64>,
    pub(super) holder: BTreeMap<String, u64>,
    pub(super) moment: u64,
    pub(super) broken: Option<Broken>,
    pub(super) lines: Vec<(&'static str, u64)>,
}

impl Seen {
    pub(super) fn accuse(&mut self, detail: String) {
        let promise = Promise::Batches;
        self.broken.get_or_insert(Broken { promise, detail });
    }

    fn applies(&mut self, op: &Op) {
        self.lines.push(("applied", op.number));
        if op.undo {
            self.granted.remove(&op.number);
            if self.holder.get(&op.key) == Some(&op.number) {
                self.holder.remove(&op.key);
            }
            return;
        }
        if !self.applied.insert(op.number) {
            self.accuse(format!("operation {} was sent twice", op.number));
        }
        if op.kind != Kind::Acquire {
            return;
        }
        let before = self.holder.insert(op.key.clone(), op.number);
        let given_up = before.and_then(|it| self.given_up.get(&it));
        if given_up.is_some() && given_up < self.asked.get(&op.number) {
            self.accuse(format!(
                "operation {} went out before the grant of operation {before:?} was undone",
                op.number
            ));
        }
        self.granted.insert(op.number);
    }

    fn sends(&mut self, ops: &[Op], limits: Limits) {
        let one_kind = ops.iter().all(|op| op.kind == ops[0].kind);
        let sorted = ops.is_sorted_by(|one, other| one.shown < other.shown);
        if ops.len() > limits.operations || !one_kind || !sorted {
            self.accuse(format!("a batch that must not be: {ops:?}"));
        }
        let mut out = self.flights.values().flat_map(|flight| &flight.ops);
        let shared = out.find(|it| ops.iter().any(|op| op.key == it.key));
        if let Some(shared) = shared.map(|it| it.key.clone()) {
            self.accuse(format!("{shared} is in two batches"));
        }
        if self.flights.len() >= 2 * limits.in_flight {
            self.accuse("too many batches are out".to_owned());
        }
    }
}

pub(super) struct Store {
    pub(super) seen: Arc<Mutex<Seen>>,
    pub(super) limits: Limits,
    pub(super) plant: Option<Plant>,
}

impl Store {
    fn is(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }
}

impl Executor for Store {
    type Kind = Kind;
    type Op = Op;
    type Answer = u64;

    fn kind(&self, op: &Op) -> Kind {
        op.kind
    }

    fn is_urgent(&self, kind: Kind) -> bool {
        kind == Kind::Renew
    }

    fn key<'a>(&self, op: &'a Op) -> &'a str {
        &op.shown
    }

    async fn run(&self, _: Kind, ops: &[Op]) -> Result<Vec<Reply<u64>>, Failure> {
        let answered = {
            let mut seen = locked(&self.seen);
            seen.sends(ops, self.limits);
            seen.last += 1;
            let (number, ops) = (seen.last, ops.to_vec());
            seen.lines.push(("batch goes out", number));
            let (fate, answered) = oneshot::channel();
            seen.flights.insert(number, Flight { ops, fate });
            answered
        };
        let fate = answered.await.unwrap_or(Fate::Whole);
        let mut seen = locked(&self.seen);
        let error = || Error::new(ErrorKind::Unavailable, "refused");
        let skips = match fate {
            Fate::Done => vec![false; ops.len()],
            Fate::Skips(skips) => skips,
            Fate::Split | Fate::Whole => {
                seen.failed.extend(ops.iter().map(|op| op.number));
                return Err(match fate {
                    Fate::Split => Failure::Split(error()),
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
                seen.applies(op);
                replies.push(Reply::Done(Ok(op.number)));
            }
        }
        if self.is(Plant::BatchAnswersRotated) {
            replies.rotate_left(1);
        }
        let deserted = ops.iter().any(|op| seen.given_up.contains_key(&op.number));
        if self.is(Plant::BatchForgetsANeighbour) && deserted {
            replies.pop();
        }
        Ok(replies)
    }

    fn undo(&self, op: &Op, _: &u64) -> Option<Op> {
        let wanted = op.kind == Kind::Acquire && !self.is(Plant::BatchUndoesNothing);
        wanted.then(|| Op {
            kind: Kind::Release,
            undo: true,
            ..op.clone()
        })
    }

    fn outlives_caller(&self, op: &Op) -> bool {
        op.kind == Kind::Release
    }
}
