//! A group of gateway nodes on one store. The nodes are tasks of this process, or processes of
//! their own.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Reach, Store, Target};
use distlock_gateway::{Gateway, GatewayConfig, TokenKey, Uid, mint};
use distlock_kickout::KickOut;
use distlock_report::CountingStore;
use tokio::{sync::oneshot, task::JoinHandle};

use distlock_cli::program::{Node, open_client};

/// The lifetime of the tokens of all clients: longer than any run.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);

/// The longest time for an interrupted run to remove its records.
const REMOVAL_LIMIT: Duration = Duration::from_secs(5);

/// The store that the nodes share, with names that no other run uses.
#[derive(Debug)]
pub(crate) struct SharedStore {
    target: Target,
    /// The open client, if the store lives in one process. A second `open` would give another,
    /// empty store.
    shared: Option<Store>,
    backend: &'static str,
    run: String,
    key: String,
}

impl SharedStore {
    /// Prepares a run on `target`. `store` is an open client of it.
    pub(crate) fn new(target: Target, store: &Store) -> Self {
        let lock = store.backend();
        let process = lock.capabilities().reach == Reach::Process;
        Self {
            target,
            shared: process.then(|| store.clone()),
            backend: lock.capabilities().backend,
            run: format!("bench{:08x}", fastrand::u32(..)),
            key: uuid::Uuid::new_v4().to_string(),
        }
    }

    /// The name of the backend.
    pub(crate) const fn backend(&self) -> &'static str {
        self.backend
    }

    /// Whether processes can share the store.
    pub(crate) const fn is_shared_by_processes(&self) -> bool {
        self.shared.is_none()
    }

    /// Opens another client, as another process would.
    pub(super) async fn open_client(&self) -> distlock::Result<Store> {
        open_client(self.target.clone(), self.shared.clone()).await
    }

    /// Makes an account of this run, with a login token for it.
    pub(super) fn new_account(&self, name: &str) -> Result<(Uid, String)> {
        let uid = Uid::new(format!("{}-{name}", self.run))?;
        let key = TokenKey::new(self.key.as_bytes())?;
        let token = mint(&key, &uid, TOKEN_TTL)?;
        Ok((uid, token))
    }

    /// Removes records as [`remove_records`](Self::remove_records) does, within a short time. Nodes
    /// may still be ending meanwhile.
    pub(crate) async fn remove_records_within_limit(&self) {
        drop(tokio::time::timeout(REMOVAL_LIMIT, self.remove_records()).await);
    }

    /// Removes the records of all accounts of this run, which would otherwise stay for ever.
    pub(super) async fn remove_records(&self) -> distlock::Result<()> {
        let store = self.open_client().await?;
        let records = store.records();
        for kind in ["sess", "rev", "inbox"] {
            let prefix = format!("{kind}/{}", self.run);
            loop {
                let found = records.scan(&prefix, None, 500).await?;
                if found.is_empty() {
                    break;
                }
                let deleting = found.into_iter().map(|(key, entry)| {
                    let records = records.clone();
                    async move { records.delete(&key, entry.version).await }
                });
                futures_util::future::try_join_all(deleting).await?;
            }
        }
        store.close().await;
        Ok(())
    }
}

/// The nodes of one group.
#[derive(Debug)]
pub(super) struct Group {
    nodes: Vec<GroupNode>,
    counting: Vec<CountingStore>,
}

#[derive(Debug)]
enum GroupNode {
    Task {
        listen: SocketAddr,
        kick: KickOut,
        admin: SocketAddr,
        stop: oneshot::Sender<()>,
        running: JoinHandle<distlock::Result<()>>,
        store: Store,
    },
    Process {
        listen: SocketAddr,
        node: Box<Node>,
    },
}

impl Group {
    /// Starts `nodes` nodes, whose names begin with `name`. `settings` override the defaults.
    pub(super) async fn start(
        shared_store: &SharedStore,
        name: &str,
        nodes: u32,
        processes: bool,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let mut group = Self {
            nodes: Vec::new(),
            counting: Vec::new(),
        };
        for number in 1..=nodes {
            let name = format!("{}-{name}{number}", shared_store.run);
            // The accounts of a measurement log in far more often than people do, so the rate
            // limits are off.
            let mut all = vec![("login_rate", "0"), ("send_rate", "0"), ("pair_rate", "0")];
            all.extend_from_slice(settings);
            let node = if processes {
                group.start_process(shared_store, &name, &all).await
            } else {
                group.start_task(shared_store, &name, &all).await
            };
            group
                .nodes
                .push(node.with_context(|| format!("start node {name}"))?);
        }
        Ok(group)
    }

    /// Starts a node as a task of this process, with a store whose calls are counted.
    async fn start_task(
        &mut self,
        shared_store: &SharedStore,
        name: &str,
        settings: &[(&str, &str)],
    ) -> Result<GroupNode> {
        let inner = shared_store.open_client().await?;
        let counting = CountingStore::new(&inner);
        let store = counting.store();
        self.counting.push(counting);
        let mut config = GatewayConfig::default();
        for (key, value) in [
            ("node", name),
            ("listen", "127.0.0.1:0"),
            ("peer_listen", "127.0.0.1:0"),
            ("admin_listen", "127.0.0.1:0"),
            ("token_key", &shared_store.key),
            // All clients are on this machine.
            ("max_per_address", "1000000"),
            ("max_pending_per_address", "1000000"),
        ]
        .iter()
        .chain(settings)
        {
            config.set(key, value)?;
        }
        let gateway = Box::pin(Gateway::start(config, store.clone())).await?;
        let (listen, admin) = (gateway.ready().listen, gateway.ready().admin_listen);
        let kick = gateway.kick_out().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            Box::pin(gateway.run(async {
                let _ = stopped.await;
            }))
            .await
        });
        Ok(GroupNode::Task {
            listen,
            kick,
            admin,
            stop,
            running,
            store,
        })
    }

    /// Starts a node as a process of its own.
    async fn start_process(
        &mut self,
        shared_store: &SharedStore,
        name: &str,
        settings: &[(&str, &str)],
    ) -> Result<GroupNode> {
        let more: Vec<String> = settings
            .iter()
            .flat_map(|(key, value)| [format!("--{}", key.replace('_', "-")), (*value).to_owned()])
            .collect();
        let target = &shared_store.target;
        let (node, _) = Node::start(name, target, &shared_store.key, &more).await?;
        Ok(GroupNode::Process {
            listen: node.listen.parse()?,
            node: Box::new(node),
        })
    }

    /// The addresses for clients.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes
            .iter()
            .map(|node| match node {
                GroupNode::Task { listen, .. } | GroupNode::Process { listen, .. } => *listen,
            })
            .collect()
    }

    /// The flow of the first node and its address for administrators; `None` where nodes are
    /// processes.
    pub(super) fn flow(&self) -> Option<(KickOut, SocketAddr)> {
        match self.nodes.first()? {
            GroupNode::Task { kick, admin, .. } => Some((kick.clone(), *admin)),
            GroupNode::Process { .. } => None,
        }
    }

    /// The process id of the first node; `None` where nodes are tasks.
    pub(super) fn process_id(&self) -> Option<u32> {
        match self.nodes.first()? {
            GroupNode::Task { .. } => None,
            GroupNode::Process { node, .. } => node.id(),
        }
    }

    /// The number of calls to the store so far, without scans; `None` where nodes are processes.
    pub(super) fn calls(&self) -> Option<u64> {
        (!self.counting.is_empty()).then(|| self.counting.iter().map(CountingStore::calls).sum())
    }

    /// Ends the nodes in an orderly way.
    pub(super) async fn stop(self) {
        let stopping = self.nodes.into_iter().map(|node| async {
            match node {
                GroupNode::Task {
                    stop,
                    running,
                    store,
                    kick,
                    ..
                } => {
                    drop((stop, kick));
                    drop(running.await);
                    store.close().await;
                }
                GroupNode::Process { node, .. } => node.stop().await,
            }
        });
        futures_util::future::join_all(stopping).await;
    }
}
