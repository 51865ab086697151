//! A store with scripted answers.

use std::collections::{BTreeSet, VecDeque};

use tokio::sync::Semaphore;

use super::*;

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
    pub(super) id: u32,
}

pub(super) fn op(kind: Kind, key: impl Into<String>, id: u32) -> Op {
    Op {
        kind,
        key: key.into(),
        id,
    }
}

/// The scripted failure of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Split,
    Whole,
    /// Skips the keys that start with `s`.
    Skip,
    Panic,
}

#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) kind: Kind,
    pub(super) ops: Vec<Op>,
    pub(super) task: Option<tokio::task::Id>,
}

pub(super) type Meanwhile = Box<dyn FnOnce() + Send>;

/// A store that answers each operation with its id, records each batch, and can hold an answer back
/// until the test releases it.
pub(super) struct Script {
    pub(super) sent: Mutex<Vec<Sent>>,
    pub(super) fates: Mutex<VecDeque<Fate>>,
    pub(super) gate: Option<Semaphore>,
    /// Keys that make each batch with one of them fail.
    pub(super) poisoned: BTreeSet<String>,
    pub(super) out: Mutex<Vec<String>>,
    /// An action that runs while the batch with this operation is in flight.
    pub(super) meanwhile: Mutex<Option<(u32, Meanwhile)>>,
    /// The ids of acquires that were granted and not undone.
    pub(super) granted: Mutex<BTreeSet<u32>>,
}

impl Script {
    pub(super) fn open() -> Self {
        Self {
            sent: Mutex::default(),
            fates: Mutex::default(),
            gate: None,
            poisoned: BTreeSet::new(),
            out: Mutex::default(),
            meanwhile: Mutex::default(),
            granted: Mutex::default(),
        }
    }

    pub(super) fn gated() -> Self {
        Self {
            gate: Some(Semaphore::new(0)),
            ..Self::open()
        }
    }

    pub(super) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().clone()
    }

    pub(super) fn ids(&self) -> Vec<Vec<u32>> {
        self.sent()
            .iter()
            .map(|sent| sent.ops.iter().map(|op| op.id).collect())
            .collect()
    }

    pub(super) fn note(&self, ops: &[Op], replies: &[Reply<u32>]) {
        let mut granted = self.granted.lock();
        for (op, reply) in ops.iter().zip(replies) {
            match (op.kind, reply) {
                (Kind::Acquire, Reply::Done(_)) => granted.insert(op.id),
                (Kind::Release, Reply::Done(_)) => granted.remove(&op.id),
                _ => false,
            };
        }
    }

    pub(super) fn let_through(&self, batches: usize) {
        self.gate.as_ref().unwrap().add_permits(batches);
    }
}

impl Executor for Script {
    type Kind = Kind;
    type Op = Op;
    type Answer = u32;

    fn kind(&self, op: &Op) -> Kind {
        op.kind
    }

    fn is_urgent(&self, kind: Kind) -> bool {
        kind == Kind::Renew
    }

    fn key<'a>(&self, op: &'a Op) -> &'a str {
        &op.key
    }

    async fn run(&self, kind: Kind, ops: &[Op]) -> Result<Vec<Reply<u32>>, Failure> {
        {
            let mut out = self.out.lock();
            for op in ops {
                assert!(!out.contains(&op.key), "{:?} is in two batches", op.key);
                out.push(op.key.clone());
            }
        }
        self.sent.lock().push(Sent {
            kind,
            ops: ops.to_vec(),
            task: tokio::task::try_id(),
        });
        let mine = |(id, _): &mut (u32, Meanwhile)| ops.iter().any(|op| op.id == *id);
        let meanwhile = self.meanwhile.lock().take_if(mine);
        if let Some((_, happens)) = meanwhile {
            happens();
        }
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        } else {
            tokio::task::yield_now().await;
        }
        self.out
            .lock()
            .retain(|key| !ops.iter().any(|op| op.key == *key));
        let error = || Error::new(ErrorKind::Unavailable, "scripted");
        if ops.iter().any(|op| self.poisoned.contains(&op.key)) {
            return Err(Failure::Split(error()));
        }
        let fate = self.fates.lock().pop_front();
        match fate {
            Some(Fate::Split) => Err(Failure::Split(error())),
            Some(Fate::Whole) => Err(Failure::Whole(error())),
            Some(Fate::Panic) => panic!("scripted"),
            Some(Fate::Skip) => Ok(ops
                .iter()
                .map(|op| match op.key.starts_with('s') {
                    true => Reply::Alone,
                    false => Reply::Done(Ok(op.id)),
                })
                .collect()),
            None => Ok(ops.iter().map(|op| Reply::Done(Ok(op.id))).collect()),
        }
        .inspect(|replies: &Vec<_>| self.note(ops, replies))
    }

    fn undo(&self, op: &Op, answer: &u32) -> Option<Op> {
        assert_eq!(op.id, *answer);
        (op.kind == Kind::Acquire).then(|| Op {
            kind: Kind::Release,
            ..op.clone()
        })
    }

    fn outlives_caller(&self, op: &Op) -> bool {
        op.kind == Kind::Release
    }
}
