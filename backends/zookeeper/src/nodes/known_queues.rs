//! Queues whose order is known without listing their children.
//!
//! The servers number a container's children without gaps. So a client that creates the node right
//! after one of our nodes is behind us, with no contender in between. If every node before our
//! nodes has gone, and our nodes follow each other without a gap, then the newest of our nodes
//! needs no listing: only our nodes are ahead of it.
//!
//! Invariant: an answer of [`KnownQueues::add_created`] rests on nodes of one and the same
//! container. The servers may remove a container, and a new one of the same name counts from zero.
//! So each container that is used again gets a watch. The servers send the event of a change before
//! the answer to any request that they process after the change. So if no event has come when a
//! creation is answered, the container is still the same.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Waker},
};

use zookeeper_client as zk;

use super::node::Node;
use crate::sync::lock;

/// Most containers that are remembered.
const MAX_CONTAINERS: usize = 1024;

/// The known queues of the containers that were used lately.
#[derive(Debug, Default)]
pub(crate) struct KnownQueues(Mutex<KnownQueueTable>);

#[derive(Debug, Default)]
struct KnownQueueTable {
    queues: HashMap<Arc<str>, KnownQueue>,
    /// Rises with every use, to find the entries that were used least recently.
    now: u64,
}

/// Our nodes in one container.
struct KnownQueue {
    /// Without a gap in their numbers. Every node before the first of them has gone.
    nodes: VecDeque<Arc<Node>>,
    watch: Option<ContainerWatch>,
    /// Whether the request that sets a watch is in flight.
    watch_pending: bool,
    /// Whether the next creation probably follows the last of them.
    likely: bool,
    used: u64,
}

pub(crate) struct ContainerWatch {
    /// The number of the connection that the watch was set on.
    pub(crate) connection_number: u64,
    /// The transaction that created the container.
    pub(crate) created_by: i64,
    pub(crate) changed: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>,
}

impl KnownQueues {
    /// Whether the next creation in this container probably needs no listing.
    pub(crate) fn can_skip_listing(&self, parent: &str, connection_number: u64) -> bool {
        let table = self.table();
        table.queues.get(parent).is_some_and(|queue| {
            queue.likely && !queue.nodes.is_empty() && queue.is_watched_on(connection_number)
        })
    }

    /// Adds a node of ours that was created on this connection. Answers with our nodes ahead of it
    /// if no other node can be ahead, and with `None` if a listing is needed.
    pub(crate) fn add_created(
        &self,
        node: &Arc<Node>,
        connection_number: u64,
    ) -> Option<Vec<Arc<Node>>> {
        let mut table = self.table();
        let queue = table.queues.get_mut(&node.parent)?;
        let follows = queue.is_watched_on(connection_number)
            && !queue.has_changed()
            && queue.nodes.back().is_some_and(|last| {
                node.sequence.follows(last.sequence)
                    && queue
                        .watch
                        .as_ref()
                        .is_some_and(|watch| watch.is_older_than(last))
            });
        queue.likely = follows;
        if !follows {
            queue.nodes.clear();
            return None;
        }
        queue.nodes.retain(|node| !node.has_let_go());
        let ahead = queue.nodes.iter().cloned().collect();
        queue.nodes.push_back(Arc::clone(node));
        Some(ahead)
    }

    /// Notes the grant of a lock: every node before this one has gone. `true` = the caller should
    /// set a watch on this container.
    pub(crate) fn granted(&self, node: &Arc<Node>, connection_number: u64) -> bool {
        let mut table = self.table();
        table.now += 1;
        let now = table.now;
        if let Some(queue) = table.queues.get_mut(&node.parent) {
            queue.used = now;
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
            table.forget_half();
        }
        let queue = KnownQueue {
            nodes: VecDeque::from([Arc::clone(node)]),
            watch: None,
            watch_pending: false,
            likely: false,
            used: now,
        };
        table.queues.insert(Arc::clone(&node.parent), queue);
        // No watch yet, because many names are used only once.
        false
    }

    /// Forgets everything, at the end of the session.
    pub(crate) fn clear(&self) {
        let queues = std::mem::take(&mut self.table().queues);
        // Dropped outside of the mutex, because dropping a watch sends a request.
        drop(queues);
    }

    pub(crate) fn set_watch(&self, parent: &str, watch: Option<ContainerWatch>) {
        let mut table = self.table();
        if let Some(queue) = table.queues.get_mut(parent) {
            queue.watch_pending = false;
            queue.likely = watch.is_some();
            queue.watch = watch;
        }
    }

    fn table(&self) -> MutexGuard<'_, KnownQueueTable> {
        lock(&self.0)
    }
}

impl KnownQueueTable {
    fn forget_half(&mut self) {
        let mut used: Vec<_> = self.queues.values().map(|queue| queue.used).collect();
        used.sort_unstable();
        let newest = used[used.len() / 2];
        self.queues.retain(|_, queue| queue.used >= newest);
    }
}

impl KnownQueue {
    fn is_watched_on(&self, connection_number: u64) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.connection_number == connection_number)
    }

    /// Whether the container has changed or is gone since the watch was set.
    fn has_changed(&mut self) -> bool {
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
    /// Whether the node was created in the very container that is watched.
    fn is_older_than(&self, node: &Node) -> bool {
        i64::try_from(node.token.get()).is_ok_and(|created| self.created_by < created)
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
