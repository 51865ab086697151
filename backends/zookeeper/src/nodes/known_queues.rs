//! Places that are known without listing.
//!
//! The servers number a container's children without gaps, so whoever creates the node right after one of ours is behind
//! us and nobody else. If everybody before our own nodes has gone, and our nodes follow each other without a gap, the
//! newest of them needs no listing to know who is ahead of it.
//!
//! That holds as long as the container itself stays: one that the servers have removed and somebody has made again counts
//! from zero. So each container that is used again gets a watch. An event of it arrives before the answer to anything
//! that happened later, so as long as there is none when a creation is answered, it was the same container all the time.

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

/// For how many containers this is kept up.
const MAX_CONTAINERS: usize = 1024;

/// What is known of the containers that were used lately.
#[derive(Debug, Default)]
pub(crate) struct KnownQueues(Mutex<KnownQueueTable>);

#[derive(Debug, Default)]
struct KnownQueueTable {
    queues: HashMap<Arc<str>, KnownQueue>,
    /// Goes up with every use.
    now: u64,
}

/// Our nodes in one container.
struct KnownQueue {
    /// Without a gap between them, and with everybody before them gone.
    nodes: VecDeque<Arc<Node>>,
    watch: Option<ContainerWatch>,
    /// Whether a watch is being set.
    watch_pending: bool,
    /// Whether the next creation is likely to follow the last of them.
    likely: bool,
    used: u64,
}

pub(crate) struct ContainerWatch {
    /// The connection it was set on.
    pub(crate) generation: u64,
    /// The transaction that made the container.
    pub(crate) created_by: i64,
    pub(crate) changed: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>,
}

impl KnownQueues {
    /// Whether the next creation in this container is likely to need no listing.
    pub(crate) fn can_skip_listing(&self, parent: &str, generation: u64) -> bool {
        let table = self.table();
        table.queues.get(parent).is_some_and(|queue| {
            queue.likely && !queue.nodes.is_empty() && queue.is_watched_on(generation)
        })
    }

    /// A node of ours was created on this connection. Gives those of ours that are ahead of it when nobody else can be.
    pub(crate) fn add_created(&self, node: &Arc<Node>, generation: u64) -> Option<Vec<Arc<Node>>> {
        let mut table = self.table();
        let queue = table.queues.get_mut(&node.parent)?;
        let follows = queue.is_watched_on(generation)
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

    /// A node of ours was granted its lock: everybody before it has gone. `true` = this container should be watched.
    pub(crate) fn granted(&self, node: &Arc<Node>, generation: u64) -> bool {
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
            let arm = !queue.watch_pending && !queue.is_watched_on(generation);
            queue.watch_pending |= arm;
            return arm;
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
        // Many names are used only once.
        false
    }

    /// Forgets everything, as with the end of the session.
    pub(crate) fn clear(&self) {
        let queues = std::mem::take(&mut self.table().queues);
        // Outside of the mutex: dropping a watch sends a request.
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
    fn is_watched_on(&self, generation: u64) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.generation == generation)
    }

    /// Whether the container has changed or is gone.
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
