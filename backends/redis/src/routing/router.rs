//! The way to the primary that serves a bucket: one server, what the sentinels say, or the slots of a cluster.
//!
//! The driver makes the connections. Slots, redirects and reconnecting are ours, because the
//! driver's own cluster connection sends again by itself what may have happened already, and does
//! not tell which server answered: a release that was sent twice would look like a lost lock, and a
//! lost history like a kept one. Sentinels are ours as well, because the driver believes the first
//! that answers.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use distlock_core::{Epoch, Error, ErrorKind, Moment, Result};
use futures_util::{StreamExt as _, stream::FuturesUnordered};

use crate::{
    cluster::{Cluster, SlotMap},
    config::{Endpoint, Topology},
    connection::{Connection, Connector, Server},
    error::BACKEND,
    format::keys::Bucket,
    sentinels::{LastMajority, Sentinels},
};

use crate::{
    error::invalid,
    routing::primaries::{MaxAge, OpenMode, Primaries},
};

/// How long an operation waits for a connection that broke: longer than a restart of a server takes, shorter than anybody
/// waits for an answer. The try to connect itself may take longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a map is asked for that does not name a server to which a redirect led.
const LOOKS: u32 = 4;

/// The first pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// The way to every primary, of one handle.
pub(crate) struct Router {
    pub(crate) connector: Arc<Connector>,
    deployment: Deployment,
}

enum Deployment {
    Single(Arc<Server>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl Router {
    pub(crate) fn new(connector: Connector, last_majority: &Arc<LastMajority>) -> Self {
        let connector = Arc::new(connector);
        let server_epochs = connector.server_epochs();
        let deployment = match &connector.config().topology {
            Topology::Single(endpoint) => {
                Deployment::Single(Arc::new(Server::new(endpoint.clone(), server_epochs)))
            }
            Topology::Sentinel { sentinels, primary } => Deployment::Sentinel(Sentinels::new(
                &connector,
                last_majority,
                sentinels,
                primary,
            )),
            Topology::Cluster(seeds) => {
                let cluster = Cluster::new(seeds.clone(), Arc::clone(server_epochs));
                Deployment::Cluster(Arc::new(cluster))
            }
        };
        Self {
            connector,
            deployment,
        }
    }

    /// Whether keys of different buckets may not share a request.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }

    /// The connection that leads to a bucket's primary, if there is no doubt about it.
    pub(crate) fn only_connection(&self) -> Option<Arc<Connection>> {
        match &self.deployment {
            Deployment::Single(server) => server.live(),
            Deployment::Sentinel(sentinels) => sentinels.live(),
            Deployment::Cluster(_) => None,
        }
    }

    /// Since when a lease of this TTL may count at the most: the first question of a round in which
    /// a majority of the sentinels named the primary. `None` where nobody arbitrates between
    /// primaries.
    ///
    /// # Errors
    /// As [`Router::connection`], when no majority names one.
    pub(crate) async fn confirm_primary(&self, max_age: MaxAge) -> Result<Option<Moment>> {
        let Deployment::Sentinel(sentinels) = &self.deployment else {
            return Ok(None);
        };
        self.retry_while_patient(|| async {
            match max_age {
                MaxAge::Since(moment) => {
                    sentinels.asked_since(moment).await.map(|named| named.asked)
                }
                MaxAge::PartOfLease(ttl) => {
                    sentinels.confirm_primary(Sentinels::freshness(ttl)).await
                }
            }
        })
        .await
        .map(Some)
    }

    /// The sentinels, where there are any.
    pub(crate) const fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.deployment {
            Deployment::Sentinel(sentinels) => Some(sentinels),
            Deployment::Single(_) | Deployment::Cluster(_) => None,
        }
    }

    /// A connection to the primary of a bucket. One that broke is made again, for as long as an operation can wait.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] and what else keeps a server from serving; nothing happened.
    pub(crate) async fn connection(&self, bucket: Bucket) -> Result<Arc<Connection>> {
        if let Some(connection) = self.only_connection() {
            return Ok(connection);
        }
        self.retry_while_patient(|| self.try_connection(bucket))
            .await
    }

    /// A cluster's map, for as long as an operation can wait; `None` where there is one primary.
    ///
    /// # Errors
    /// As [`Router::connection`].
    pub(crate) async fn map(&self) -> Result<Option<Arc<SlotMap>>> {
        let Deployment::Cluster(cluster) = &self.deployment else {
            return Ok(None);
        };
        if let Some(map) = cluster.current_map() {
            return Ok(Some(map));
        }
        self.retry_while_patient(|| cluster.map(&self.connector))
            .await
            .map(Some)
    }

    /// Asks for a cluster's map until it names these servers, to which redirects led. Some servers
    /// hear of a change later than others.
    pub(crate) async fn renew_map(&self, named: &[Endpoint]) {
        let Deployment::Cluster(cluster) = &self.deployment else {
            return;
        };
        if named.is_empty() {
            return;
        }
        let mut pause = PAUSE;
        for _ in 0..LOOKS {
            let names = |map: &SlotMap| {
                let named_by_it = |server: &Endpoint| {
                    let mut primaries = map.primaries.iter();
                    primaries.any(|primary| primary.endpoint == *server)
                };
                named.iter().all(named_by_it)
            };
            // Those who were redirected are answered all the same, if nobody tells the map.
            match self.map().await {
                Ok(Some(map)) if !names(&map) => cluster.mark_map_stale(),
                _ => return,
            }
            self.connector.clock().sleep(pause).await;
            pause *= 2;
        }
    }

    /// A connection to a server that a redirect named.
    pub(crate) async fn connection_at(&self, endpoint: &Endpoint) -> Result<Arc<Connection>> {
        let Deployment::Cluster(cluster) = &self.deployment else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("a node of a cluster redirected to {endpoint}: use redis+cluster://"),
            )
            .on(BACKEND));
        };
        // Looked up each time: a new map parts with servers that it does not name.
        self.retry_while_patient(|| async {
            cluster.server_at(endpoint).connect(&self.connector).await
        })
        .await
    }

    /// Connections to all primaries.
    ///
    /// # Errors
    /// As [`Router::connection`], when one of them cannot be reached.
    pub(crate) async fn connections(&self) -> Result<Vec<Arc<Connection>>> {
        self.retry_while_patient(|| async { self.try_primaries(PATIENCE / 2).await?.all() })
            .await
    }

    /// Connections to the primaries that can be reached, and why the others cannot.
    ///
    /// # Errors
    /// As [`Router::connection`], when none of them can be reached.
    pub(crate) async fn primaries(&self) -> Result<Primaries> {
        match self.connections().await {
            Ok(connections) => Ok(Primaries::of(connections)),
            Err(_) if self.is_cluster() => self.try_primaries(Duration::ZERO).await,
            Err(error) => Err(error),
        }
    }

    /// How many slots of a cluster nobody serves, asked for anew; `None` where there is one primary.
    ///
    /// # Errors
    /// As [`Router::connection`].
    pub(crate) async fn unserved(&self) -> Result<Option<usize>> {
        if let Deployment::Cluster(cluster) = &self.deployment {
            cluster.mark_map_stale();
        }
        Ok(self.map().await?.map(|map| map.unserved()))
    }

    /// Connects everywhere for the first time. It is tried once: whoever opens a store learns at once what is wrong.
    ///
    /// A cluster opens while one of its primaries serves: what cannot be reached now may come back,
    /// and locks of the others need not wait for it.
    ///
    /// # Errors
    /// Whatever keeps a server from serving for good, and when none can be reached.
    pub(crate) async fn open(&self, mode: OpenMode) -> Result<Primaries> {
        // Each step has a limit of its own, which says more of what is wrong; together they may take longer.
        let limit = self.connector.config().connect_timeout;
        let patience = match mode {
            OpenMode::Initial => PATIENCE,
            OpenMode::Additional => Duration::ZERO,
        };
        let primaries = tokio::select! {
            biased;
            primaries = self.try_primaries(patience) => primaries?,
            () = self.connector.clock().sleep(limit) => {
                return Err(self.silent(limit, " (option `connect_timeout`)"));
            }
        };
        for connection in &primaries.connections {
            match (connection.server.clustered, self.is_cluster()) {
                (Some(true), false) => {
                    return Err(invalid(format!(
                        "{} is a node of a cluster: use redis+cluster:// instead of redis://",
                        connection.address
                    )));
                }
                (Some(false), true) => {
                    return Err(invalid(format!(
                        "{} is not a node of a cluster: use redis:// instead of redis+cluster://",
                        connection.address
                    )));
                }
                _ => {}
            }
        }
        Ok(primaries)
    }

    /// The store's history, as a client of this link sees it.
    pub(crate) fn epoch(&self, connection: &Connection) -> Epoch {
        match &self.deployment {
            Deployment::Single(_) | Deployment::Sentinel(_) => connection.epoch().clone(),
            Deployment::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// A server said that it does not serve this any more: look again where to go.
    pub(crate) fn mark_stale(&self, connection: &Connection) {
        match &self.deployment {
            Deployment::Single(_) | Deployment::Sentinel(_) => connection.abandon(),
            Deployment::Cluster(cluster) => cluster.mark_map_stale(),
        }
    }

    pub(crate) fn close(&self) {
        match &self.deployment {
            Deployment::Single(server) => server.close(),
            Deployment::Sentinel(sentinels) => sentinels.close(),
            Deployment::Cluster(cluster) => cluster.close(),
        }
    }

    /// Connects to every primary. In a cluster those that are silent for `patience` keep nobody
    /// waiting, once another one answers.
    async fn try_primaries(&self, patience: Duration) -> Result<Primaries> {
        let Deployment::Cluster(cluster) = &self.deployment else {
            // Any bucket will do: there is one primary.
            let connection = self.try_connection(Bucket::of("")).await?;
            return Ok(Primaries::of(vec![connection]));
        };
        let clock = &**self.connector.clock();
        let map = cluster.map(&self.connector).await?;
        let connect = |server: &Arc<Server>| {
            let server = Arc::clone(server);
            async move { (server.connect(&self.connector).await, server) }
        };
        let mut connecting: FuturesUnordered<_> = map.primaries.iter().map(connect).collect();
        let mut silent = map.primaries.clone();
        let mut found = Primaries::of(Vec::new());
        let until = clock.now() + patience;
        loop {
            let answered = tokio::select! {
                biased;
                answered = connecting.next() => answered,
                () = clock.sleep(until.since(clock.now())), if !found.connections.is_empty() => None,
            };
            let Some((answer, server)) = answered else {
                break;
            };
            silent.retain(|other| !Arc::ptr_eq(other, &server));
            match answer {
                Ok(connection) => found.connections.push(connection),
                Err(error) if error.is_retryable() => {
                    found.missing.push((server.endpoint.clone(), error));
                }
                // Credentials, TLS, options: it does not pass, and it is the same everywhere.
                Err(error) => {
                    cluster.mark_map_stale();
                    return Err(error);
                }
            }
        }
        found.missing.extend(silent.into_iter().map(|server| {
            let message = format!("{} did not answer in time", server.endpoint);
            let error = Error::new(ErrorKind::Unavailable, message).on(BACKEND);
            (server.endpoint.clone(), error)
        }));
        if !found.missing.is_empty() {
            // Another one may serve in its place by now.
            cluster.mark_map_stale();
        }
        match found.missing.first() {
            Some((_, error)) if found.connections.is_empty() => Err(error.clone()),
            _ => Ok(found),
        }
    }

    async fn try_connection(&self, bucket: Bucket) -> Result<Arc<Connection>> {
        match &self.deployment {
            Deployment::Single(server) => server.connect(&self.connector).await,
            Deployment::Sentinel(sentinels) => sentinels.connect().await,
            Deployment::Cluster(cluster) => {
                let server = cluster.server(&self.connector, bucket).await?;
                server
                    .connect(&self.connector)
                    .await
                    .inspect_err(|_| cluster.mark_map_stale())
            }
        }
    }

    /// Tries until it works, time is over, or it is clear that trying does not help. What is under way when time is over
    /// goes on, for whoever comes next.
    async fn retry_while_patient<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let clock = &**self.connector.clock();
        let until = clock.now() + PATIENCE;
        let mut pause = PAUSE;
        let mut last = None;
        loop {
            let left = until.since(clock.now());
            tokio::select! {
                biased;
                answer = attempt() => match answer {
                    Ok(value) => return Ok(value),
                    Err(error) if !error.is_retryable() => return Err(error),
                    Err(error) => last = Some(error),
                },
                () = clock.sleep(left) => {
                    // It may be silent because others serve in its place by now.
                    if let Deployment::Cluster(cluster) = &self.deployment {
                        cluster.mark_map_stale();
                    }
                }
            }
            let left = until.since(clock.now());
            if left.is_zero() {
                return Err(last.unwrap_or_else(|| self.silent(PATIENCE, "")));
            }
            clock.sleep(pause.min(left)).await;
            pause *= 2;
        }
    }

    fn silent(&self, limit: Duration, option: &str) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "no connection to {} within {limit:?}{option}",
                self.connector.config().topology
            ),
        )
        .on(BACKEND)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({})", self.connector.config().topology)
    }
}
