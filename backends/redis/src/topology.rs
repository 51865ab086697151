//! The way to the primary that serves a bucket: one server, what the sentinels say, or the slots of a cluster.
//!
//! The driver makes the connections and asks the sentinels. Slots, redirects and reconnecting are ours, because the
//! driver's own cluster connection sends again by itself what may have happened already, and does not tell which server
//! answered: a release that was sent twice would look like a lost lock, and a lost history like a kept one.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use distlock_core::{Epoch, Error, ErrorKind, Result};
use redis::sentinel::SentinelClient;

use crate::{
    cluster::{Cluster, Map},
    config::{Endpoint, Topology},
    connection::{Dialer, Link},
    error::{self, BACKEND},
    names::Bucket,
    node::Node,
    standing::Standing,
};

/// How long an operation waits for a connection that broke: longer than a restart of a server takes, shorter than anybody
/// waits for an answer. The try to connect itself may take longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first pause between two tries to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// The way to every primary, of one handle.
pub(crate) struct Router {
    pub(crate) dialer: Arc<Dialer>,
    shape: Shape,
}

enum Shape {
    Single(Arc<Node>),
    Sentinel {
        // A tokio mutex: the driver's client asks the sentinels in place.
        sentinels: Arc<tokio::sync::Mutex<SentinelClient>>,
        primary: Arc<Node>,
    },
    Cluster(Arc<Cluster>),
}

impl Router {
    pub(crate) fn new(dialer: Dialer) -> Result<Self> {
        let standings = dialer.standings();
        let node = |endpoint| Arc::new(Node::new(endpoint, standings));
        let shape = match &dialer.config().topology {
            Topology::Single(endpoint) => Shape::Single(node(endpoint.clone())),
            Topology::Sentinel { sentinels, primary } => Shape::Sentinel {
                sentinels: Arc::new(tokio::sync::Mutex::new(
                    dialer.sentinels(sentinels, primary)?,
                )),
                // Known by its name; where it is changes.
                primary: node(Endpoint::new(primary, 0)),
            },
            Topology::Cluster(seeds) => {
                let cluster = Cluster::new(seeds.clone(), Arc::clone(standings));
                Shape::Cluster(Arc::new(cluster))
            }
        };
        Ok(Self {
            dialer: Arc::new(dialer),
            shape,
        })
    }

    /// Whether keys of different buckets may not share a request.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.shape, Shape::Cluster(_))
    }

    /// The connection that leads to a bucket's primary, if there is no doubt about it.
    pub(crate) fn only_link(&self) -> Option<Arc<Link>> {
        match &self.shape {
            Shape::Single(node) | Shape::Sentinel { primary: node, .. } => node.live(),
            Shape::Cluster(_) => None,
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
        self.patiently(|| self.try_links()).await
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
    /// # Errors
    /// Whatever keeps a server from serving.
    pub(crate) async fn open(&self) -> Result<Vec<Arc<Link>>> {
        // Each step has a limit of its own, which says more of what is wrong; together they may take longer.
        let limit = self.dialer.config().connect_timeout;
        let links = tokio::select! {
            biased;
            links = self.try_links() => links?,
            () = self.dialer.clock().sleep(limit) => {
                return Err(self.silent(limit, " (option `connect_timeout`)"));
            }
        };
        for link in &links {
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
        Ok(links)
    }

    /// The store's history, as a client of this link sees it.
    pub(crate) fn epoch(&self, link: &Link) -> Epoch {
        match &self.shape {
            Shape::Single(_) | Shape::Sentinel { .. } => link.epoch().clone(),
            Shape::Cluster(cluster) => cluster.epoch(),
        }
    }

    /// A server said that it does not serve this any more: look again where to go.
    pub(crate) fn doubt(&self, link: &Link) {
        match &self.shape {
            Shape::Single(_) | Shape::Sentinel { .. } => link.abandon(),
            Shape::Cluster(cluster) => cluster.doubt(),
        }
    }

    pub(crate) fn hang_up(&self) {
        match &self.shape {
            Shape::Single(node) | Shape::Sentinel { primary: node, .. } => node.hang_up(),
            Shape::Cluster(cluster) => cluster.hang_up(),
        }
    }

    async fn try_links(&self) -> Result<Vec<Arc<Link>>> {
        match &self.shape {
            Shape::Cluster(cluster) => {
                let map = cluster.map(&self.dialer).await?;
                let links = map.primaries.iter().map(|node| node.connect(&self.dialer));
                futures_util::future::try_join_all(links)
                    .await
                    .inspect_err(|_| cluster.doubt())
            }
            Shape::Single(_) | Shape::Sentinel { .. } => {
                // Any bucket will do: there is one primary.
                self.try_link(Bucket::of("")).await.map(|link| vec![link])
            }
        }
    }

    async fn try_link(&self, bucket: Bucket) -> Result<Arc<Link>> {
        match &self.shape {
            Shape::Single(node) => node.connect(&self.dialer).await,
            Shape::Sentinel { sentinels, primary } => {
                let dial = |standing| {
                    dial_primary(Arc::clone(&self.dialer), Arc::clone(sentinels), standing)
                };
                primary.link(&self.dialer, dial).await
            }
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

async fn dial_primary(
    dialer: Arc<Dialer>,
    sentinels: Arc<tokio::sync::Mutex<SentinelClient>>,
    standing: Arc<Standing>,
) -> Result<Link> {
    let limit = dialer.patience();
    let asking = async { sentinels.lock().await.async_get_client().await };
    let names = dialer.config().topology.to_string();
    let client = tokio::select! {
        biased;
        client = asking => client.map_err(|error| error::of_asking_sentinels(&error, &names))?,
        () = dialer.clock().sleep(limit) => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("{names}: no sentinel answered in time (option `connect_timeout`)"),
            )
            .on(BACKEND));
        }
    };
    let address = client.get_connection_info().addr().to_string();
    let client = dialer.adopt(&client)?;
    dialer.dial(&client, &address, standing).await
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, message).on(BACKEND)
}
