//! The state of one cluster: its servers, the current slot map, and the cluster's epoch.
//!
//! Connections to a server that left the cluster are closed as soon as a new map shows this. Such a
//! server still answers, but knows no lock that was granted later.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Epoch, Error, ErrorKind, Result, at_most, sync::Mutex};
use futures_util::future::join_all;
use redis::Script;

use crate::{
    cluster::slot_map::SlotMap,
    config::Endpoint,
    connection::{Connector, Server, ServerEpochs, SingleFlight},
    error::BACKEND,
    format::keys::Bucket,
};

/// The time for which a new map waits for connections to its primaries.
pub(super) const WAIT_FOR_PRIMARIES: Duration = Duration::from_millis(300);

/// One handle's knowledge of a cluster.
pub(crate) struct Cluster {
    pub(super) seeds: Vec<Endpoint>,
    server_epochs: Arc<ServerEpochs>,
    /// The primaries of the last map, and the servers named by redirects since then.
    // Std mutexes: they are held for map operations only, never across an await.
    pub(super) servers: Mutex<HashMap<Endpoint, Arc<Server>>>,
    /// The servers that gave a map, the latest last.
    pub(super) map_sources: Mutex<Vec<Endpoint>>,
    pub(super) map: SingleFlight<Arc<SlotMap>>,
    /// Set when an answer showed that the map is wrong.
    stale: AtomicBool,
    /// The epochs of the primaries from which the cached epoch was made, with that epoch.
    epoch: Mutex<Option<(Vec<Option<Epoch>>, Epoch)>>,
    closed: AtomicBool,
}

/// A read of the map that is in progress. The start of the read clears the mark `stale`, so that a
/// mark set during the read stays. A failed read sets the mark again. Until the read is done, other
/// operations use the old map, which is right for most buckets.
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

    /// Makes the next operation that needs the map read it again.
    pub(crate) fn mark_map_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Returns the primary of a bucket.
    ///
    /// # Errors
    /// When no server answers, or no server serves the bucket.
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

    /// Returns the server with this address, as named by a map or a redirect.
    pub(crate) fn server_at(&self, endpoint: &Endpoint) -> Arc<Server> {
        let mut servers = self.servers.lock();
        let server = servers
            .entry(endpoint.clone())
            .or_insert_with(|| Arc::new(Server::new(endpoint.clone(), &self.server_epochs)));
        if self.closed.load(Ordering::Acquire) {
            server.close();
        }
        Arc::clone(server)
    }

    /// Returns the current map, unless it is marked as stale.
    pub(crate) fn current_map(&self) -> Option<Arc<SlotMap>> {
        let finished = !self.stale.load(Ordering::Acquire);
        finished.then(|| self.map.latest()).flatten()
    }

    /// Returns the current map. Reads it again if it is stale.
    ///
    /// # Errors
    /// When no server answers.
    pub(crate) async fn map(self: &Arc<Self>, connector: &Arc<Connector>) -> Result<Arc<SlotMap>> {
        let clock = &**connector.clock();
        let fresh = |_: &Arc<SlotMap>| !self.stale.load(Ordering::Acquire);
        let make = || {
            let (connector, refresh) = (Arc::clone(connector), MapRefresh::begin(self));
            async move {
                let map = refresh.cluster.ask(&connector).await?;
                // The epoch of the cluster is made from the epochs of all primaries, so each
                // primary must have reported its epoch.
                let connections = map
                    .primaries
                    .iter()
                    .map(|server| server.connect(&connector));
                let connecting = join_all(connections);
                at_most(&**connector.clock(), WAIT_FOR_PRIMARIES, connecting).await;
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

    /// Returns the epoch of the cluster. The cluster's epoch changes whenever the epoch of one of
    /// the primaries changes.
    pub(crate) fn epoch(&self) -> Epoch {
        // The primaries are those that all handles know, not those of this handle's own map. This
        // handle may have been idle since another handle noticed a change.
        let mut known = self.server_epochs.of_primaries();
        known.sort_by(|a, b| {
            a.as_ref()
                .map(Epoch::as_str)
                .cmp(&b.as_ref().map(Epoch::as_str))
        });
        let mut cached = self.epoch.lock();
        match &*cached {
            Some((made_of, epoch)) if *made_of == known => epoch.clone(),
            _ => {
                let text: Vec<_> = known
                    .iter()
                    .map(|epoch| epoch.as_ref().map_or("unknown", Epoch::as_str))
                    .collect();
                // Any hash is right if every client computes the same one.
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
        for server in self.servers.lock().values() {
            server.close();
        }
    }

    /// Closes all servers that a new map does not name. A server that left the cluster answers with
    /// old data. Closing it also wakes the waiters that rely on its pushes.
    pub(super) fn close_other_servers(&self, map: &SlotMap) {
        self.servers.lock().retain(|_, server| {
            let stays = map.serves(server);
            if !stays {
                server.close();
            }
            stays
        });
        let mut map_sources = self.map_sources.lock();
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
