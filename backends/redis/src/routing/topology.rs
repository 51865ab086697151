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
    cluster::{Cluster, Map},
    config::{Endpoint, Topology},
    connection::{Dialer, Link, Node},
    error::BACKEND,
    format::names::Bucket,
    sentinels::{Sentinels, View},
};

use crate::{
    error::invalid,
    routing::primaries::{NoOlder, Opening, Primaries},
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
    pub(crate) dialer: Arc<Dialer>,
    shape: Shape,
}

enum Shape {
    Single(Arc<Node>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl Router {
    pub(crate) fn new(dialer: Dialer, view: &Arc<View>) -> Self {
        let dialer = Arc::new(dialer);
        let standings = dialer.standings();
        let shape = match &dialer.config().topology {
            Topology::Single(endpoint) => {
                Shape::Single(Arc::new(Node::new(endpoint.clone(), standings)))
            }
            Topology::Sentinel { sentinels, primary } => {
                Shape::Sentinel(Sentinels::new(&dialer, view, sentinels, primary))
            }
            Topology::Cluster(seeds) => {
                let cluster = Cluster::new(seeds.clone(), Arc::clone(standings));
                Shape::Cluster(Arc::new(cluster))
            }
        };
        Self { dialer, shape }
    }

    /// Whether keys of different buckets may not share a request.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.shape, Shape::Cluster(_))
    }

    /// The connection that leads to a bucket's primary, if there is no doubt about it.
    pub(crate) fn only_link(&self) -> Option<Arc<Link>> {
        match &self.shape {
            Shape::Single(node) => node.live(),
            Shape::Sentinel(sentinels) => sentinels.live(),
            Shape::Cluster(_) => None,
        }
    }

    /// Since when a lease of this TTL may count at the most: the first question of a round in which
    /// a majority of the sentinels named the primary. `None` where nobody arbitrates between
    /// primaries.
    ///
    /// # Errors
    /// As [`Router::link`], when no majority names one.
    pub(crate) async fn vouched(&self, no_older: NoOlder) -> Result<Option<Moment>> {
        let Shape::Sentinel(sentinels) = &self.shape else {
            return Ok(None);
        };
        self.patiently(|| async {
            match no_older {
                NoOlder::Than(moment) => {
                    sentinels.asked_since(moment).await.map(|named| named.asked)
                }
                NoOlder::ThanPartOf(ttl) => sentinels.vouched(Sentinels::freshness(ttl)).await,
            }
        })
        .await
        .map(Some)
    }

    /// The sentinels, where there are any.
    pub(crate) const fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.shape {
            Shape::Sentinel(sentinels) => Some(sentinels),
            Shape::Single(_) | Shape::Cluster(_) => None,
        }
    }

    /// A connection to the primary of a bucket. One that broke is made again, for as long as an operation can wait.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] and what else keeps a server from serving; nothing happened.
    pub(crate) async fn link(&self, bucket: Bucket) -> Result<Arc<Link>> {
        if let Some(link) = self.only_link() {
            return Ok(link);
        }
        self.patiently(|| self.try_link(bucket)).await
    }

    /// A cluster's map, for as long as an operation can wait; `None` where there is one primary.
    ///
    /// # Errors
    /// As [`Router::link`].
    pub(crate) async fn map(&self) -> Result<Option<Arc<Map>>> {
        let Shape::Cluster(cluster) = &self.shape else {
            return Ok(None);
        };
        if let Some(map) = cluster.settled_map() {
            return Ok(Some(map));
        }
        self.patiently(|| cluster.map(&self.dialer)).await.map(Some)
    }

    /// Asks for a cluster's map until it names these servers, to which redirects led. Some servers
    /// hear of a change later than others.
    pub(crate) async fn renew_map(&self, named: &[Endpoint]) {
        let Shape::Cluster(cluster) = &self.shape else {
            return;
        };
        if named.is_empty() {
            return;
        }
        let mut pause = PAUSE;
        for _ in 0..LOOKS {
            let names = |map: &Map| {
                let named_by_it = |server: &Endpoint| {
                    let mut primaries = map.primaries.iter();
                    primaries.any(|node| node.endpoint == *server)
                };
                named.iter().all(named_by_it)
            };
            // Those who were redirected are answered all the same, if nobody tells the map.
            match self.map().await {
                Ok(Some(map)) if !names(&map) => cluster.doubt(),
                _ => return,
            }
            self.dialer.clock().sleep(pause).await;
            pause *= 2;
        }
    }

    /// A connection to a server that a redirect named.
    pub(crate) async fn link_at(&self, endpoint: &Endpoint) -> Result<Arc<Link>> {
        let Shape::Cluster(cluster) = &self.shape else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("a node of a cluster redirected to {endpoint}: use redis+cluster://"),
            )
            .on(BACKEND));
        };
        // Looked up each time: a new map parts with servers that it does not name.
        self.patiently(|| async { cluster.node_at(endpoint).connect(&self.dialer).await })
            .await
    }

    /// Connections to all primaries.
    ///
    /// # Errors
    /// As [`Router::link`], when one of them cannot be reached.
    pub(crate) async fn links(&self) -> Result<Vec<Arc<Link>>> {
        self.patiently(|| async { self.try_primaries(PATIENCE / 2).await?.all() })
            .await
    }

    /// Connections to the primaries that can be reached, and why the others cannot.
    ///
    /// # Errors
    /// As [`Router::link`], when none of them can be reached.
    pub(crate) async fn primaries(&self) -> Result<Primaries> {
        match self.links().await {
            Ok(links) => Ok(Primaries::of(links)),
            Err(_) if self.is_cluster() => self.try_primaries(Duration::ZERO).await,
            Err(error) => Err(error),
        }
    }

    /// How many slots of a cluster nobody serves, asked for anew; `None` where there is one primary.
    ///
    /// # Errors
    /// As [`Router::link`].
    pub(crate) async fn unserved(&self) -> Result<Option<usize>> {
        if let Shape::Cluster(cluster) = &self.shape {
            cluster.doubt();
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
    pub(crate) async fn open(&self, opening: Opening) -> Result<Primaries> {
        // Each step has a limit of its own, which says more of what is wrong; together they may take longer.
        let limit = self.dialer.config().connect_timeout;
        let patience = match opening {
            Opening::First => PATIENCE,
            Opening::Again => Duration::ZERO,
        };
        let primaries = tokio::select! {
            biased;
            primaries = self.try_primaries(patience) => primaries?,
            () = self.dialer.clock().sleep(limit) => {
                return Err(self.silent(limit, " (option `connect_timeout`)"));
            }
        };
        for link in &primaries.links {
            match (link.server.clustered, self.is_cluster()) {
                (Some(true), false) => {
                    return Err(invalid(format!(
                        "{} is a node of a cluster: use redis+cluster:// instead of redis://",
                        link.address
                    )));
                }
                (Some(false), true) => {
                    return Err(invalid(format!(
                        "{} is not a node of a cluster: use redis:// instead of redis+cluster://",
                        link.address
                    )));
                }
                _ => {}
            }
        }
        Ok(primaries)
    }

    /// The store's history, as a client of this link sees it.
    pub(crate) fn epoch(&self, link: &Link) -> Epoch {
        match &self.shape {
            Shape::Single(_) | Shape::Sentinel(_) => link.epoch().clone(),
            Shape::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// A server said that it does not serve this any more: look again where to go.
    pub(crate) fn doubt(&self, link: &Link) {
        match &self.shape {
            Shape::Single(_) | Shape::Sentinel(_) => link.abandon(),
            Shape::Cluster(cluster) => cluster.doubt(),
        }
    }

    pub(crate) fn hang_up(&self) {
        match &self.shape {
            Shape::Single(node) => node.hang_up(),
            Shape::Sentinel(sentinels) => sentinels.hang_up(),
            Shape::Cluster(cluster) => cluster.hang_up(),
        }
    }

    /// Connects to every primary. In a cluster those that are silent for `patience` keep nobody
    /// waiting, once another one answers.
    async fn try_primaries(&self, patience: Duration) -> Result<Primaries> {
        let Shape::Cluster(cluster) = &self.shape else {
            // Any bucket will do: there is one primary.
            let link = self.try_link(Bucket::of("")).await?;
            return Ok(Primaries::of(vec![link]));
        };
        let clock = &**self.dialer.clock();
        let map = cluster.map(&self.dialer).await?;
        let connect = |node: &Arc<Node>| {
            let node = Arc::clone(node);
            async move { (node.connect(&self.dialer).await, node) }
        };
        let mut connecting: FuturesUnordered<_> = map.primaries.iter().map(connect).collect();
        let mut silent = map.primaries.clone();
        let mut found = Primaries::of(Vec::new());
        let until = clock.now() + patience;
        loop {
            let answered = tokio::select! {
                biased;
                answered = connecting.next() => answered,
                () = clock.sleep(until.since(clock.now())), if !found.links.is_empty() => None,
            };
            let Some((answer, node)) = answered else {
                break;
            };
            silent.retain(|other| !Arc::ptr_eq(other, &node));
            match answer {
                Ok(link) => found.links.push(link),
                Err(error) if error.is_retryable() => {
                    found.missing.push((node.endpoint.clone(), error));
                }
                // Credentials, TLS, options: it does not pass, and it is the same everywhere.
                Err(error) => {
                    cluster.doubt();
                    return Err(error);
                }
            }
        }
        found.missing.extend(silent.into_iter().map(|node| {
            let message = format!("{} did not answer in time", node.endpoint);
            let error = Error::new(ErrorKind::Unavailable, message).on(BACKEND);
            (node.endpoint.clone(), error)
        }));
        if !found.missing.is_empty() {
            // Another one may serve in its place by now.
            cluster.doubt();
        }
        match found.missing.first() {
            Some((_, error)) if found.links.is_empty() => Err(error.clone()),
            _ => Ok(found),
        }
    }

    async fn try_link(&self, bucket: Bucket) -> Result<Arc<Link>> {
        match &self.shape {
            Shape::Single(node) => node.connect(&self.dialer).await,
            Shape::Sentinel(sentinels) => sentinels.connect().await,
            Shape::Cluster(cluster) => {
                let node = cluster.node(&self.dialer, bucket).await?;
                node.connect(&self.dialer)
                    .await
                    .inspect_err(|_| cluster.doubt())
            }
        }
    }

    /// Tries until it works, time is over, or it is clear that trying does not help. What is under way when time is over
    /// goes on, for whoever comes next.
    async fn patiently<T, F: Future<Output = Result<T>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T> {
        let clock = &**self.dialer.clock();
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
                    if let Shape::Cluster(cluster) = &self.shape {
                        cluster.doubt();
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
                self.dialer.config().topology
            ),
        )
        .on(BACKEND)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({})", self.dialer.config().topology)
    }
}
