//! The local queue: the waiters of this process for one lock name, in order of arrival.
//!
//! This module owns the queues, the local turns and the passing of a turn from one waiter to the
//! next. Invariant: for each name, at most one task has the local turn, and a turn that is dropped
//! passes to the next waiter. The module never waits for the store. Its functions never call a
//! lease while they hold a mutex of a queue: the call may end the lease, an ending lease drops its
//! turn, and that drop locks the same mutex, which would deadlock.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    fmt,
    future::Future,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::{
    clock::Moment,
    contract::{AcquireRequest, Grant},
    engine::{
        hash::{AsIs, OfNames},
        lease_state::LeaseState,
        meters::Meters,
        parts::LockerParts,
        release::{LeaseToRelease, release_in_background},
    },
    sync::{Mutex, MutexGuard},
    types::{error::Error, ident::HolderInfo, name::LockName},
};

/// Number of mutexes over all names. Tasks that want different names seldom share a mutex.
const SHARDS: usize = 16;

/// The queues of all names that tasks of this process hold or wait for.
pub(crate) struct LocalQueues {
    shards: [Mutex<QueueMap>; SHARDS],
    hasher: OfNames,
}

type QueueMap = HashMap<HashedName, LocalQueue, BuildHasherDefault<AsIs>>;

/// A name with its hash. One acquire and its release look up the queue several times, and compute
/// the hash once.
#[derive(Clone)]
struct HashedName {
    hash: u64,
    name: LockName,
}

impl Hash for HashedName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for HashedName {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for HashedName {}

/// The queue of one name. The queue exists as long as a task has the turn.
#[derive(Default)]
struct LocalQueue {
    waiting: VecDeque<LocalWaiter>,
    next_id: u64,
    /// The number of counted hand-overs since the lock was last released at the store.
    hand_overs: u32,
    /// The lease of the task that holds the lock, if a task of this process does.
    holder: Option<Weak<LeaseState>>,
    /// The holder in another process, as the store reported that holder last.
    seen: Option<HolderInfo>,
    /// The error of the last attempt, while the store is unreachable.
    outage: Option<Error>,
}

struct LocalWaiter {
    id: u64,
    request: AcquireRequest,
    sender: oneshot::Sender<NextStep>,
}

/// The next step of a waiter whose turn has come.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// The waiter asks the store.
    Ask {
        turn: LocalTurn,
        /// Whether the waiter lets other processes go first: it then joins the store queue and
        /// waits once before its first attempt.
        step_aside: bool,
    },
    /// The previous holder handed the lock over at the store.
    TakeOver(HandedOver),
}

/// A lock that was handed over to a waiter, or may have been, and that the waiter has not picked up
/// yet.
///
/// When this value is dropped before the waiter picked the lock up (the waiter was cancelled), the
/// lock is released in the background.
pub(crate) struct HandedOver {
    pub(crate) unclaimed: Option<NotPickedUp>,
    pub(crate) parts: Arc<LockerParts>,
    pub(crate) meters: Arc<Meters>,
}

/// The local turn; the grant with the moment at which the hand-over was sent (`None` = unknown
/// outcome); and the request of the new owner.
pub(crate) type NotPickedUp = (LocalTurn, Option<(Grant, Moment)>, AcquireRequest);

impl fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandedOver")
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some((turn, granted, request)) = self.unclaimed.take() {
            let grant = granted.as_ref().map(|(grant, _)| grant);
            let (timing, meters) = (&self.parts.timing, &self.meters);
            let what = LeaseToRelease::not_picked_up(timing, meters, turn, grant, &request);
            release_in_background(&self.parts, what);
        }
    }
}

/// The answer to [`LocalQueues::enter`].
pub(crate) enum Entered {
    /// The queue was empty: the caller has the turn.
    First(LocalTurn),
    /// Other tasks are ahead: the place resolves to the caller's next step.
    Behind(LocalPlace),
}

impl LocalQueues {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: OfNames::default(),
        })
    }

    /// Takes the turn of a name, or joins its queue.
    pub(crate) fn enter(self: &Arc<Self>, request: &AcquireRequest) -> Entered {
        let key = self.key(&request.name);
        match self.shard(&key).entry(key.clone()) {
            hash_map::Entry::Vacant(free) => {
                free.insert(LocalQueue::default());
                Entered::First(LocalTurn::new(self, key))
            }
            hash_map::Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                let (sender, receiver) = oneshot::channel();
                queue.next_id += 1;
                let id = queue.next_id;
                queue.waiting.push_back(LocalWaiter {
                    id,
                    request: request.clone(),
                    sender,
                });
                Entered::Behind(LocalPlace {
                    queues: Arc::clone(self),
                    key,
                    id,
                    receiver,
                })
            }
        }
    }

    /// Takes the turn only if the queue is empty. Otherwise returns the probable holder, if this
    /// process knows one.
    pub(crate) fn try_enter(
        self: &Arc<Self>,
        name: &LockName,
    ) -> Result<LocalTurn, Option<HolderInfo>> {
        let key = self.key(name);
        let mut shard = self.shard(&key);
        match shard.entry(key.clone()) {
            hash_map::Entry::Vacant(free) => {
                free.insert(LocalQueue::default());
                Ok(LocalTurn::new(self, key))
            }
            hash_map::Entry::Occupied(queue) => {
                let (holder, seen) = (queue.get().holder.clone(), queue.get().seen.clone());
                drop(shard);
                Err(believed(holder, seen))
            }
        }
    }

    /// The probable holder of the lock, as far as tasks of this process know.
    pub(crate) fn believed_holder(&self, name: &LockName) -> Option<HolderInfo> {
        let key = self.key(name);
        let (holder, seen) = {
            let shard = self.shard(&key);
            let queue = shard.get(&key)?;
            (queue.holder.clone(), queue.seen.clone())
        };
        believed(holder, seen)
    }

    /// Notes the holder in another process. A task that no longer has the turn calls this.
    pub(crate) fn note_holder(&self, name: &LockName, holder: Option<&HolderInfo>) {
        let key = self.key(name);
        if let Some(queue) = self.shard(&key).get_mut(&key) {
            queue.set_holder(holder);
        }
    }

    /// Notes the error of an attempt while the store is unreachable.
    pub(crate) fn note_outage(&self, name: &LockName, error: &Error) {
        let key = self.key(name);
        if let Some(queue) = self.shard(&key).get_mut(&key) {
            queue.outage = Some(error.clone());
        }
    }

    /// The error of the last attempt, while the store is unreachable.
    pub(crate) fn outage(&self, name: &LockName) -> Option<Error> {
        let key = self.key(name);
        self.shard(&key).get(&key)?.outage.clone()
    }

    /// The number of tasks of this process that hold a lock or wait for one.
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                shard
                    .values()
                    .map(|queue| queue.waiting.len() + 1)
                    .sum::<usize>()
            })
            .sum()
    }

    /// Takes the next waiter of a name. Removes the queue when no waiter is left.
    fn pop_or_remove_queue(&self, key: &HashedName) -> Option<LocalWaiter> {
        let mut shard = self.shard(key);
        let queue = shard.get_mut(key)?;
        queue.hand_overs = 0;
        let waiter = queue.pop();
        if waiter.is_none() {
            shard.remove(key);
        }
        waiter
    }

    fn key(&self, name: &LockName) -> HashedName {
        HashedName {
            hash: self.hasher.hash_one(name),
            name: name.clone(),
        }
    }

    fn shard(&self, key: &HashedName) -> MutexGuard<'_, QueueMap> {
        // The shard is chosen by bits from the middle of the hash, because the map inside the shard
        // uses the lowest and the highest bits.
        let at = usize::try_from(key.hash >> 32).unwrap_or(0) % SHARDS;
        self.shards[at].lock()
    }
}

/// Returns the holder in this process if there is one, else the holder that the store reported
/// last. The caller must not hold the queue's mutex: `held_info` may notice that the lease has
/// ended. The lease then drops its turn, which locks that mutex.
fn believed(holder: Option<Weak<LeaseState>>, seen: Option<HolderInfo>) -> Option<HolderInfo> {
    holder
        .and_then(|holder| holder.upgrade())
        .and_then(|holder| holder.held_info())
        .or(seen)
}

/// The right of one task to ask the store for a name on behalf of its process. The drop of this
/// value passes the right to the next waiter.
pub(crate) struct LocalTurn {
    /// The name and its queue; `None` once the right was passed on.
    at: Option<(Arc<LocalQueues>, HashedName)>,
}

impl LocalTurn {
    fn new(queues: &Arc<LocalQueues>, key: HashedName) -> Self {
        Self {
            at: Some((Arc::clone(queues), key)),
        }
    }

    /// Notes that this process holds the lock now.
    pub(crate) fn held_by(&self, holder: Weak<LeaseState>) {
        self.with_queue(|queue| {
            queue.set_holder(None);
            queue.holder = Some(holder);
        });
    }

    /// Notes the holder in another process.
    pub(crate) fn note_holder(&self, holder: Option<&HolderInfo>) {
        self.with_queue(|queue| queue.set_holder(holder));
    }

    /// Takes the next waiter out of the queue, so that the caller can hand the lock over to that
    /// waiter. `None` when no task waits, after `limit` hand-overs in a row, or when the next
    /// waiter comes in order: a hand-over would pass the waiters of other processes.
    pub(crate) fn next_waiter(&self, limit: u32) -> Option<NextWaiter> {
        let next = self.with_queue(|queue| {
            let waiter = (queue.hand_overs < limit).then(|| queue.pop()).flatten()?;
            if waiter.request.in_order {
                queue.waiting.push_front(waiter);
                return None;
            }
            Some(waiter)
        });
        next.flatten().map(|waiter| NextWaiter { waiter })
    }

    /// Counts one hand-over towards the limit.
    pub(crate) fn count_hand_over(&self) {
        self.with_queue(|queue| queue.hand_overs += 1);
    }

    /// Passes the turn to the next waiter, which then asks the store. Without a waiter, the queue
    /// is removed.
    pub(crate) fn pass_on(mut self, step_aside: bool) {
        self.pass_to_next(step_aside);
    }

    fn pass_to_next(&mut self, step_aside: bool) {
        let Some((queues, key)) = self.at.take() else {
            return;
        };
        while let Some(waiter) = queues.pop_or_remove_queue(&key) {
            let turn = Self::new(&queues, key.clone());
            match waiter.sender.send(NextStep::Ask { turn, step_aside }) {
                Ok(()) | Err(NextStep::TakeOver(_)) => return,
                // The waiter gave up in the meantime, so its turn comes back. The turn is made
                // empty here. Otherwise its drop would pass the turn on a second time, beside this
                // loop.
                Err(NextStep::Ask { mut turn, .. }) => turn.at = None,
            }
        }
    }

    fn with_queue<T>(&self, f: impl FnOnce(&mut LocalQueue) -> T) -> Option<T> {
        let (queues, key) = self.at.as_ref()?;
        queues.shard(key).get_mut(key).map(f)
    }
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        self.pass_to_next(false);
    }
}

impl fmt::Debug for LocalTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalTurn")
    }
}

impl LocalQueue {
    /// Notes the holder that the store reported. The store has answered, so the noted outage ends
    /// too.
    fn set_holder(&mut self, holder: Option<&HolderInfo>) {
        self.holder = None;
        self.seen = holder.cloned();
        self.outage = None;
    }

    /// The next waiter that has not given up.
    fn pop(&mut self) -> Option<LocalWaiter> {
        while let Some(waiter) = self.waiting.pop_front() {
            if !waiter.sender.is_closed() {
                return Some(waiter);
            }
        }
        None
    }
}

/// A waiter that was taken out of the queue, so that the lock can be handed over to the waiter.
pub(crate) struct NextWaiter {
    waiter: LocalWaiter,
}

impl NextWaiter {
    pub(crate) const fn request(&self) -> &AcquireRequest {
        &self.waiter.request
    }

    /// Sends the lock to the waiter. When the waiter has gone, the drop of `handed` releases the
    /// lock.
    pub(crate) fn give_lock(self, handed: HandedOver) {
        let _ = self.waiter.sender.send(NextStep::TakeOver(handed));
    }
}

/// A place in the queue, which resolves to the waiter's next step. The drop of this value leaves
/// the queue.
pub(crate) struct LocalPlace {
    queues: Arc<LocalQueues>,
    key: HashedName,
    id: u64,
    receiver: oneshot::Receiver<NextStep>,
}

impl Future for LocalPlace {
    type Output = NextStep;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextStep> {
        match Pin::new(&mut self.receiver).poll(context) {
            Poll::Ready(Ok(turn)) => Poll::Ready(turn),
            // A sender without a message is dropped only when this place leaves the queue, so
            // nobody waits for the step.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        if let Some(queue) = self.queues.shard(&self.key).get_mut(&self.key) {
            queue.waiting.retain(|waiter| waiter.id != self.id);
        }
        // A step that was sent but never received is dropped with the receiver. The turn in the
        // step then passes to the next waiter, and a lock in the step is released.
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::types::{
        ident::{HolderLabel, OwnerId},
        ttl::Ttl,
    };

    fn request(name: &str) -> AcquireRequest {
        AcquireRequest::new(
            LockName::new(name).unwrap(),
            OwnerId::new(),
            Ttl::new(Duration::from_secs(1)).unwrap(),
            HolderLabel::new("test").unwrap(),
        )
    }

    fn first(entered: Entered) -> LocalTurn {
        match entered {
            Entered::First(turn) => turn,
            Entered::Behind(_) => panic!("the queue was not empty"),
        }
    }

    fn behind(entered: Entered) -> LocalPlace {
        match entered {
            Entered::Behind(place) => place,
            Entered::First(_) => panic!("the queue was empty"),
        }
    }

    fn asks(turn: NextStep) -> LocalTurn {
        match turn {
            NextStep::Ask { turn, .. } => turn,
            NextStep::TakeOver(_) => panic!("handed over"),
        }
    }

    #[tokio::test]
    async fn waiters_are_served_in_order_and_empty_queues_are_removed() {
        let queues = LocalQueues::new();
        let turn = first(queues.enter(&request("a")));
        let places: Vec<_> = (0..3)
            .map(|_| behind(queues.enter(&request("a"))))
            .collect();
        assert_eq!(queues.len(), 4);
        drop(first(queues.enter(&request("b"))));
        let mut turn = Some(turn);
        for place in places {
            drop(turn.take());
            turn = Some(asks(place.await));
        }
        assert!(queues.try_enter(&LockName::new("a").unwrap()).is_err());
        drop(turn);
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn waiters_that_gave_up_get_no_turn() {
        let queues = LocalQueues::new();
        let turn = first(queues.enter(&request("a")));
        let gone = behind(queues.enter(&request("a")));
        let also_gone = behind(queues.enter(&request("a")));
        let stays = behind(queues.enter(&request("a")));
        drop(gone);
        drop(turn);
        // `also_gone` has the turn by now, but was never polled.
        drop(also_gone);
        drop(asks(stays.await));
        assert_eq!(queues.len(), 0);
    }
}
