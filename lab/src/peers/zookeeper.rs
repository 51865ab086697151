//! ZooKeeper: the plain operations one by one, and the lock recipe of the crate `zookeeper-client`,
//! beside distlock. All arms use the same server of one ensemble. The arm of the lower bound
//! measures one creation and one deletion, which is the least cost of any recipe.

use std::{mem::ManuallyDrop, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use distlock_core::SystemClock;
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper as Ensemble};
use distlock_report::{Arm, Options, Report, Subject, Workload};
use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};
use zookeeper_client::{self as zk, Acls, Client, CreateMode, LockClient, LockOptions, LockPrefix};

use crate::peers::target::{Target, measure_beside};

/// The scheme in front of an ensemble's servers.
const SCHEME: &str = "zookeeper";

/// Returns an ensemble that runs already: `host:port,host:port`, with `user:password@` in front if
/// the ensemble needs a user. Every arm connects to the first server.
pub(crate) fn existing_server(servers: &str) -> Target {
    let first = servers.split(',').next().unwrap_or(servers);
    Target::existing_server(format!("{SCHEME}://{first}"))
}

/// Starts three private servers. Every arm connects to their leader, because a write to the leader
/// takes less time than a write to a follower. `delay` is added to each direction.
pub(crate) fn start_private(
    folder: Option<PathBuf>,
    delay: Option<Duration>,
) -> anyhow::Result<Target> {
    let ensemble = Ensemble::start_with(&Setup {
        // Tests use JVMs that start fast. A measurement needs JVMs that optimise fully.
        optimised: true,
        flushed: true,
        // The default tick of ZooKeeper. The tick decides how often the backend proves its session.
        tick: Duration::from_secs(2),
        folder,
        ..Setup::default()
    })?;
    let leader = ensemble.address(ensemble.leader()?);
    let url = format!("{SCHEME}://{}", ensemble.reached_at(&[leader]));
    Target::private_server(ensemble, leader, &url, delay)
}

/// Returns the servers in a URL of an ensemble, with the user before the servers. `None` means that
/// the URL has another scheme.
pub(crate) fn servers_in_url(url: &str) -> Option<&str> {
    url.strip_prefix(SCHEME)?.strip_prefix("://")
}

/// Measures the arms on the ensemble at `url`.
pub(crate) async fn run(workload: Workload, options: Options, url: &str) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let server = servers_in_url(url).context("the URL of an ensemble")?;
    let mut arms = Vec::new();
    if !workload.shares_one_name() {
        for listing in [true, false] {
            let plain = OneByOne {
                client: connect_client(server).await?,
                acls: acls_for(server),
                listing,
            };
            let name = if listing {
                "zookeeper-one-by-one"
            } else {
                "zookeeper-floor"
            };
            arms.push(Arm::new(name, plain));
        }
    }
    let recipe = Recipe(connect_client(server).await?, acls_for(server));
    arms.push(Arm::new("zookeeper-client", recipe));
    let store = open(server).await?;
    measure_beside(arms, "distlock-zookeeper", store.lock(), workload, &options).await
}

/// Opens distlock's store.
pub(crate) async fn open(servers: &str) -> distlock_core::Result<ZooKeeper> {
    let config = ZooKeeperConfig::from_url_parts(&format!("//{servers}/distlock-bench"), &[])?;
    ZooKeeper::open(config, Arc::new(SystemClock)).await
}

/// Opens a client of the ensemble. The client lives until the process ends.
pub(crate) async fn connect_client(servers: &str) -> anyhow::Result<&'static Client> {
    let mut connector = Client::connector().with_session_timeout(Duration::from_secs(5));
    let hosts = match servers.rsplit_once('@') {
        Some((user, hosts)) => {
            connector = connector.with_auth("digest", user.as_bytes());
            hosts
        }
        None => servers,
    };
    let client = connector.connect(hosts).await.context("connect")?;
    // Locks of the recipe borrow their client, so the client must outlive all locks.
    Ok(Box::leak(Box::new(client)))
}

const ROOT: &str = "/peers";

/// Returns an access list with all rights for the user in `servers`, or for everybody if there is
/// no user.
fn acls_for(servers: &str) -> Acls<'static> {
    if servers.contains('@') {
        Acls::creator_all()
    } else {
        Acls::anyone_all()
    }
}

fn container_path(name: &str) -> String {
    format!("{ROOT}/{}", distlock_core::encode(name))
}

/// The plain arm: creation, listing and deletion. Each request is awaited before the next request
/// is sent. The arm cannot wait for a lock, so each caller needs a name of its own.
#[derive(Debug)]
struct OneByOne {
    client: &'static Client,
    acls: Acls<'static>,
    /// Whether the queue is listed. Without the listing the arm excludes nobody. The arm then shows
    /// the least cost of creating and deleting a node.
    listing: bool,
}

impl Subject for OneByOne {
    type Held = String;
    type Error = zk::Error;

    async fn acquire(&self, name: &str) -> Result<String, zk::Error> {
        let container = container_path(name);
        let path = format!("{container}/n-");
        let options = CreateMode::EphemeralSequential.with_acls(self.acls);
        let sequence = loop {
            match self.client.create(&path, b"peer", &options).await {
                Ok((_, sequence)) => break sequence,
                Err(zk::Error::NoNode) => {
                    let parents = CreateMode::Container.with_acls(self.acls);
                    self.client.mkdir(&container, &parents).await?;
                }
                Err(error) => return Err(error),
            }
        };
        if self.listing {
            let children = self.client.list_children(&container).await?;
            assert_eq!(children.len(), 1, "somebody else wants {name}");
        }
        Ok(format!("{path}{sequence}"))
    }

    async fn release(&self, held: String) -> Result<(), zk::Error> {
        self.client.delete(&held, None).await
    }
}

/// The arm with the lock recipe of `zookeeper-client`. A release awaits the deletion of the node.
#[derive(Debug)]
struct Recipe(&'static Client, Acls<'static>);

impl Subject for Recipe {
    // With `ManuallyDrop`, the lock of the recipe is never dropped. A drop would delete the node a
    // second time in the background.
    type Held = ManuallyDrop<LockClient<'static>>;
    type Error = zk::Error;

    async fn acquire(&self, name: &str) -> Result<Self::Held, zk::Error> {
        let container = container_path(name);
        let prefix = LockPrefix::new_curator(&container, "lock-")?;
        let options = LockOptions::new(self.1)
            .with_ancestor_options(CreateMode::Container.with_acls(self.1))?;
        self.0
            .lock(prefix, b"peer", options)
            .await
            .map(ManuallyDrop::new)
    }

    async fn release(&self, held: Self::Held) -> Result<(), zk::Error> {
        self.0.delete(held.lock_path(), None).await
    }
}
