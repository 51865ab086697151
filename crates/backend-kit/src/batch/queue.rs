//! The queue of operations, and the order in which they are sent.
//!
//! This module is plain data. Invariant: a key is claimed by one batch at a time, and an undo is
//! sent before everything else. The module sends nothing and locks nothing.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{BuildHasher as _, BuildHasherDefault},
};

use tokio::sync::oneshot;

use distlock_core::{
    Result,
    hash::{AsIs, OfNames},
    log,
};

use super::executor::{Executor, Limits};

/// Number of single failures in a row after which the other single operations get the error, too.
/// Each may have waited a second for a locked row, and then the store is more likely at fault than
/// the rows.
const ALONE_FAILURES: u32 = 8;

/// An operation with its answer, so that a receiver that is gone can have it undone.
pub(super) type Answered<E> = (<E as Executor>::Op, Result<<E as Executor>::Answer>);

/// An operation that waits to be sent.
pub(super) struct Pending<E: Executor> {
    pub(super) op: E::Op,
    reply: Option<oneshot::Sender<Answered<E>>>,
}

impl<E: Executor> Pending<E> {
    pub(super) fn with_reply(op: E::Op) -> (Self, oneshot::Receiver<Answered<E>>) {
        let (reply, receiver) = oneshot::channel();
        let pending = Self {
            op,
            reply: Some(reply),
        };
        (pending, receiver)
    }

    pub(super) fn without_reply(op: E::Op) -> Self {
        Self { op, reply: None }
    }

    /// Sends the answer to the caller. Returns it when the caller has gone.
    pub(super) fn answer(self, answer: Result<E::Answer>) -> Option<Answered<E>> {
        match self.reply {
            Some(reply) => reply.send((self.op, answer)).err(),
            None => {
                if let Err(error) = answer {
                    log::write(move || {
                        tracing::warn!(
                            %error,
                            "what a lost caller was granted stays until its lease ends",
                        );
                    });
                }
                None
            }
        }
    }

    fn is_wanted(&self, executor: &E) -> bool {
        match &self.reply {
            Some(reply) => !reply.is_closed() || executor.outlives_caller(&self.op),
            None => true,
        }
    }
}

/// Operations that are sent together.
pub(super) struct Batch<E: Executor> {
    pub(super) kind: E::Kind,
    pub(super) ops: Vec<E::Op>,
    replies: Vec<Option<oneshot::Sender<Answered<E>>>>,
    pub(super) claimed: ClaimedKeys,
    /// Whether its one operation is sent singly after a failure.
    pub(super) alone: bool,
}

impl<E: Executor> Batch<E> {
    /// Whether a caller of one of its operations went away.
    pub(super) fn lost_a_caller(&self) -> bool {
        let gone = |reply: &Option<oneshot::Sender<_>>| {
            reply.as_ref().is_none_or(oneshot::Sender::is_closed)
        };
        self.replies.iter().any(gone)
    }

    /// Its operations, to be answered or sent again.
    pub(super) fn into_pending(self) -> impl Iterator<Item = Pending<E>> {
        self.ops
            .into_iter()
            .zip(self.replies)
            .map(|(op, reply)| Pending { op, reply })
    }
}

/// The keys that no other batch may have while this one is in flight, as hashes. Two keys with one
/// hash count as the same key, and one of them only waits.
#[derive(Clone, Default)]
pub(super) struct ClaimedKeys(Vec<u64>);

impl ClaimedKeys {
    pub(super) fn contains(&self, key: u64) -> bool {
        self.0.contains(&key)
    }
}

pub(super) struct Queue<E: Executor> {
    limits: Limits,
    undo: VecDeque<Pending<E>>,
    /// By kind. An empty kind keeps its entry.
    waiting: BTreeMap<E::Kind, VecDeque<Pending<E>>>,
    alone: VecDeque<Pending<E>>,
    alone_failures: u32,
    /// The lane of the last batch: the next batch comes from the lanes after it.
    last: Option<Lane<E::Kind>>,
    /// Keys in flight, and keys of the batch that is being put together.
    busy: HashSet<u64, BuildHasherDefault<AsIs>>,
    hasher: OfNames,
}

impl<E: Executor> Queue<E> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            undo: VecDeque::new(),
            waiting: BTreeMap::new(),
            alone: VecDeque::new(),
            alone_failures: 0,
            last: None,
            busy: HashSet::default(),
            hasher: OfNames::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.undo.is_empty()
            && self.alone.is_empty()
            && self.waiting.values().all(VecDeque::is_empty)
    }

    pub(super) fn len(&self) -> usize {
        self.undo.len() + self.alone.len() + self.waiting.values().map(VecDeque::len).sum::<usize>()
    }

    pub(super) fn push(&mut self, executor: &E, pending: Pending<E>) {
        self.waiting
            .entry(executor.kind(&pending.op))
            .or_default()
            .push_back(pending);
    }

    pub(super) fn push_undo(&mut self, pending: Pending<E>) {
        self.undo.push_back(pending);
    }

    /// Queues an operation to be sent singly; the urgent kind first.
    pub(super) fn push_alone(&mut self, executor: &E, pending: Pending<E>) {
        let kind = executor.kind(&pending.op);
        let at = self
            .alone
            .partition_point(|other| executor.kind(&other.op) <= kind);
        self.alone.insert(at, pending);
    }

    /// Notes how a single operation ended. After too many failures in a row, returns the operations
    /// that are given up.
    pub(super) fn alone_ended(&mut self, failed: bool) -> VecDeque<Pending<E>> {
        self.alone_failures = if failed { self.alone_failures + 1 } else { 0 };
        if self.alone_failures < ALONE_FAILURES {
            return VecDeque::new();
        }
        self.alone_failures = 0;
        std::mem::take(&mut self.alone)
    }

    /// Whether the queue is long enough to send the next batch before `back` answers are handed
    /// out.
    pub(super) fn sends_ahead(&self, back: usize) -> bool {
        self.limits.ahead && self.len() * 2 >= back
    }

    /// Takes every operation that waits, except undos.
    pub(super) fn drain(&mut self) -> Vec<Pending<E>> {
        let waiting = std::mem::take(&mut self.waiting);
        let alone = std::mem::take(&mut self.alone);
        alone
            .into_iter()
            .chain(waiting.into_values().flatten())
            .collect()
    }

    /// Takes every operation that waits.
    pub(super) fn drain_all(&mut self) -> Vec<Pending<E>> {
        let mut all: Vec<_> = self.undo.drain(..).collect();
        all.extend(self.drain());
        all
    }

    /// Claims the key of one operation, unless it is in flight.
    pub(super) fn claim_one(&mut self, executor: &E, op: &E::Op) -> Option<ClaimedKeys> {
        let key = self.key(executor, op);
        self.busy.insert(key).then(|| ClaimedKeys(vec![key]))
    }

    /// The hash of an operation's key.
    pub(super) fn key(&self, executor: &E, op: &E::Op) -> u64 {
        self.hasher.hash_one(executor.key(op))
    }

    /// Frees the keys of a batch that has its answers.
    pub(super) fn unclaim(&mut self, claimed: &ClaimedKeys) {
        for key in &claimed.0 {
            self.busy.remove(key);
        }
    }

    /// Takes the next batch before the answers of the last one are handed out. It may have keys of
    /// that one, because its operations were submitted before. The other keys stay claimed until
    /// the answers have been handed out: an answer without a receiver is undone, and a later
    /// operation of the same owner must not overtake that undo.
    pub(super) fn take_ahead(&mut self, executor: &E, back: &mut ClaimedKeys) -> Option<Batch<E>> {
        self.unclaim(back);
        let next = self.take(executor);
        back.0.retain(|key| self.busy.insert(*key));
        next
    }

    /// The next batch. `None` when every key in the queue is in flight, or the queue is empty.
    ///
    /// Undos are sent first, then the urgent kind. The other kinds take turns, so that none waits
    /// without end.
    pub(super) fn take(&mut self, executor: &E) -> Option<Batch<E>> {
        if let Some(first) = self.undo.front() {
            let kind = executor.kind(&first.op);
            if let Some(batch) = self.gather(executor, Lane::Undo, kind) {
                return Some(batch);
            }
        }
        let mut lanes = Vec::with_capacity(self.waiting.len() + 1);
        if let Some(first) = self.alone.front() {
            lanes.push((Lane::Alone, executor.kind(&first.op)));
        }
        lanes.extend(
            self.waiting
                .iter()
                .filter(|(_, waiting)| !waiting.is_empty())
                .map(|(kind, _)| (Lane::Kind(*kind), *kind)),
        );
        let next = lanes.partition_point(|(lane, _)| Some(*lane) <= self.last);
        lanes.rotate_left(next);
        lanes.sort_by_key(|(_, kind)| !executor.is_urgent(*kind));
        for (lane, kind) in lanes {
            if let Some(batch) = self.gather(executor, lane, kind) {
                self.last = Some(lane);
                return Some(batch);
            }
        }
        None
    }

    /// Takes a batch from the front of a lane: one kind, each key once, within the limits.
    fn gather(&mut self, executor: &E, lane: Lane<E::Kind>, kind: E::Kind) -> Option<Batch<E>> {
        let waiting = match lane {
            Lane::Undo => &mut self.undo,
            Lane::Alone => &mut self.alone,
            Lane::Kind(kind) => self.waiting.get_mut(&kind)?,
        };
        let alone = lane == Lane::Alone;
        let part = waiting.len().div_ceil(2 * self.limits.in_flight.max(1));
        let most = self.limits.operations.min(part.max(self.limits.undivided));
        let most = if alone { 1 } else { most };
        let mut taken: Vec<Pending<E>> = Vec::with_capacity(waiting.len().min(most));
        let mut left = VecDeque::new();
        let mut keys = Vec::with_capacity(waiting.len().min(most));
        let mut bytes = 0;
        while taken.len() < most
            && let Some(pending) = waiting.pop_front()
        {
            if !pending.is_wanted(executor) {
                continue;
            }
            if executor.kind(&pending.op) != kind {
                left.push_back(pending);
                continue;
            }
            let key = self.hasher.hash_one(executor.key(&pending.op));
            if !self.busy.insert(key) {
                left.push_back(pending);
                continue;
            }
            let size = executor.bytes(&pending.op);
            if !taken.is_empty() && bytes + size > self.limits.bytes {
                self.busy.remove(&key);
                left.push_back(pending);
                break;
            }
            bytes += size;
            keys.push(key);
            taken.push(pending);
        }
        if !left.is_empty() {
            left.append(waiting);
            *waiting = left;
        }
        if taken.is_empty() {
            return None;
        }
        taken.sort_by(|a, b| executor.key(&a.op).cmp(executor.key(&b.op)));
        let (ops, replies) = taken
            .into_iter()
            .map(|pending| (pending.op, pending.reply))
            .unzip();
        Some(Batch {
            kind,
            ops,
            replies,
            claimed: ClaimedKeys(keys),
            alone,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane<K> {
    Undo,
    Alone,
    Kind(K),
}
