//! All nodes of one session in queues, and the work that is due for them.
//!
//! Invariant: `by_path` has every node that is not known to be deleted, and `by_owner` has the
//! newest node of each owner. The mutex is held only to read or to change the tables, never across
//! an await.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use distlock_core::{Moment, OwnerId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::node::{Node, NodeStatus};
use crate::sync::lock;

/// A node gets a watch of its own at this age, so a lock that is held briefly costs no watch.
const WATCH_AFTER: Duration = Duration::from_millis(25);

/// A creation with an unknown outcome: the node may exist, or may still appear.
#[derive(Clone, Debug)]
pub(crate) struct UnknownCreation {
    pub(crate) id: Uuid,
    pub(crate) parent: Arc<str>,
}

/// All nodes of one session in queues.
#[derive(Debug)]
pub(crate) struct SessionNodes {
    tables: Mutex<NodeTables>,
    /// Wakes the session's lease watch.
    pub(crate) work_added: Notify,
    node_removed: Notify,
}

#[derive(Debug, Default)]
struct NodeTables {
    by_owner: HashMap<OwnerId, Arc<Node>>,
    by_path: HashMap<String, Arc<Node>>,
    unknown: HashMap<OwnerId, UnknownCreation>,
    /// Nodes that have no watch yet, oldest first.
    unwatched: VecDeque<Weak<Node>>,
    /// When the lease watch looks next by itself; `None` = not before it is woken.
    next_wake: Option<Moment>,
    /// The store is closing: no new queue entry is made.
    closing: bool,
}

/// The work that is due for a session's nodes.
#[derive(Debug)]
pub(crate) struct DueWork {
    pub(crate) to_watch: Vec<Arc<Node>>,
    pub(crate) expired: Vec<Arc<Node>>,
    /// How long nothing more is due; `None` = until new work wakes the lease watch.
    pub(crate) pause: Option<Duration>,
}

impl SessionNodes {
    pub(crate) fn new() -> Self {
        Self {
            tables: Mutex::default(),
            work_added: Notify::new(),
            node_removed: Notify::new(),
        }
    }

    pub(crate) fn add(&self, node: &Arc<Node>) {
        let mut tables = self.tables();
        tables.by_owner.insert(node.owner, Arc::clone(node));
        tables.by_path.insert(node.path(), Arc::clone(node));
        tables.unwatched.push_back(Arc::downgrade(node));
        self.wake_by(tables, node.created + WATCH_AFTER);
    }

    pub(crate) fn remove(&self, node: &Arc<Node>) {
        let mut tables = self.tables();
        tables.by_path.remove(&node.path());
        if tables
            .by_owner
            .get(&node.owner)
            .is_some_and(|known| Arc::ptr_eq(known, node))
        {
            tables.by_owner.remove(&node.owner);
        }
        drop(tables);
        self.node_removed.notify_one();
    }

    pub(crate) fn of_owner(&self, owner: OwnerId) -> Option<Arc<Node>> {
        self.tables().by_owner.get(&owner).cloned()
    }

    /// The nodes of this session among `children`, each at its child's position.
    pub(crate) fn own_children(&self, parent: &str, children: &[String]) -> Vec<Option<Arc<Node>>> {
        let tables = self.tables();
        children
            .iter()
            .map(|child| tables.by_path.get(&format!("{parent}/{child}")).cloned())
            .collect()
    }

    /// The nodes of held locks.
    pub(crate) fn held(&self) -> Vec<Arc<Node>> {
        let tables = self.tables();
        let nodes = tables.by_owner.values();
        nodes
            .filter(|node| node.status() == NodeStatus::Held)
            .cloned()
            .collect()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.tables().closing
    }

    /// Remembers a creation whose outcome is unknown.
    pub(crate) fn remember_unknown(&self, owner: OwnerId, creation: UnknownCreation) {
        self.tables().unknown.insert(owner, creation);
    }

    /// Takes such a creation. The caller then has to find out whether the node exists.
    pub(crate) fn take_unknown(&self, owner: OwnerId) -> Option<UnknownCreation> {
        self.tables().unknown.remove(&owner)
    }

    /// Notes a lease end, which may be earlier than the next planned look.
    pub(crate) fn note_lease_end(&self, at: Moment) {
        self.wake_by(self.tables(), at);
    }

    /// Empties the tables at the end of the session.
    pub(crate) fn take_all(&self) -> Vec<Arc<Node>> {
        let mut tables = self.tables();
        tables.unknown.clear();
        tables.unwatched.clear();
        tables.by_path.clear();
        tables.by_owner.drain().map(|(_, node)| node).collect()
    }

    /// Refuses new queue entries from now on, and answers with the entries that wait.
    pub(crate) fn begin_closing(&self) -> Vec<Arc<Node>> {
        let mut tables = self.tables();
        tables.closing = true;
        let nodes = tables.by_owner.values();
        nodes
            .filter(|node| node.status() == NodeStatus::Waiting)
            .cloned()
            .collect()
    }

    /// Waits for the next removal of a node, counted from this call.
    pub(crate) fn next_removal(&self) -> impl Future<Output = ()> {
        self.node_removed.notified()
    }

    /// The work that is due at `now`.
    pub(crate) fn due_work(&self, now: Moment) -> DueWork {
        let mut tables = self.tables();
        let mut to_watch = Vec::new();
        let mut next: Option<Moment> = None;
        while let Some(oldest) = tables.unwatched.front() {
            match oldest.upgrade().filter(|node| !node.has_let_go()) {
                Some(node) if node.created + WATCH_AFTER > now => {
                    next = Some(node.created + WATCH_AFTER);
                    break;
                }
                Some(node) => to_watch.push(node),
                None => {}
            }
            tables.unwatched.pop_front();
        }
        let mut expired = Vec::new();
        for node in tables.by_owner.values() {
            match node.lease_end() {
                Some(at) if at <= now => expired.push(Arc::clone(node)),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        tables.next_wake = next;
        DueWork {
            to_watch,
            expired,
            pause: next.map(|at| at.since(now)),
        }
    }

    fn wake_by(&self, mut tables: MutexGuard<'_, NodeTables>, at: Moment) {
        if tables.next_wake.is_none_or(|wake| at < wake) {
            tables.next_wake = Some(at);
            drop(tables);
            self.work_added.notify_one();
        }
    }

    fn tables(&self) -> MutexGuard<'_, NodeTables> {
        lock(&self.tables)
    }
}
