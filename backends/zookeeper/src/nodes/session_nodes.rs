//! All contenders' nodes of one session, and the work that is due for them.
//!
//! Invariant: `by_path` has every node that is not known to be deleted, and `by_owner` has the
//! newest node of each owner. The mutex is held only while the tables are read or changed, never
//! across an await.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::{
    Moment, OwnerId,
    sync::{Mutex, MutexGuard},
};
use tokio::sync::Notify;
use uuid::Uuid;

use super::node::{Node, NodeStatus};

/// The age at which a node gets its own watch. A lock that is held for a shorter time costs no
/// request for a watch.
const WATCH_AFTER: Duration = Duration::from_millis(25);

/// A creation without an answer so far: the node may exist, or may still appear.
#[derive(Clone, Debug)]
pub(crate) struct UnknownCreation {
    /// The id of the attempt; the name of the node starts with it.
    pub(crate) id: Uuid,
    /// The path of the container.
    pub(crate) parent: Arc<str>,
}

/// All contenders' nodes of one session.
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
    /// Creations without an answer, and the moment at which each is undone unless its attempt has
    /// taken it before. Whoever takes a creation out of this table decides about its node.
    unknown: HashMap<OwnerId, (UnknownCreation, Moment)>,
    /// Nodes that have no watch yet, oldest first.
    unwatched: VecDeque<Weak<Node>>,
    /// The moment at which the lease watch next looks for due work if nothing wakes it; `None` =
    /// never.
    next_wake: Option<Moment>,
    /// Whether the store is closing, so that no new queue entry may be made.
    closing: bool,
}

/// The work that is due for a session's nodes.
#[derive(Debug)]
pub(crate) struct DueWork {
    /// Nodes that need a watch of their own now.
    pub(crate) to_watch: Vec<Arc<Node>>,
    /// Nodes of held locks whose leases have ended, and nodes of contenders that have lost their
    /// queue entries.
    pub(crate) expired: Vec<Arc<Node>>,
    /// Creations that no attempt waits for any more.
    pub(crate) to_undo: Vec<UnknownCreation>,
    /// The time until more work is due; `None` = no more work is planned.
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

    /// Adds a new node. The lease watch will set a watch on the node.
    pub(crate) fn add(&self, node: &Arc<Node>) {
        let mut tables = self.tables.lock();
        tables.by_owner.insert(node.owner, Arc::clone(node));
        tables.by_path.insert(node.path(), Arc::clone(node));
        tables.unwatched.push_back(Arc::downgrade(node));
        self.schedule_wake(tables, node.created + WATCH_AFTER);
    }

    /// Removes a node that is deleted. A newer node of the same owner stays.
    pub(crate) fn remove(&self, node: &Arc<Node>) {
        let mut tables = self.tables.lock();
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

    /// Returns the newest node of this owner.
    pub(crate) fn find_by_owner(&self, owner: OwnerId) -> Option<Arc<Node>> {
        self.tables.lock().by_owner.get(&owner).cloned()
    }

    /// Returns for each of the `children` the node of this session, or `None` when the child is a
    /// node of another session.
    pub(crate) fn find_own_nodes(
        &self,
        parent: &str,
        children: &[String],
    ) -> Vec<Option<Arc<Node>>> {
        let tables = self.tables.lock();
        children
            .iter()
            .map(|child| tables.by_path.get(&format!("{parent}/{child}")).cloned())
            .collect()
    }

    /// Returns the nodes of held locks.
    pub(crate) fn held_nodes(&self) -> Vec<Arc<Node>> {
        let tables = self.tables.lock();
        let nodes = tables.by_owner.values();
        nodes
            .filter(|node| node.status() == NodeStatus::Held)
            .cloned()
            .collect()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.tables.lock().closing
    }

    /// Stores a creation that is sent now or was sent before. The lease watch undoes it at
    /// `undo_at`, unless it is taken before.
    pub(crate) fn remember_unknown(
        &self,
        owner: OwnerId,
        creation: UnknownCreation,
        undo_at: Moment,
    ) {
        let mut tables = self.tables.lock();
        tables.unknown.insert(owner, (creation, undo_at));
        self.schedule_wake(tables, undo_at);
    }

    /// Changes the moment at which a stored creation is undone.
    pub(crate) fn undo_unknown_at(&self, owner: OwnerId, undo_at: Moment) {
        let mut tables = self.tables.lock();
        if let Some((_, at)) = tables.unknown.get_mut(&owner) {
            *at = undo_at;
            self.schedule_wake(tables, undo_at);
        }
    }

    /// Removes the stored creation of this owner and returns it. The caller then has to find out
    /// whether the node exists.
    pub(crate) fn take_unknown(&self, owner: OwnerId) -> Option<UnknownCreation> {
        let taken = self.tables.lock().unknown.remove(&owner);
        taken.map(|(creation, _)| creation)
    }

    /// Schedules a look for due work at the end of a lease.
    pub(crate) fn note_lease_end(&self, at: Moment) {
        self.schedule_wake(self.tables.lock(), at);
    }

    /// Empties the tables at the end of the session. Returns the newest node of each owner.
    pub(crate) fn take_all(&self) -> Vec<Arc<Node>> {
        let mut tables = self.tables.lock();
        tables.unknown.clear();
        tables.unwatched.clear();
        tables.by_path.clear();
        tables.by_owner.drain().map(|(_, node)| node).collect()
    }

    /// Refuses new queue entries from now on. Returns the nodes that wait.
    pub(crate) fn begin_closing(&self) -> Vec<Arc<Node>> {
        let mut tables = self.tables.lock();
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

    /// Returns the work that is due at `now`. A node to watch is returned only once.
    pub(crate) fn take_due_work(&self, now: Moment) -> DueWork {
        let mut tables = self.tables.lock();
        let mut to_watch = Vec::new();
        let mut next: Option<Moment> = None;
        while let Some(oldest) = tables.unwatched.front() {
            match oldest.upgrade().filter(|node| !node.is_leaving_or_gone()) {
                Some(node) if node.created + WATCH_AFTER > now => {
                    next = Some(node.created + WATCH_AFTER);
                    break;
                }
                Some(node) => to_watch.push(node),
                None => {}
            }
            tables.unwatched.pop_front();
        }
        let mut sooner = |at: Moment| next = Some(next.map_or(at, |next| next.min(at)));
        let mut expired = Vec::new();
        for node in tables.by_owner.values() {
            match node.expires() {
                Some(at) if at <= now => expired.push(Arc::clone(node)),
                Some(at) => sooner(at),
                None => {}
            }
        }
        let due = tables.unknown.extract_if(|_, (_, undo_at)| {
            let is_due = *undo_at <= now;
            if !is_due {
                sooner(*undo_at);
            }
            is_due
        });
        let to_undo = due.map(|(_, (creation, _))| creation).collect();
        tables.next_wake = next;
        DueWork {
            to_watch,
            expired,
            to_undo,
            pause: next.map(|at| at.since(now)),
        }
    }

    /// Wakes the lease watch if its next look for due work would come after `at`.
    fn schedule_wake(&self, mut tables: MutexGuard<'_, NodeTables>, at: Moment) {
        if tables.next_wake.is_none_or(|wake| at < wake) {
            tables.next_wake = Some(at);
            drop(tables);
            self.work_added.notify_one();
        }
    }
}
