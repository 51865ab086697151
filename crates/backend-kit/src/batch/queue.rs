//! The queue of operations, and the order in which operations are sent.
//!
//! This module owns the waiting operations and the keys in flight. Invariant: at most one batch at
//! a time has claimed a key, and an undo is sent before all other operations. The module is plain
//! data: it sends nothing and locks nothing.

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

/// The number of singly sent operations that fail in a row, after which all other operations that
/// wait to be sent singly get the same error. Each of them may wait a second for a locked row, and
/// after so many failures the cause is probably the store and not the rows.
const MAX_SINGLE_FAILURES: u32 = 8;

/// An operation with its answer. The operation is needed to undo the answer if the receiver is
/// gone.
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

    /// Sends the answer to the caller. Returns the answer with its operation when the caller has
    /// gone.
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

/// Operations that are sent in one request.
pub(super) struct Batch<E: Executor> {
    pub(super) kind: E::Kind,
    pub(super) ops: Vec<E::Op>,
    replies: Vec<Option<oneshot::Sender<Answered<E>>>>,
    pub(super) claimed: ClaimedKeys,
    /// Whether this batch holds one operation that is sent singly after the failure of a larger
    /// batch.
    pub(super) is_single: bool,
}

impl<E: Executor> Batch<E> {
    /// Whether the caller of at least one operation of this batch has gone.
    pub(super) fn lost_a_caller(&self) -> bool {
        let gone = |reply: &Option<oneshot::Sender<_>>| {
            reply.as_ref().is_none_or(oneshot::Sender::is_closed)
        };
        self.replies.iter().any(gone)
    }

    /// Converts the batch into its operations, so that they can be answered or sent again.
    pub(super) fn into_pending(self) -> impl Iterator<Item = Pending<E>> {
        self.ops
            .into_iter()
            .zip(self.replies)
            .map(|(op, reply)| Pending { op, reply })
    }
}

/// Hashes of the keys that no other batch may have while this batch is in flight. Two keys with the
/// same hash count as one key, so an operation of the second key waits longer than necessary, but
/// is still correct.
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
    /// Operations that wait for a batch, by kind. A kind without operations keeps its entry.
    waiting: BTreeMap<E::Kind, VecDeque<Pending<E>>>,
    /// Operations that must be sent singly, in the order of their kinds.
    singles: VecDeque<Pending<E>>,
    single_failures: u32,
    /// The sub-queue of the last batch. The search for the next batch starts at the sub-queue after
    /// it, so that the sub-queues take turns.
    last: Option<SubQueue<E::Kind>>,
    /// The keys of all batches in flight, and of the batch that is being put together.
    busy: HashSet<u64, BuildHasherDefault<AsIs>>,
    hasher: OfNames,
}

impl<E: Executor> Queue<E> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            undo: VecDeque::new(),
            waiting: BTreeMap::new(),
            singles: VecDeque::new(),
            single_failures: 0,
            last: None,
            busy: HashSet::default(),
            hasher: OfNames::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.undo.is_empty()
            && self.singles.is_empty()
            && self.waiting.values().all(VecDeque::is_empty)
    }

    pub(super) fn len(&self) -> usize {
        self.undo.len()
            + self.singles.len()
            + self.waiting.values().map(VecDeque::len).sum::<usize>()
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

    /// Queues an operation that must be sent singly, in the order of the kinds.
    pub(super) fn push_single(&mut self, executor: &E, pending: Pending<E>) {
        let kind = executor.kind(&pending.op);
        let at = self
            .singles
            .partition_point(|other| executor.kind(&other.op) <= kind);
        self.singles.insert(at, pending);
    }

    /// Counts the result of an operation that was sent singly. After [`MAX_SINGLE_FAILURES`]
    /// failures in a row, removes and returns all operations that wait to be sent singly: the
    /// caller must answer them with the error.
    pub(super) fn count_single_result(&mut self, failed: bool) -> VecDeque<Pending<E>> {
        self.single_failures = if failed { self.single_failures + 1 } else { 0 };
        if self.single_failures < MAX_SINGLE_FAILURES {
            return VecDeque::new();
        }
        // The count starts again for the operations that are queued from now on.
        self.single_failures = 0;
        std::mem::take(&mut self.singles)
    }

    /// Whether the next batch is sent before `unanswered` answers of the last batch are handed out:
    /// the executor wants that, and the queue has at least half as many operations.
    pub(super) fn sends_ahead(&self, unanswered: usize) -> bool {
        self.limits.ahead && self.len() * 2 >= unanswered
    }

    /// Takes every waiting operation except undos.
    pub(super) fn drain(&mut self) -> Vec<Pending<E>> {
        let waiting = std::mem::take(&mut self.waiting);
        let singles = std::mem::take(&mut self.singles);
        singles
            .into_iter()
            .chain(waiting.into_values().flatten())
            .collect()
    }

    /// Takes every waiting operation, including undos.
    pub(super) fn drain_all(&mut self) -> Vec<Pending<E>> {
        let mut all: Vec<_> = self.undo.drain(..).collect();
        all.extend(self.drain());
        all
    }

    /// Claims the key of one operation, unless the key is in flight.
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

    /// Takes the next batch before the answers of the last batch, with the keys `answered`, are
    /// handed out. The next batch may have keys of the last one, because its operations were
    /// submitted before the last batch was answered. The keys of the last batch that the next batch
    /// does not have stay claimed until the answers are handed out. Otherwise a new operation could
    /// be sent before the undo of an answer without a receiver, and that undo would then end the
    /// grant of the new operation.
    pub(super) fn take_ahead(
        &mut self,
        executor: &E,
        answered: &mut ClaimedKeys,
    ) -> Option<Batch<E>> {
        self.unclaim(answered);
        let next = self.take(executor);
        answered.0.retain(|key| self.busy.insert(*key));
        next
    }

    /// Takes the next batch. `None` when every key in the queue is in flight, or the queue is
    /// empty.
    ///
    /// Undos are sent first, then the urgent kind. The other kinds take turns, so that no kind
    /// waits without end.
    pub(super) fn take(&mut self, executor: &E) -> Option<Batch<E>> {
        // An undo whose key is in flight stays in front of its sub-queue, and the other sub-queues
        // go on: none of them can send that key before the undo, because the key is busy.
        if let Some(first) = self.undo.front() {
            let kind = executor.kind(&first.op);
            if let Some(batch) = self.gather(executor, SubQueue::Undo, kind) {
                return Some(batch);
            }
        }
        let mut sub_queues = Vec::with_capacity(self.waiting.len() + 1);
        if let Some(first) = self.singles.front() {
            sub_queues.push((SubQueue::Singles, executor.kind(&first.op)));
        }
        sub_queues.extend(
            self.waiting
                .iter()
                .filter(|(_, waiting)| !waiting.is_empty())
                .map(|(kind, _)| (SubQueue::Kind(*kind), *kind)),
        );
        let next = sub_queues.partition_point(|(sub_queue, _)| Some(*sub_queue) <= self.last);
        sub_queues.rotate_left(next);
        sub_queues.sort_by_key(|(_, kind)| !executor.is_urgent(*kind));
        for (sub_queue, kind) in sub_queues {
            if let Some(batch) = self.gather(executor, sub_queue, kind) {
                self.last = Some(sub_queue);
                return Some(batch);
            }
        }
        None
    }

    /// Takes a batch from the front of a sub-queue: operations of one kind, each key once, within
    /// the limits.
    fn gather(
        &mut self,
        executor: &E,
        sub_queue: SubQueue<E::Kind>,
        kind: E::Kind,
    ) -> Option<Batch<E>> {
        let waiting = match sub_queue {
            SubQueue::Undo => &mut self.undo,
            SubQueue::Singles => &mut self.singles,
            SubQueue::Kind(kind) => self.waiting.get_mut(&kind)?,
        };
        let is_single = sub_queue == SubQueue::Singles;
        let part = waiting.len().div_ceil(2 * self.limits.in_flight.max(1));
        let most = self.limits.operations.min(part.max(self.limits.undivided));
        let most = if is_single { 1 } else { most };
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
            // The store could apply two batches in flight in either order: the release of an owner
            // before its acquire, for example. Later operations with this key find it busy too, so
            // none of them passes this one.
            if !self.busy.insert(key) {
                left.push_back(pending);
                continue;
            }
            let size = executor.bytes(&pending.op);
            if !taken.is_empty() && bytes + size > self.limits.bytes {
                // The operation is not in this batch, so its key must not stay claimed: no batch
                // would ever free it.
                self.busy.remove(&key);
                left.push_back(pending);
                break;
            }
            bytes += size;
            keys.push(key);
            taken.push(pending);
        }
        if !left.is_empty() {
            // In front of the operations that were not looked at, so that the order of submission
            // stays.
            left.append(waiting);
            *waiting = left;
        }
        if taken.is_empty() {
            return None;
        }
        // Two requests that lock the same rows in different orders deadlock each other on a
        // database server.
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
            is_single,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SubQueue<K> {
    Undo,
    Singles,
    Kind(K),
}
