//! A cluster: its servers, the present map of its slots, and its history.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Result};
use futures_util::future::join_all;
use redis::Script;

use crate::{
    cluster::map::Map,
    config::Endpoint,
    connection::{Dialer, Lasting, Node, Standings},
    error::BACKEND,
    format::names::Bucket,
};

/// How long to wait for primaries that nobody has asked for yet.
pub(super) const LOOK: Duration = Duration::from_millis(300);

/// What is known of a cluster.
pub(crate) struct Cluster {
    pub(super) seeds: Vec<Endpoint>,
    standings: Arc<Standings>,
    /// The primaries, and whom else somebody named since the last map.
    // Std mutexes: held for map operations only.
    pub(super) nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    /// Who gave a map, the last one at the end.
    pub(super) givers: Mutex<Vec<Endpoint>>,
    pub(super) map: Lasting<Arc<Map>>,
    /// Set when the map was found to be wrong.
    stale: AtomicBool,
    /// What the last epoch was made of, and that epoch.
    epoch: Mutex<Option<(Vec<Option<Epoch>>, Epoch)>>,
    closed: AtomicBool,
}

/// The map is being asked for: a doubt that comes meanwhile stays, and so does the one that led to it if nothing comes of it.
/// Until then the others go on with the old one, which is right for most buckets.
struct Unsettled {
    cluster: Arc<Cluster>,
    settled: bool,
}

impl Unsettled {
    fn begin(cluster: &Arc<Cluster>) -> Self {
        cluster.stale.store(false, Ordering::Release);
        Self {
            cluster: Arc::clone(cluster),
            settled: false,
        }
    }

    fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.settled {
            self.cluster.doubt();
        }
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Endpoint>, standings: Arc<Standings>) -> Self {
        Self {
            seeds,
            standings,
            nodes: Mutex::default(),
            givers: Mutex::default(),
            map: Lasting::default(),
            stale: AtomicBool::new(false),
            epoch: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The next one who needs it asks for the map again.
    pub(crate) fn doubt(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The primary of a bucket.
    ///
    /// # Errors
    /// When no server can be asked, or none serves the bucket.
    pub(crate) async fn node(
        self: &Arc<Self>,
        dialer: &Arc<Dialer>,
        bucket: Bucket,
    ) -> Result<Arc<Node>> {
        let map = self.map(dialer).await?;
        map.of_bucket[bucket.index()].clone().ok_or_else(|| {
            self.doubt();
            Error::new(
                ErrorKind::Unavailable,
                format!("no server of the cluster serves slot {}", bucket.slot()),
            )
            .on(BACKEND)
        })
    }

    /// A server by its address, as a redirect names it.
    pub(crate) fn node_at(&self, endpoint: &Endpoint) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes
            .entry(endpoint.clone())
            .or_insert_with(|| Arc::new(Node::new(endpoint.clone(), &self.standings)));
        if self.closed.load(Ordering::Acquire) {
            node.hang_up();
        }
        Arc::clone(node)
    }

    /// The present map, if nobody doubts it.
    pub(crate) fn settled_map(&self) -> Option<Arc<Map>> {
        let settled = !self.stale.load(Ordering::Acquire);
        settled.then(|| self.map.made()).flatten()
    }

    /// The present map.
    ///
    /// # Errors
    /// When no server can be asked.
    pub(crate) async fn map(self: &Arc<Self>, dialer: &Arc<Dialer>) -> Result<Arc<Map>> {
        let clock = &**dialer.clock();
        let fresh = |_: &Arc<Map>| !self.stale.load(Ordering::Acquire);
        let make = || {
            let (dialer, unsettled) = (Arc::clone(dialer), Unsettled::begin(self));
            async move {
                let map = unsettled.cluster.ask(&dialer).await?;
                // The cluster's epoch is made of those of all primaries, so it takes a look at each.
                let links = map.primaries.iter().map(|node| node.connect(&dialer));
                tokio::select! {
                    _ = join_all(links) => {}
                    () = dialer.clock().sleep(LOOK) => {}
                }
                let primaries = map.primaries.iter().map(|node| node.endpoint.clone());
                unsettled.cluster.standings.set_primaries(primaries);
                unsettled.cluster.part_with_others(&map);
                unsettled.settle();
                Ok(Arc::new(map))
            }
        };
        self.map.get(clock, dialer.longest(), fresh, make).await
    }

    /// The cluster's history: another one as soon as one of its primaries has another one.
    pub(crate) fn epoch(&self) -> Epoch {
        // Not by this handle's own map: it may have asked nobody since another handle noticed a change.
        let mut known = self.standings.of_primaries();
        known.sort_by(|a, b| {
            a.as_ref()
                .map(Epoch::as_str)
                .cmp(&b.as_ref().map(Epoch::as_str))
        });
        let mut cached = lock(&self.epoch);
        match &*cached {
            Some((made_of, epoch)) if *made_of == known => epoch.clone(),
            _ => {
                let text: Vec<_> = known
                    .iter()
                    .map(|epoch| epoch.as_ref().map_or("unknown", Epoch::as_str))
                    .collect();
                // Any hash that every client computes alike.
                let digest = Script::new(&text.join(" "));
                let epoch = Epoch::new(format!("redis-cluster-{}", &digest.get_hash()[..32]));
                *cached = Some((known, epoch.clone()));
                epoch
            }
        }
    }

    pub(crate) fn hang_up(&self) {
        self.closed.store(true, Ordering::Release);
        self.map.close();
        for node in lock(&self.nodes).values() {
            node.hang_up();
        }
    }

    /// Lets go of all servers but the primaries of a new map: what one that left the cluster says is not true of it, and
    /// whoever waits for its word is woken.
    pub(super) fn part_with_others(&self, map: &Map) {
        lock(&self.nodes).retain(|_, node| {
            let stays = map.serves(node);
            if !stays {
                node.hang_up();
            }
            stays
        });
        let mut givers = lock(&self.givers);
        let named = |giver: &Endpoint| {
            self.seeds.contains(giver) || map.primaries.iter().any(|node| node.endpoint == *giver)
        };
        givers.retain(|giver| *giver != map.giver && named(giver));
        givers.push(map.giver.clone());
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
