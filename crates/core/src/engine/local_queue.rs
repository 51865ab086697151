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
pub(crate) struct Queues {
    shards: [Mutex<Lines>; SHARDS],
    hasher: OfNames,
}

type Lines = HashMap<Key, Line, BuildHasherDefault<AsIs>>;

/// A name that was hashed once: each cycle looks its line up several times.
#[derive(Clone)]
struct Key {
    hash: u64,
    name: LockName,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for Key {}

/// The line at one name. It exists as long as somebody has the seat.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiter>,
    next_id: u64,
    /// Hand-overs since the lock was last truly released.
    run: u32,
    holder: Option<Weak<dyn LocalHolder>>,
    seen: Option<HolderInfo>,
    /// Why the store could not be asked the last time.
    away: Option<Error>,
}

/// A lease of this process, as the local queue needs it. A trait, because the lease itself keeps the
/// right to act at its name.
pub(crate) trait LocalHolder: Send + Sync {
    /// What others of this process are told of it; `None` once it is not held for sure.
    fn held_info(&self) -> Option<HolderInfo>;
}

struct Waiter {
    id: u64,
    request: AcquireRequest,
    turn: oneshot::Sender<Turn>,
}

/// What a waiter gets when it is its turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Go and ask the store.
    Ask {
        seat: Seat,
        /// Let other processes go first: wait for one wake-up before the first attempt.
        step_aside: bool,
    },
    /// The one before handed the lock over in the store.
    Handed(Handed),
}

/// A lock that was handed over, or may have been, and that nobody has picked up yet.
///
/// When it is dropped unclaimed (the waiter was cancelled), `on_abandoned` gives it back.
pub(crate) struct Handed {
    pub(crate) claim: Option<Unclaimed>,
    pub(crate) on_abandoned: OnAbandoned,
}

/// Gives back a lock that was handed over and that nobody picked up.
pub(crate) type OnAbandoned = Arc<dyn Fn(Seat, AcquireRequest) + Send + Sync>;

/// The seat, the grant and when it was asked for (`None` = the store has not said whether it happened), and for whom.
pub(crate) type Unclaimed = (Seat, Option<(Grant, Moment)>, AcquireRequest);

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handed")
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some((seat, _, request)) = self.claim.take() {
            (self.on_abandoned)(seat, request);
        }
    }
}

/// The answer to [`Queues::enter`].
pub(crate) enum Entered {
    /// Nobody was there.
    First(Seat),
    /// Wait for the turn.
    Behind(Place),
}

impl Queues {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: OfNames::default(),
        })
    }

    /// Takes the seat at a name, or lines up for it.
    pub(crate) fn enter(self: &Arc<Self>, request: &AcquireRequest) -> Entered {
        let key = self.key(&request.name);
        match self.shard(&key).entry(key.clone()) {
            hash_map::Entry::Vacant(free) => {
                free.insert(Line::default());
                Entered::First(Seat::new(self, key))
            }
            hash_map::Entry::Occupied(mut line) => {
                let line = line.get_mut();
                let (turn, receiver) = oneshot::channel();
                line.next_id += 1;
                let id = line.next_id;
                line.waiting.push_back(Waiter {
                    id,
                    request: request.clone(),
                    turn,
                });
                Entered::Behind(Place {
                    queues: Arc::clone(self),
                    key,
                    id,
                    receiver,
                })
            }
        }
    }

    /// Takes the seat only if nobody is there; otherwise tells who is believed to hold the lock.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &LockName) -> Result<Seat, Option<HolderInfo>> {
        let key = self.key(name);
        let mut shard = self.shard(&key);
        match shard.entry(key.clone()) {
            hash_map::Entry::Vacant(free) => {
                free.insert(Line::default());
                Ok(Seat::new(self, key))
            }
            hash_map::Entry::Occupied(line) => {
                let (holder, seen) = (line.get().holder.clone(), line.get().seen.clone());
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
            let line = shard.get(&key)?;
            (line.holder.clone(), line.seen.clone())
        };
        believed(holder, seen)
    }

    /// Somebody of another process was seen to hold it, by a task that has passed its seat on.
    pub(crate) fn seen(&self, name: &LockName, holder: Option<&HolderInfo>) {
        let key = self.key(name);
        if let Some(line) = self.shard(&key).get_mut(&key) {
            line.saw(holder);
        }
    }

    /// The store could not be asked for it.
    pub(crate) fn away(&self, name: &LockName, error: &Error) {
        let key = self.key(name);
        if let Some(line) = self.shard(&key).get_mut(&key) {
            line.away = Some(error.clone());
        }
    }

    /// Why the store could not be asked the last time, if it could not.
    pub(crate) fn is_away(&self, name: &LockName) -> Option<Error> {
        let key = self.key(name);
        self.shard(&key).get(&key)?.away.clone()
    }

    /// How many tasks of this process hold or want something.
    pub(crate) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard
                    .values()
                    .map(|line| line.waiting.len() + 1)
                    .sum::<usize>()
            })
            .sum()
    }

    /// The next waiter at a name; when there is none, the line is removed.
    fn pop_or_close(&self, key: &Key) -> Option<Waiter> {
        let mut shard = self.shard(key);
        let line = shard.get_mut(key)?;
        line.run = 0;
        let waiter = line.pop();
        if waiter.is_none() {
            shard.remove(key);
        }
        waiter
    }

    fn key(&self, name: &LockName) -> Key {
        Key {
            hash: self.hasher.hash_one(name),
            name: name.clone(),
        }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Lines> {
        // Bits from the middle: the map inside goes by the lowest and the highest.
        let at = usize::try_from(key.hash >> 32).unwrap_or(0) % SHARDS;
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A holder of this process is known better than one of another. The caller does not hold the
/// queue's mutex: the look may find that the lease has ended, which drops the seat and locks it.
fn believed(holder: Option<Weak<dyn LocalHolder>>, seen: Option<HolderInfo>) -> Option<HolderInfo> {
    holder
        .and_then(|holder| holder.upgrade())
        .and_then(|holder| holder.held_info())
        .or(seen)
}

/// The right of one task to act at a name for the whole process. Dropping it lets the next one ask.
pub(crate) struct Seat {
    /// `None` once the right has moved on.
    at: Option<(Arc<Queues>, Key)>,
}

impl Seat {
    fn new(queues: &Arc<Queues>, key: Key) -> Self {
        Self {
            at: Some((Arc::clone(queues), key)),
        }
    }

    /// The lock is held now, by this.
    pub(crate) fn occupied_by(&self, holder: Weak<dyn LocalHolder>) {
        self.with_line(|line| {
            line.saw(None);
            line.holder = Some(holder);
        });
    }

    /// Somebody else was seen to hold it.
    pub(crate) fn seen(&self, holder: Option<&HolderInfo>) {
        self.with_line(|line| line.saw(holder));
    }

    /// Takes the next waiter out of the line, to hand the lock over to it; `None` when nobody waits or `limit` hand-overs
    /// happened in a row.
    pub(crate) fn next(&self, limit: u32) -> Option<Next> {
        self.with_line(|line| (line.run < limit).then(|| line.pop()).flatten())?
            .map(|waiter| Next { waiter })
    }

    /// Counts a hand-over.
    pub(crate) fn handed_over(&self) {
        self.with_line(|line| line.run += 1);
    }

    /// Lets the next waiter ask the store, if there is one.
    pub(crate) fn pass(mut self, step_aside: bool) {
        self.move_on(step_aside);
    }

    fn move_on(&mut self, step_aside: bool) {
        let Some((queues, key)) = self.at.take() else {
            return;
        };
        while let Some(waiter) = queues.pop_or_close(&key) {
            let seat = Self::new(&queues, key.clone());
            match waiter.turn.send(Turn::Ask { seat, step_aside }) {
                Ok(()) | Err(Turn::Handed(_)) => return,
                // It gave up in the meantime; its seat is ours again.
                Err(Turn::Ask { mut seat, .. }) => seat.at = None,
            }
        }
    }

    fn with_line<T>(&self, f: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let (queues, key) = self.at.as_ref()?;
        queues.shard(key).get_mut(key).map(f)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.move_on(false);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}

impl Line {
    /// The store has said who holds the lock.
    fn saw(&mut self, holder: Option<&HolderInfo>) {
        self.holder = None;
        self.seen = holder.cloned();
        self.away = None;
    }

    /// The next waiter that has not given up.
    fn pop(&mut self) -> Option<Waiter> {
        while let Some(waiter) = self.waiting.pop_front() {
            if !waiter.turn.is_closed() {
                return Some(waiter);
            }
        }
        None
    }
}

/// A waiter that was taken out of the line to get the lock itself.
pub(crate) struct Next {
    waiter: Waiter,
}

impl Next {
    pub(crate) const fn request(&self) -> &AcquireRequest {
        &self.waiter.request
    }

    /// Gives it the lock. When it has gone, what was handed over lapses by its own drop.
    pub(crate) fn give(self, handed: Handed) {
        let _ = self.waiter.turn.send(Turn::Handed(handed));
    }
}

/// A place in the line; resolves to the turn. Dropping it leaves the line.
pub(crate) struct Place {
    queues: Arc<Queues>,
    key: Key,
    id: u64,
    receiver: oneshot::Receiver<Turn>,
}

impl Future for Place {
    type Output = Turn;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn> {
        match Pin::new(&mut self.receiver).poll(context) {
            Poll::Ready(Ok(turn)) => Poll::Ready(turn),
            // Senders are only dropped after sending, or together with the whole queue.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(line) = self.queues.shard(&self.key).get_mut(&self.key) {
            line.waiting.retain(|waiter| waiter.id != self.id);
        }
        // A turn that has arrived but was not taken is dropped with the receiver: its seat moves on, its lock lapses.
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

    fn first(entered: Entered) -> Seat {
        match entered {
            Entered::First(seat) => seat,
            Entered::Behind(_) => panic!("somebody is there"),
        }
    }

    fn behind(entered: Entered) -> Place {
        match entered {
            Entered::Behind(place) => place,
            Entered::First(_) => panic!("nobody is there"),
        }
    }

    fn asks(turn: Turn) -> Seat {
        match turn {
            Turn::Ask { seat, .. } => seat,
            Turn::Handed(_) => panic!("handed over"),
        }
    }

    #[tokio::test]
    async fn served_in_order_and_empty_lines_vanish() {
        let queues = Queues::new();
        let seat = first(queues.enter(&request("a")));
        let places: Vec<_> = (0..3)
            .map(|_| behind(queues.enter(&request("a"))))
            .collect();
        assert_eq!(queues.len(), 4);
        drop(first(queues.enter(&request("b"))));
        let mut seat = Some(seat);
        for place in places {
            drop(seat.take());
            seat = Some(asks(place.await));
        }
        assert!(queues.try_enter(&LockName::new("a").unwrap()).is_err());
        drop(seat);
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn those_who_give_up_are_passed_over() {
        let queues = Queues::new();
        let seat = first(queues.enter(&request("a")));
        let gone = behind(queues.enter(&request("a")));
        let also_gone = behind(queues.enter(&request("a")));
        let stays = behind(queues.enter(&request("a")));
        drop(gone);
        drop(seat);
        // Its turn has come, it just never looked.
        drop(also_gone);
        drop(asks(stays.await));
        assert_eq!(queues.len(), 0);
    }

    #[tokio::test]
    async fn an_unclaimed_lock_lapses() {
        let queues = Queues::new();
        let seat = first(queues.enter(&request("a")));
        let place = behind(queues.enter(&request("a")));
        let next = seat.next(16).unwrap();
        let (lapsed, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let grant = Grant::new(
            crate::FencingToken::new(1).unwrap(),
            crate::Epoch::new("e"),
            Duration::from_secs(1),
        );
        let request = next.request().clone();
        let handed = Handed {
            claim: Some((
                seat,
                Some((grant, Moment::from_boot(Duration::ZERO))),
                request,
            )),
            on_abandoned: Arc::new(move |seat, _| {
                drop(seat);
                let _ = lapsed.send(());
            }),
        };
        next.give(handed);
        drop(place);
        seen.recv().await.unwrap();
        assert_eq!(queues.len(), 0);
    }
}
