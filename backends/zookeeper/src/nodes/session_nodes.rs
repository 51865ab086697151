//! The nodes a session has in queues: who they belong to, what became of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use distlock_core::{Moment, OwnerId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::node::{Node, Status};
use crate::sync::lock;

/// A node gets a watch of its own when it is this old: those who come and go quickly never pay for one.
const ARM_AFTER: Duration = Duration::from_millis(25);

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

    /// Refuses places in queues from now on, and answers with those that wait.
    pub(crate) fn begin_closing(&self) -> Vec<Arc<Node>> {
        let mut inner = self.inner();
        inner.closing = true;
        let nodes = inner.by_owner.values();
        nodes
            .filter(|node| node.status() == Status::Waiting)
            .cloned()
            .collect()
    }

    /// Waits until a node is removed, counted from the call.
    pub(crate) fn removed(&self) -> impl Future<Output = ()> {
        self.emptied.notified()
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
