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
const MOST: usize = 1024;

/// What is known of the containers that were used lately.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    runs: HashMap<Arc<str>, Run>,
    /// Goes up with every use.
    now: u64,
}

/// Our nodes in one container.
struct Run {
    /// Without a gap between them, and with everybody before them gone.
    nodes: VecDeque<Arc<Node>>,
    watch: Option<Watch>,
    /// Whether a watch is being set.
    arming: bool,
    /// Whether the next creation is likely to follow the last of them.
    likely: bool,
    used: u64,
}

pub(crate) struct Watch {
    /// The connection it was set on.
    pub(crate) generation: u64,
    /// The transaction that made the container.
    pub(crate) born: i64,
    pub(crate) fires: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>,
}

impl Runs {
    /// Whether the next creation in this container is likely to need no listing.
    pub(crate) fn is_likely(&self, parent: &str, generation: u64) -> bool {
        let inner = self.inner();
        inner
            .runs
            .get(parent)
            .is_some_and(|run| run.likely && !run.nodes.is_empty() && run.is_watched_on(generation))
    }

    /// A node of ours was created on this connection. Gives those of ours that are ahead of it when nobody else can be.
    pub(crate) fn follow_on(&self, node: &Arc<Node>, generation: u64) -> Option<Vec<Arc<Node>>> {
        let mut inner = self.inner();
        let run = inner.runs.get_mut(&node.parent)?;
        let follows = run.is_watched_on(generation)
            && !run.has_fired()
            && run.nodes.back().is_some_and(|last| {
                node.sequence.follows(last.sequence)
                    && run.watch.as_ref().is_some_and(|watch| watch.knows(last))
            });
        run.likely = follows;
        if !follows {
            run.nodes.clear();
            return None;
        }
        run.nodes.retain(|node| !node.is_out());
        let ahead = run.nodes.iter().cloned().collect();
        run.nodes.push_back(Arc::clone(node));
        Some(ahead)
    }

    /// A node of ours was granted its lock: everybody before it has gone. `true` = this container should be watched.
    pub(crate) fn granted(&self, node: &Arc<Node>, generation: u64) -> bool {
        let mut inner = self.inner();
        inner.now += 1;
        let now = inner.now;
        if let Some(run) = inner.runs.get_mut(&node.parent) {
            run.used = now;
            match run.nodes.iter().position(|known| Arc::ptr_eq(known, node)) {
                Some(at) => drop(run.nodes.drain(..at)),
                None => run.nodes = VecDeque::from([Arc::clone(node)]),
            }
            let arm = !run.arming && !run.is_watched_on(generation);
            run.arming |= arm;
            return arm;
        }
        if inner.runs.len() >= MOST {
            inner.forget_half();
        }
        let run = Run {
            nodes: VecDeque::from([Arc::clone(node)]),
            watch: None,
            arming: false,
            likely: false,
            used: now,
        };
        inner.runs.insert(Arc::clone(&node.parent), run);
        // Many names are used only once.
        false
    }

    /// Forgets everything, as with the end of the session.
    pub(crate) fn clear(&self) {
        let runs = std::mem::take(&mut self.inner().runs);
        // Outside of the mutex: dropping a watch sends a request.
        drop(runs);
    }

    pub(crate) fn armed(&self, parent: &str, watch: Option<Watch>) {
        let mut inner = self.inner();
        if let Some(run) = inner.runs.get_mut(parent) {
            run.arming = false;
            run.likely = watch.is_some();
            run.watch = watch;
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }
}

impl Inner {
    fn forget_half(&mut self) {
        let mut used: Vec<_> = self.runs.values().map(|run| run.used).collect();
        used.sort_unstable();
        let newest = used[used.len() / 2];
        self.runs.retain(|_, run| run.used >= newest);
    }
}

impl Run {
    fn is_watched_on(&self, generation: u64) -> bool {
        self.watch
            .as_ref()
            .is_some_and(|watch| watch.generation == generation)
    }

    /// Whether the container has changed or is gone.
    fn has_fired(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return true;
        };
        let fired = watch
            .fires
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready();
        if fired {
            self.watch = None;
        }
        fired
    }
}

impl Watch {
    /// Whether the node was created in the very container that is watched.
    fn knows(&self, node: &Node) -> bool {
        i64::try_from(node.token.get()).is_ok_and(|created| self.born < created)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("nodes", &self.nodes.len())
            .field("watched", &self.watch.is_some())
            .finish_non_exhaustive()
    }
}
