//! The nodes a session has in queues: who they belong to, what became of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use distlock_core::{FencingToken, HolderInfo, LossFeed, LossReason, LossSender, Moment, OwnerId};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::sequence::Sequence;
use crate::{
    queue::recipe,
    session::{Session, lock},
};

/// A node gets a watch of its own when it is this old: those who come and go quickly never pay for one.
const ARM_AFTER: Duration = Duration::from_millis(25);

/// One contender's node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) owner: OwnerId,
    /// The container's path.
    pub(crate) parent: Arc<str>,
    pub(crate) child: String,
    pub(crate) sequence: Sequence,
    pub(crate) token: FencingToken,
    /// What others of this process need not ask the ensemble for.
    pub(crate) holder: HolderInfo,
    created: Moment,
    status: watch::Sender<Status>,
    /// When the lease that hangs on it runs out, by our clock; only while it is held.
    expires: Mutex<Moment>,
    loss: LossSender,
}

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// A place in the queue.
    Waiting,
    /// A lock that was granted.
    Held,
    /// Nothing any more: it is being deleted.
    Leaving,
    /// Nothing any more: it was taken from us.
    Gone(LossReason),
}

impl Node {
    pub(crate) fn new(
        owner: OwnerId,
        parent: Arc<str>,
        child: String,
        sequence: Sequence,
        token: FencingToken,
        holder: HolderInfo,
        created: Moment,
    ) -> Arc<Self> {
        let (loss, _) = LossFeed::new();
        Arc::new(Self {
            owner,
            parent,
            child,
            sequence,
            token,
            holder,
            created,
            status: watch::Sender::new(Status::Waiting),
            expires: Mutex::new(created),
            loss,
        })
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.parent, self.child)
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.borrow()
    }

    pub(crate) fn follow(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(crate) fn loss(&self) -> LossFeed {
        self.loss.feed()
    }

    /// Whether those behind need not wait for it: its holder has let go, whether or not the ensemble knows yet.
    pub(crate) fn is_out(&self) -> bool {
        matches!(self.status(), Status::Leaving | Status::Gone(_))
    }

    /// It is first: grants the lock, or extends it, until that moment. `false` when it is too late for that.
    pub(crate) fn hold(&self, until: Moment) -> bool {
        self.status.send_if_modified(|status| {
            let alive = matches!(status, Status::Waiting | Status::Held);
            if alive {
                *status = Status::Held;
                *lock(&self.expires) = until;
            }
            alive
        })
    }

    /// Its owner gives it up. `false` when somebody did before.
    pub(crate) fn leave(&self) -> bool {
        self.status.send_if_modified(|status| {
            let alive = matches!(status, Status::Waiting | Status::Held);
            if alive {
                *status = Status::Leaving;
            }
            alive
        })
    }

    /// It was deleted behind our back, or its session ended. A holder is told.
    pub(crate) fn gone(&self, reason: LossReason) -> bool {
        let mut was = Status::Leaving;
        let moved = self.status.send_if_modified(|status| {
            was = *status;
            let alive = matches!(status, Status::Waiting | Status::Held);
            if alive {
                *status = Status::Gone(reason);
            }
            alive
        });
        if moved && was == Status::Held {
            self.loss.lose(reason);
        }
        moved
    }

    /// When something has to be done about it at the latest.
    fn expiry(&self) -> Option<Moment> {
        (self.status() == Status::Held).then(|| *lock(&self.expires))
    }
}

/// An attempt whose creation was sent, and of which nothing was heard: its node may be there or may still appear.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) id: Uuid,
    pub(crate) parent: Arc<str>,
}

/// All nodes of one session.
#[derive(Debug)]
pub(crate) struct Nodes {
    inner: Mutex<Inner>,
    /// Wakes the warden.
    pub(crate) look: Notify,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    by_owner: HashMap<OwnerId, Arc<Node>>,
    by_path: HashMap<String, Arc<Node>>,
    lost: HashMap<OwnerId, Attempt>,
    /// Those without a watch of their own, oldest first.
    fresh: VecDeque<Weak<Node>>,
    /// When the warden looks next by itself; `None` = not before it is woken.
    next_look: Option<Moment>,
    /// No place in a queue is wanted any more.
    closing: bool,
}

/// What the warden has to do now.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) arm: Vec<Arc<Node>>,
    pub(crate) expired: Vec<Arc<Node>>,
    /// `None` = nothing until it is woken.
    pub(crate) pause: Option<Duration>,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::default(),
            look: Notify::new(),
            emptied: Notify::new(),
        }
    }

    pub(crate) fn add(&self, node: &Arc<Node>) {
        let mut inner = self.inner();
        inner.by_owner.insert(node.owner, Arc::clone(node));
        inner.by_path.insert(node.path(), Arc::clone(node));
        inner.fresh.push_back(Arc::downgrade(node));
        self.look_by(inner, node.created + ARM_AFTER);
    }

    pub(crate) fn remove(&self, node: &Arc<Node>) {
        let mut inner = self.inner();
        inner.by_path.remove(&node.path());
        if inner
            .by_owner
            .get(&node.owner)
            .is_some_and(|known| Arc::ptr_eq(known, node))
        {
            inner.by_owner.remove(&node.owner);
        }
        drop(inner);
        self.emptied.notify_one();
    }

    pub(crate) fn of(&self, owner: OwnerId) -> Option<Arc<Node>> {
        self.inner().by_owner.get(&owner).cloned()
    }

    /// Those of `children` that are ours.
    pub(crate) fn at(&self, parent: &str, children: &[String]) -> Vec<Option<Arc<Node>>> {
        let inner = self.inner();
        children
            .iter()
            .map(|child| inner.by_path.get(&format!("{parent}/{child}")).cloned())
            .collect()
    }

    /// Those that stand for a lock.
    pub(crate) fn held(&self) -> Vec<Arc<Node>> {
        let inner = self.inner();
        let nodes = inner.by_owner.values();
        nodes
            .filter(|node| node.status() == Status::Held)
            .cloned()
            .collect()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.inner().closing
    }

    /// Remembers an attempt whose outcome is unknown.
    pub(crate) fn lose_track(&self, owner: OwnerId, attempt: Attempt) {
        self.inner().lost.insert(owner, attempt);
    }

    /// Takes it up again: whoever takes it has to find out.
    pub(crate) fn pick_up(&self, owner: OwnerId) -> Option<Attempt> {
        self.inner().lost.remove(&owner)
    }

    /// A lease ends earlier than the warden may know.
    pub(crate) fn expires(&self, at: Moment) {
        self.look_by(self.inner(), at);
    }

    /// The session is over.
    pub(crate) fn take_all(&self) -> Vec<Arc<Node>> {
        let mut inner = self.inner();
        inner.lost.clear();
        inner.fresh.clear();
        inner.by_path.clear();
        inner.by_owner.drain().map(|(_, node)| node).collect()
    }

    /// Lets go of every place in a queue, and waits until the last lease has run out or was released.
    pub(crate) async fn emptied(&self, session: &Arc<Session>) {
        let waiting: Vec<_> = {
            let mut inner = self.inner();
            inner.closing = true;
            let nodes = inner.by_owner.values();
            nodes
                .filter(|node| node.status() == Status::Waiting)
                .cloned()
                .collect()
        };
        for node in waiting {
            // Those behind it must not wait for the last of our leases.
            if node.gone(LossReason::SessionLost) {
                recipe::delete_at_length(session, node);
            }
        }
        loop {
            let emptied = self.emptied.notified();
            let held = |node: &Arc<Node>| node.status() == Status::Held;
            if session.ended().is_some() || !self.inner().by_owner.values().any(held) {
                return;
            }
            tokio::select! {
                () = emptied => {}
                _ = session.wait_for_end() => return,
            }
        }
    }

    /// What is due.
    pub(crate) fn round(&self, now: Moment) -> Round {
        let mut inner = self.inner();
        let mut arm = Vec::new();
        let mut next: Option<Moment> = None;
        while let Some(oldest) = inner.fresh.front() {
            match oldest.upgrade().filter(|node| !node.is_out()) {
                Some(node) if node.created + ARM_AFTER > now => {
                    next = Some(node.created + ARM_AFTER);
                    break;
                }
                Some(node) => arm.push(node),
                None => {}
            }
            inner.fresh.pop_front();
        }
        let mut expired = Vec::new();
        for node in inner.by_owner.values() {
            match node.expiry() {
                Some(at) if at <= now => expired.push(Arc::clone(node)),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        inner.next_look = next;
        Round {
            arm,
            expired,
            pause: next.map(|at| at.since(now)),
        }
    }

    fn look_by(&self, mut inner: MutexGuard<'_, Inner>, at: Moment) {
        if inner.next_look.is_none_or(|look| at < look) {
            inner.next_look = Some(at);
            drop(inner);
            self.look.notify_one();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}
