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
    cluster::slot_map::SlotMap,
    config::Endpoint,
    connection::{Connector, Server, ServerEpochs, SingleFlight},
    error::BACKEND,
    format::keys::Bucket,
};

/// How long to wait for primaries that nobody has asked for yet.
pub(super) const LOOK: Duration = Duration::from_millis(300);

/// What is known of a cluster.
pub(crate) struct Cluster {
    pub(super) seeds: Vec<Endpoint>,
    server_epochs: Arc<ServerEpochs>,
    /// The primaries, and whom else somebody named since the last map.
    // Std mutexes: held for map operations only.
    pub(super) servers: Mutex<HashMap<Endpoint, Arc<Server>>>,
    /// Who gave a map, the last one at the end.
    pub(super) map_sources: Mutex<Vec<Endpoint>>,
    pub(super) map: SingleFlight<Arc<SlotMap>>,
    /// Set when the map was found to be wrong.
    stale: AtomicBool,
    /// What the last epoch was made of, and that epoch.
    epoch: Mutex<Option<(Vec<Option<Epoch>>, Epoch)>>,
    closed: AtomicBool,
}

/// The map is being asked for: a doubt that comes meanwhile stays, and so does the one that led to it if nothing comes of it.
/// Until then the others go on with the old one, which is right for most buckets.
struct MapRefresh {
    cluster: Arc<Cluster>,
    finished: bool,
}

impl MapRefresh {
    fn begin(cluster: &Arc<Cluster>) -> Self {
        cluster.stale.store(false, Ordering::Release);
        Self {
            cluster: Arc::clone(cluster),
            finished: false,
        }
    }

    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for MapRefresh {
    fn drop(&mut self) {
        if !self.finished {
            self.cluster.mark_map_stale();
        }
    }
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Endpoint>, server_epochs: Arc<ServerEpochs>) -> Self {
        Self {
            seeds,
            server_epochs,
            servers: Mutex::default(),
            map_sources: Mutex::default(),
            map: SingleFlight::default(),
            stale: AtomicBool::new(false),
            epoch: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The next one who needs it asks for the map again.
    pub(crate) fn mark_map_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The primary of a bucket.
    ///
    /// # Errors
    /// When no server can be asked, or none serves the bucket.
    pub(crate) async fn server(
        self: &Arc<Self>,
        connector: &Arc<Connector>,
        bucket: Bucket,
    ) -> Result<Arc<Server>> {
        let map = self.map(connector).await?;
        map.of_bucket[bucket.index()].clone().ok_or_else(|| {
            self.mark_map_stale();
            Error::new(
                ErrorKind::Unavailable,
                format!("no server of the cluster serves slot {}", bucket.slot()),
            )
            .on(BACKEND)
        })
    }

    /// A server by its address, as a redirect names it.
    pub(crate) fn server_at(&self, endpoint: &Endpoint) -> Arc<Server> {
        let mut servers = lock(&self.servers);
        let server = servers
            .entry(endpoint.clone())
            .or_insert_with(|| Arc::new(Server::new(endpoint.clone(), &self.server_epochs)));
        if self.closed.load(Ordering::Acquire) {
            server.close();
        }
        Arc::clone(server)
    }

    /// The present map, if nobody doubts it.
    pub(crate) fn current_map(&self) -> Option<Arc<SlotMap>> {
        let finished = !self.stale.load(Ordering::Acquire);
        finished.then(|| self.map.latest()).flatten()
    }

    /// The present map.
    ///
    /// # Errors
    /// When no server can be asked.
    pub(crate) async fn map(self: &Arc<Self>, connector: &Arc<Connector>) -> Result<Arc<SlotMap>> {
        let clock = &**connector.clock();
        let fresh = |_: &Arc<SlotMap>| !self.stale.load(Ordering::Acquire);
        let make = || {
            let (connector, refresh) = (Arc::clone(connector), MapRefresh::begin(self));
            async move {
                let map = refresh.cluster.ask(&connector).await?;
                // The cluster's epoch is made of those of all primaries, so it takes a look at each.
                let connections = map
                    .primaries
                    .iter()
                    .map(|server| server.connect(&connector));
                tokio::select! {
                    _ = join_all(connections) => {}
                    () = connector.clock().sleep(LOOK) => {}
                }
                let primaries = map.primaries.iter().map(|server| server.endpoint.clone());
                refresh.cluster.server_epochs.set_primaries(primaries);
                refresh.cluster.close_other_servers(&map);
                refresh.finish();
                Ok(Arc::new(map))
            }
        };
        self.map
            .get(clock, connector.max_connect_time(), fresh, make)
            .await
    }

    /// The cluster's history: another one as soon as one of its primaries has another one.
    pub(crate) fn epoch(&self) -> Epoch {
        // Not by this handle's own map: it may have asked nobody since another handle noticed a change.
        let mut known = self.server_epochs.of_primaries();
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

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.map.close();
        for server in lock(&self.servers).values() {
            server.close();
        }
    }

    /// Lets go of all servers but the primaries of a new map: what one that left the cluster says is not true of it, and
    /// whoever waits for its word is woken.
    pub(super) fn close_other_servers(&self, map: &SlotMap) {
        lock(&self.servers).retain(|_, server| {
            let stays = map.serves(server);
            if !stays {
                server.close();
            }
            stays
        });
        let mut map_sources = lock(&self.map_sources);
        let named = |source: &Endpoint| {
            self.seeds.contains(source)
                || map
                    .primaries
                    .iter()
                    .any(|server| server.endpoint == *source)
        };
        map_sources.retain(|source| *source != map.source && named(source));
        map_sources.push(map.source.clone());
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
