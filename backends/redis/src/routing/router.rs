//! Finds the connection to the primary that serves a bucket: a single server, the server that the
//! sentinels name, or the owner of a slot in a cluster.
//!
//! The driver makes the connections. This module handles slots, redirects and reconnects itself,
//! because the driver's cluster connection repeats commands that may have been carried out, and
//! does not report which server answered. A release that was sent twice would look like a lost
//! lock, and a lost history would not be noticed. This backend also asks the sentinels itself,
//! because the driver accepts the answer of the first sentinel.
//!
//! An operation waits for a connection for a bounded time. The attempt to connect then goes on for
//! the next operation.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use distlock_core::{Epoch, Error, ErrorKind, Moment, Result, at_most};
use futures_util::{StreamExt as _, stream::FuturesUnordered};

use crate::{
    cluster::{Cluster, SlotMap},
    config::{Endpoint, Topology},
    connection::{Connection, Connector, Server},
    error::{BACKEND, invalid},
    format::keys::Bucket,
    sentinels::{LastMajority, Sentinels},
};

/// The time for which an operation waits for a connection. This time is longer than the restart of
/// a server, and shorter than a caller's wait for an answer. The attempt to connect itself may take
/// longer.
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// The limit of reads of the slot map, while the map does not name a server that a redirect named.
const MAX_MAP_READS: u32 = 4;

/// The pause after the first failed attempt, if its error names no other. Each further failure
/// doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Finds the primaries of one handle.
pub(crate) struct Router {
    pub(crate) connector: Arc<Connector>,
    deployment: Deployment,
}

enum Deployment {
    Single(Arc<Server>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

/// The connections to all primaries, and the primaries that cannot be reached.
#[derive(Debug)]
pub(crate) struct Primaries {
    pub(crate) connections: Vec<Arc<Connection>>,
    /// The primaries of a cluster that cannot be reached, each with its error.
    pub(crate) missing: Vec<(Endpoint, Error)>,
}

/// The handle of a store that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The first handle of the store. Opening it waits for a slow primary, because the epoch of a
    /// cluster is made from the epochs of all primaries.
    Initial,
    /// A further handle. Opening it does not wait for slow primaries, because leases may depend on
    /// this handle for their renewal.
    Additional,
}

/// The maximum age of the round of questions in which the sentinels named the primary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxAge {
    /// The first question of the round was sent at this moment or later.
    Since(Moment),
    /// The age is at most a fixed fraction of this TTL. With `None` no lease is granted, and the
    /// age is at most one second.
    PartOfLease(Option<Duration>),
}

impl Primaries {
    const fn of(connections: Vec<Arc<Connection>>) -> Self {
        Self {
            connections,
            missing: Vec::new(),
        }
    }

    /// Returns all connections.
    ///
    /// # Errors
    /// The error of the first primary that cannot be reached.
    fn all(self) -> Result<Vec<Arc<Connection>>> {
        match self.missing.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(self.connections),
        }
    }
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

    /// Returns whether keys of different buckets must be in different requests.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }

    /// Returns the connection to the only primary, if the connection works and the primary is
    /// known. `None` in a cluster.
    fn only_connection(&self) -> Option<Arc<Connection>> {
        match &self.deployment {
            Deployment::Single(server) => server.live(),
            Deployment::Sentinel(sentinels) => sentinels.live(),
            Deployment::Cluster(_) => None,
        }
    }

    /// Returns the earliest moment from which a lease may count: the first question of the round in
    /// which a majority of the sentinels named the primary. `None` without sentinels.
    ///
    /// # Errors
    /// As [`Router::connection`], when no majority names a primary.
    pub(crate) async fn confirm_primary(&self, max_age: MaxAge) -> Result<Option<Moment>> {
        let Deployment::Sentinel(sentinels) = &self.deployment else {
            return Ok(None);
        };
        self.retry_until_timeout(|| async {
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

    /// Returns the sentinels, if the store has them.
    pub(crate) const fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.deployment {
            Deployment::Sentinel(sentinels) => Some(sentinels),
            Deployment::Single(_) | Deployment::Cluster(_) => None,
        }
    }

    /// Returns a connection to the primary of a bucket. If none works, a new one is made, and the
    /// operation waits up to [`RETRY_TIMEOUT`] for it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], and other reasons why the server cannot serve. No operation was
    /// sent.
    pub(crate) async fn connection(&self, bucket: Bucket) -> Result<Arc<Connection>> {
        if let Some(connection) = self.only_connection() {
            return Ok(connection);
        }
        self.retry_until_timeout(|| self.try_connection(bucket))
            .await
    }

    /// Returns the slot map of a cluster, and reads it again if it is stale; `None` if there is one
    /// primary.
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
        self.retry_until_timeout(|| cluster.map(&self.connector))
            .await
            .map(Some)
    }

    /// Reads the slot map until it names these servers, to which redirects led. Some servers of a
    /// cluster learn of a change later than others.
    pub(crate) async fn renew_map(&self, named: &[Endpoint]) {
        let Deployment::Cluster(cluster) = &self.deployment else {
            return;
        };
        if named.is_empty() {
            return;
        }
        let mut pause = FIRST_PAUSE;
        for _ in 0..MAX_MAP_READS {
            let names = |map: &SlotMap| {
                let named_by_it = |server: &Endpoint| {
                    let mut primaries = map.primaries.iter();
                    primaries.any(|primary| primary.endpoint == *server)
                };
                named.iter().all(named_by_it)
            };
            // The redirected calls have their own answers, so an error of this read is not reported
            // to them.
            match self.map().await {
                Ok(Some(map)) if !names(&map) => cluster.mark_map_stale(),
                _ => return,
            }
            self.connector.clock().sleep(pause).await;
            pause *= 2;
        }
    }

    /// Returns a connection to a server that a redirect named.
    pub(crate) async fn connection_at(&self, endpoint: &Endpoint) -> Result<Arc<Connection>> {
        let Deployment::Cluster(cluster) = &self.deployment else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("a node of a cluster redirected to {endpoint}: use redis+cluster://"),
            )
            .on(BACKEND));
        };
        // Each attempt looks up the server again, because a new map closes the servers that it does
        // not name.
        self.retry_until_timeout(|| async {
            cluster.server_at(endpoint).connect(&self.connector).await
        })
        .await
    }

    /// Returns connections to all primaries.
    ///
    /// # Errors
    /// As [`Router::connection`], when any of them cannot be reached.
    pub(crate) async fn connections(&self) -> Result<Vec<Arc<Connection>>> {
        self.retry_until_timeout(|| async { self.try_primaries(RETRY_TIMEOUT / 2).await?.all() })
            .await
    }

    /// Returns connections to the reachable primaries, and the errors of the others.
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

    /// Reads the slot map again, and returns the number of slots that no server serves; `None` if
    /// there is one primary.
    ///
    /// # Errors
    /// As [`Router::connection`].
    pub(crate) async fn unserved(&self) -> Result<Option<usize>> {
        if let Deployment::Cluster(cluster) = &self.deployment {
            cluster.mark_map_stale();
        }
        Ok(self.map().await?.map(|map| map.unserved()))
    }

    /// Connects to all primaries for the first time. Each primary is tried only once, so that the
    /// caller that opens a store gets an error without delay.
    ///
    /// A cluster opens if at least one of its primaries serves. The others may serve again later,
    /// and the locks of the reachable primaries need not wait for that.
    ///
    /// # Errors
    /// A permanent error if a server can never serve, and the first error if no primary can be
    /// reached.
    pub(crate) async fn open(&self, mode: OpenMode) -> Result<Primaries> {
        // Each step has its own limit, whose error names the step. Together the steps may take
        // longer than this limit.
        let limit = self.connector.config().connect_timeout;
        let patience = match mode {
            OpenMode::Initial => RETRY_TIMEOUT,
            OpenMode::Additional => Duration::ZERO,
        };
        let clock = &**self.connector.clock();
        let primaries = at_most(clock, limit, self.try_primaries(patience))
            .await
            .unwrap_or_else(|| Err(self.silent(limit, " (option `connect_timeout`)")))?;
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

    /// Returns the store's epoch for an answer from this connection.
    pub(crate) fn epoch(&self, connection: &Connection) -> Epoch {
        match &self.deployment {
            Deployment::Single(_) | Deployment::Sentinel(_) => connection.epoch().clone(),
            Deployment::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// Records that a server no longer serves a key. The next operation looks for the primary
    /// again.
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

    /// Connects to every primary. In a cluster, after one primary has answered, the wait for silent
    /// ones ends after `patience`.
    async fn try_primaries(&self, patience: Duration) -> Result<Primaries> {
        let Deployment::Cluster(cluster) = &self.deployment else {
            // Any bucket is right, because there is one primary.
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
            let left = until.since(clock.now());
            let answered = tokio::select! {
                biased;
                answered = connecting.next() => answered,
                () = clock.sleep(left), if !found.connections.is_empty() => None,
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
                // Wrong credentials, TLS or options: this error is permanent and the same for every
                // server.
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
            // A replica may have been promoted in place of the missing primary.
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

    /// Repeats an attempt until it succeeds, its error is permanent, or the time limit has passed.
    /// An attempt to connect that is still in progress goes on for the next caller.
    async fn retry_until_timeout<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let clock = &**self.connector.clock();
        let until = clock.now() + RETRY_TIMEOUT;
        let mut pause = FIRST_PAUSE;
        let mut last = None;
        loop {
            let left = until.since(clock.now());
            match at_most(clock, left, attempt()).await {
                Some(Ok(value)) => return Ok(value),
                Some(Err(error)) if !error.is_retryable() => return Err(error),
                Some(Err(error)) => last = Some(error),
                None => {
                    // The server may be silent because a replica was promoted in its place.
                    if let Deployment::Cluster(cluster) = &self.deployment {
                        cluster.mark_map_stale();
                    }
                }
            }
            let left = until.since(clock.now());
            let next = last.as_ref().and_then(Error::retry_pause);
            // A server that has been away for a while gets no attempt before its next one is due,
            // and the error then tells the caller this moment.
            if left.is_zero() || next.is_some_and(|next| next >= left) {
                return Err(last.unwrap_or_else(|| self.silent(RETRY_TIMEOUT, "")));
            }
            clock.sleep(next.unwrap_or(pause).min(left)).await;
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
