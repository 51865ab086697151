//! The queue inside a process: tasks that want one name line up here, and only the first of them goes to the store.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    fmt,
    future::Future,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::{
    contract::{AcquireRequest, Grant, HolderInfo},
    engine::{
        clock::Moment,
        hash::{AsIs, OfNames},
    },
    types::{error::Error, name::LockName},
};

const SHARDS: usize = 16;

/// All names that tasks of this process hold or want.
pub(crate) struct LocalQueues {
    shards: [Mutex<QueueMap>; SHARDS],
    hasher: OfNames,
}

type QueueMap = HashMap<HashedName, LocalQueue, BuildHasherDefault<AsIs>>;

/// A name that was hashed once: each cycle looks its line up several times.
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

/// The line at one name. It exists as long as somebody has the turn.
#[derive(Default)]
struct LocalQueue {
    waiting: VecDeque<LocalWaiter>,
    next_id: u64,
    /// Hand-overs since the lock was last truly released.
    hand_overs: u32,
    holder: Option<Weak<dyn LocalHolder>>,
    seen: Option<HolderInfo>,
    /// Why the store could not be asked the last time.
    outage: Option<Error>,
}

/// A lease of this process, as the local queue needs it. A trait, because the lease itself keeps the
/// right to act at its name.
pub(crate) trait LocalHolder: Send + Sync {
    /// What others of this process are told of it; `None` once it is not held for sure.
    fn held_info(&self) -> Option<HolderInfo>;
}

struct LocalWaiter {
    id: u64,
    request: AcquireRequest,
    sender: oneshot::Sender<NextStep>,
}

/// What a waiter gets when it is its turn.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// Go and ask the store.
    Ask {
        turn: LocalTurn,
        /// Let other processes go first: wait for one wake-up before the first attempt.
        step_aside: bool,
    },
    /// The one before handed the lock over in the store.
    TakeOver(HandedOver),
}

/// A lock that was handed over, or may have been, and that nobody has picked up yet.
///
/// When it is dropped unclaimed (the waiter was cancelled), `on_abandoned` gives it back.
pub(crate) struct HandedOver {
    pub(crate) unclaimed: Option<NotPickedUp>,
    pub(crate) on_abandoned: OnAbandoned,
}

/// Gives back a lock that was handed over and that nobody picked up.
pub(crate) type OnAbandoned = Arc<dyn Fn(LocalTurn, AcquireRequest) + Send + Sync>;

/// The turn, the grant and when it was asked for (`None` = the store has not said whether it happened), and for whom.
pub(crate) type NotPickedUp = (LocalTurn, Option<(Grant, Moment)>, AcquireRequest);

impl fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandedOver")
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some((turn, _, request)) = self.unclaimed.take() {
            (self.on_abandoned)(turn, request);
        }
    }
}

/// The answer to [`LocalQueues::enter`].
pub(crate) enum Entered {
    /// Nobody was there.
    First(LocalTurn),
    /// Wait for the turn.
    Behind(LocalPlace),
}

impl LocalQueues {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: OfNames::default(),
        })
    }

    /// Takes the turn at a name, or lines up for it.
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

    /// Takes the turn only if nobody is there; otherwise tells who is believed to hold the lock.
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

    /// Who is believed to hold the lock, from what tasks of this process know.
    pub(crate) fn believed_holder(&self, name: &LockName) -> Option<HolderInfo> {
        let key = self.key(name);
        let (holder, seen) = {
            let shard = self.shard(&key);
            let queue = shard.get(&key)?;
            (queue.holder.clone(), queue.seen.clone())
        };
        believed(holder, seen)
    }

    /// Somebody of another process was seen to hold it, by a task that has passed its turn on.
    pub(crate) fn note_holder(&self, name: &LockName, holder: Option<&HolderInfo>) {
        let key = self.key(name);
        if let Some(queue) = self.shard(&key).get_mut(&key) {
            queue.set_holder(holder);
        }
    }

    /// The store could not be asked for it.
    pub(crate) fn note_outage(&self, name: &LockName, error: &Error) {
        let key = self.key(name);
        if let Some(queue) = self.shard(&key).get_mut(&key) {
            queue.outage = Some(error.clone());
        }
    }

    /// Why the store could not be asked the last time, if it could not.
    pub(crate) fn outage(&self, name: &LockName) -> Option<Error> {
        let key = self.key(name);
        self.shard(&key).get(&key)?.outage.clone()
    }

    /// How many tasks of this process hold or want something.
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard
                    .values()
                    .map(|queue| queue.waiting.len() + 1)
                    .sum::<usize>()
            })
            .sum()
    }

    /// The next waiter at a name; when there is none, the line is removed.
    fn pop_or_close(&self, key: &HashedName) -> Option<LocalWaiter> {
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
        // Bits from the middle: the map inside goes by the lowest and the highest.
        let at = usize::try_from(key.hash >> 32).unwrap_or(0) % SHARDS;
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A holder of this process is known better than one of another. The caller does not hold the
/// queue's mutex: the look may find that the lease has ended, which drops the turn and locks it.
fn believed(holder: Option<Weak<dyn LocalHolder>>, seen: Option<HolderInfo>) -> Option<HolderInfo> {
    holder
        .and_then(|holder| holder.upgrade())
        .and_then(|holder| holder.held_info())
        .or(seen)
}

/// The right of one task to act at a name for the whole process. Dropping it lets the next one ask.
pub(crate) struct LocalTurn {
    /// `None` once the right has moved on.
    at: Option<(Arc<LocalQueues>, HashedName)>,
}

impl LocalTurn {
    fn new(queues: &Arc<LocalQueues>, key: HashedName) -> Self {
        Self {
            at: Some((Arc::clone(queues), key)),
        }
    }

    /// The lock is held now, by this.
    pub(crate) fn held_by(&self, holder: Weak<dyn LocalHolder>) {
        self.with_queue(|queue| {
            queue.set_holder(None);
            queue.holder = Some(holder);
        });
    }

    /// Somebody else was seen to hold it.
    pub(crate) fn note_holder(&self, holder: Option<&HolderInfo>) {
        self.with_queue(|queue| queue.set_holder(holder));
    }

    /// Takes the next waiter out of the queue, to hand the lock over to it; `None` when nobody waits or `limit` hand-overs
    /// happened in a row.
    pub(crate) fn next_waiter(&self, limit: u32) -> Option<NextWaiter> {
        self.with_queue(|queue| (queue.hand_overs < limit).then(|| queue.pop()).flatten())?
            .map(|waiter| NextWaiter { waiter })
    }

    /// Counts a hand-over.
    pub(crate) fn count_hand_over(&self) {
        self.with_queue(|queue| queue.hand_overs += 1);
    }

    /// Lets the next waiter ask the store, if there is one.
    pub(crate) fn pass_on(mut self, step_aside: bool) {
        self.pass_to_next(step_aside);
    }

    fn pass_to_next(&mut self, step_aside: bool) {
        let Some((queues, key)) = self.at.take() else {
            return;
        };
        while let Some(waiter) = queues.pop_or_close(&key) {
            let turn = Self::new(&queues, key.clone());
            match waiter.sender.send(NextStep::Ask { turn, step_aside }) {
                Ok(()) | Err(NextStep::TakeOver(_)) => return,
                // It gave up in the meantime; its turn is ours again.
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
    /// The store has said who holds the lock.
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

/// A waiter that was taken out of the line to get the lock itself.
pub(crate) struct NextWaiter {
    waiter: LocalWaiter,
}

impl NextWaiter {
    pub(crate) const fn request(&self) -> &AcquireRequest {
        &self.waiter.request
    }

    /// Gives it the lock. When it has gone, what was handed over lapses by its own drop.
    pub(crate) fn give(self, handed: HandedOver) {
        let _ = self.waiter.sender.send(NextStep::TakeOver(handed));
    }
}

/// A place in the line; resolves to the turn. Dropping it leaves the queue.
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
            // Senders are only dropped after sending, or together with the whole queue.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        if let Some(queue) = self.queues.shard(&self.key).get_mut(&self.key) {
            queue.waiting.retain(|waiter| waiter.id != self.id);
        }
        // A turn that has arrived but was not taken is dropped with the receiver: its turn moves on, its lock lapses.
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
            Entered::Behind(_) => panic!("somebody is there"),
        }
    }

    fn behind(entered: Entered) -> LocalPlace {
        match entered {
            Entered::Behind(place) => place,
            Entered::First(_) => panic!("nobody is there"),
        }
    }

    fn asks(turn: NextStep) -> LocalTurn {
        match turn {
            NextStep::Ask { turn, .. } => turn,
            NextStep::TakeOver(_) => panic!("handed over"),
        }
    }

    #[tokio::test]
    async fn served_in_order_and_empty_lines_vanish() {
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
    async fn those_who_give_up_are_passed_over() {
        let queues = LocalQueues::new();
        let turn = first(queues.enter(&request("a")));
        let gone = behind(queues.enter(&request("a")));
        let also_gone = behind(queues.enter(&request("a")));
        let stays = behind(queues.enter(&request("a")));
        drop(gone);
        drop(turn);
        // Its turn has come, it just never looked.
        drop(also_gone);
        drop(asks(stays.await));
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn an_unclaimed_lock_lapses() {
        let queues = LocalQueues::new();
        let turn = first(queues.enter(&request("a")));
        let place = behind(queues.enter(&request("a")));
        let next = turn.next_waiter(16).unwrap();
        let (lapsed, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let grant = Grant::new(
            crate::FencingToken::new(1).unwrap(),
            crate::Epoch::new("e"),
            Duration::from_secs(1),
        );
        let request = next.request().clone();
        let handed = HandedOver {
            unclaimed: Some((
                turn,
                Some((grant, Moment::from_boot(Duration::ZERO))),
                request,
            )),
            on_abandoned: Arc::new(move |turn, _| {
                drop(turn);
                let _ = lapsed.send(());
            }),
        };
        next.give(handed);
        drop(place);
        seen.recv().await.unwrap();
        assert_eq!(queues.len(), 0);
    }
}
