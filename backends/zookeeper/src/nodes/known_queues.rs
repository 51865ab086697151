//! Queues whose order is known without listing their children.
//!
//! The servers number a container's children without gaps. So between two nodes of this session
//! with adjacent numbers there is no other contender. Suppose that the nodes of this session have
//! adjacent numbers, and that every node before them is gone. Then only nodes of this session are
//! ahead of the newest one, and no listing is needed.
//!
//! Invariant: an answer of [`KnownQueues::add_created`] depends on nodes of one and the same
//! container. The servers may remove a container, and a new container of the same name counts from
//! zero. So each container that this session uses more than once gets a watch. The servers send the
//! event of a change before the answer to any request that they process after the change. So if no
//! event has come when a creation is answered, the container is still the same.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
};

use distlock_core::sync::Mutex;
use zookeeper_client as zk;

use super::node::Node;

/// The largest number of containers that are remembered.
const MAX_CONTAINERS: usize = 1024;

/// The known queues of the most recently used containers.
#[derive(Debug, Default)]
pub(crate) struct KnownQueues(Mutex<KnownQueueTable>);

#[derive(Debug, Default)]
struct KnownQueueTable {
    queues: HashMap<Arc<str>, KnownQueue>,
    /// A counter of uses. The queues with the lowest `last_used` were used least recently.
    use_count: u64,
}

/// The nodes of this session in one container.
struct KnownQueue {
    /// Nodes with adjacent numbers, oldest first. Every node before the first of them is gone.
    nodes: VecDeque<Arc<Node>>,
    watch: Option<ContainerWatch>,
    /// Whether the request that sets a watch is in flight.
    watch_pending: bool,
    /// Whether the next node of this session probably gets the number after the last of `nodes`.
    next_likely_follows: bool,
    last_used: u64,
}

/// A watch on a container, as the servers keep it for one connection.
pub(crate) struct ContainerWatch {
    /// The number of the connection that the watch was set on.
    pub(crate) connection_number: u64,
    /// The transaction that created the container.
    pub(crate) container_czxid: i64,
    /// Completes when the container changes or is removed.
    pub(crate) changed: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>,
}

impl KnownQueues {
    /// Returns whether the next creation in this container probably needs no listing.
    pub(crate) fn probably_needs_no_listing(&self, parent: &str, connection_number: u64) -> bool {
        let table = self.0.lock();
        table.queues.get(parent).is_some_and(|queue| {
            queue.next_likely_follows
                && !queue.nodes.is_empty()
                && queue.is_watched_on(connection_number)
        })
    }

    /// Adds a node of this session that was created on this connection. Returns the nodes of this
    /// session ahead of it if no other node can be ahead, and `None` if a listing is needed.
    pub(crate) fn add_created(
        &self,
        node: &Arc<Node>,
        connection_number: u64,
    ) -> Option<Vec<Arc<Node>>> {
        let mut table = self.0.lock();
        let queue = table.queues.get_mut(&node.parent)?;
        let follows = queue.is_watched_on(connection_number)
            && !queue.poll_for_change()
            && queue.nodes.back().is_some_and(|last| {
                node.sequence.follows(last.sequence)
                    && queue
                        .watch
                        .as_ref()
                        .is_some_and(|watch| watch.is_older_than(last))
            });
        queue.next_likely_follows = follows;
        if !follows {
            queue.nodes.clear();
            return None;
        }
        queue.nodes.retain(|node| !node.is_leaving_or_gone());
        let ahead = queue.nodes.iter().cloned().collect();
        queue.nodes.push_back(Arc::clone(node));
        Some(ahead)
    }

    /// Records that `node` was granted its lock, and forgets the nodes before `node`. The grant
    /// shows that each of them is gone, or that its owner in this session has released or given up
    /// the lock. `true` = the caller should set a watch on the container.
    pub(crate) fn note_grant(&self, node: &Arc<Node>, connection_number: u64) -> bool {
        let mut table = self.0.lock();
        table.use_count += 1;
        let use_count = table.use_count;
        if let Some(queue) = table.queues.get_mut(&node.parent) {
            queue.last_used = use_count;
            match queue
                .nodes
                .iter()
                .position(|known| Arc::ptr_eq(known, node))
            {
                Some(at) => drop(queue.nodes.drain(..at)),
                None => queue.nodes = VecDeque::from([Arc::clone(node)]),
            }
            let set_watch = !queue.watch_pending && !queue.is_watched_on(connection_number);
            queue.watch_pending |= set_watch;
            return set_watch;
        }
        if table.queues.len() >= MAX_CONTAINERS {
            table.forget_least_used_half();
        }
        let queue = KnownQueue {
            nodes: VecDeque::from([Arc::clone(node)]),
            watch: None,
            watch_pending: false,
            next_likely_follows: false,
            last_used: use_count,
        };
        table.queues.insert(Arc::clone(&node.parent), queue);
        // The first use sets no watch, because many names are used only once.
        false
    }

    /// Forgets all queues, at the end of the session.
    pub(crate) fn clear(&self) {
        let queues = std::mem::take(&mut self.0.lock().queues);
        // The queues are dropped outside of the mutex, because dropping a watch sends a request.
        drop(queues);
    }

    /// Stores the result of a request for a watch on this container; `None` = the request failed.
    pub(crate) fn set_watch(&self, parent: &str, watch: Option<ContainerWatch>) {
        let mut table = self.0.lock();
        if let Some(queue) = table.queues.get_mut(parent) {
            queue.watch_pending = false;
            queue.next_likely_follows = watch.is_some();
            queue.watch = watch;
        }
    }
}

impl KnownQueueTable {
    /// Forgets the half of the queues that were used least recently.
    fn forget_least_used_half(&mut self) {
        let mut used: Vec<_> = self.queues.values().map(|queue| queue.last_used).collect();
        used.sort_unstable();
        let newest = used[used.len() / 2];
        self.queues.retain(|_, queue| queue.last_used >= newest);
    }
}

impl KnownQueue {
    fn is_watched_on(&self, connection_number: u64) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.connection_number == connection_number)
    }

    /// Returns whether the container has changed or was removed since the watch was set, or has no
    /// watch. Drops a watch that has fired.
    fn poll_for_change(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return true;
        };
        let fired = watch
            .changed
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        if fired {
            self.watch = None;
        }
        fired
    }
}

impl ContainerWatch {
    /// Returns whether the watched container is older than the node. Then the node is in this
    /// container, and not in an earlier container of the same name.
    fn is_older_than(&self, node: &Node) -> bool {
        i64::try_from(node.token.get()).is_ok_and(|created| self.container_czxid < created)
    }
}

impl fmt::Debug for KnownQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownQueue")
            .field("nodes", &self.nodes.len())
            .field("watched", &self.watch.is_some())
            .finish_non_exhaustive()
    }
}
