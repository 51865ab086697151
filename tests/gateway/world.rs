//! The nodes, the store, the wires between the nodes, and the history.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock::backend::sync::Mutex;
use distlock::{Clock as _, Store, SystemClock, Target};
use distlock_checker::{Fact, History, Rules, Seen, What};
use distlock_gateway::{TokenKey, mint};
use distlock_harness::{FaultProxy, Process, Signal, eventually_async, free_port};
use distlock_kickout::{Device, NodeId, Uid};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    client::{Client, Hello, State},
    http::try_get,
    machine,
    wire::Wire,
};

/// The deadline of every step that has no reason to take long, on a machine that is busy with other
/// tests.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The bearer token of services that send.
pub(crate) const SEND_TOKEN: &str = "servers show this when they send";
/// The bearer token of administrators.
pub(crate) const ADMIN_TOKEN: &str = "administrators show this";
/// The configuration file of the nodes, in their folder, where a scenario needs one.
pub(crate) const CONFIG: &str = "distlock.toml";
const KEY: &str = "a key that is long enough for HS256";

/// The nodes, clients and wires of one scenario.
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) url: String,
    /// The store of the records, if it is another one.
    records: Option<String>,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// The nodes' intervals, and the promises that follow from them.
    pub(crate) rules: Rules,
    pub(crate) shared: Arc<Shared>,
    /// The output of nodes that were killed.
    pub(crate) past: Vec<String>,
    /// The accounts of the scenario.
    pub(crate) uids: BTreeSet<String>,
    /// Whether no client reacts to its notice.
    pub(crate) deaf: bool,
    /// The time for which a store keeps a dead node's locks, where that is longer than the lease or
    /// the lock.
    dead_for: Duration,
    /// The store's servers, if each node reaches them through wires of its own.
    servers: Vec<SocketAddr>,
    /// The time from which the machine's delay is measured.
    watched_us: u64,
    settings: Vec<(&'static str, String)>,
    /// The addresses at which clients find a node, by WebSocket and on plain TCP, if they must not
    /// change.
    pub(crate) fixed: BTreeMap<String, (SocketAddr, Option<SocketAddr>)>,
    home: TempDir,
}

/// The records of all clients.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) seen: Mutex<Vec<Seen>>,
    pub(crate) facts: Mutex<Vec<Fact>>,
    next: AtomicU64,
}

/// A node's process and the wire that leads to it.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) listen: SocketAddr,
    /// The address for clients on plain TCP, if it has one.
    pub(crate) framed: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
    /// The port of the node for other nodes, which connect to it through the wire.
    pub(crate) peer: SocketAddr,
    /// The proxy in front of the port for other nodes.
    pub(crate) wire: FaultProxy,
    /// The proxies to the servers of the store, one per server; empty where the world has no such
    /// proxies.
    pub(crate) store: Vec<FaultProxy>,
}

/// A login token for an account.
pub(crate) fn login_token(uid: &Uid) -> String {
    let key = TokenKey::new(KEY.as_bytes()).unwrap();
    mint(&key, uid, Duration::from_secs(3600)).unwrap()
}

/// Microseconds since the machine booted: the clock of the nodes' events.
pub(crate) fn now_us() -> u64 {
    u64::try_from(SystemClock.now().since_boot().as_micros()).unwrap()
}

pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

impl World {
    /// Makes a world over a store. The names of its nodes and accounts begin with `name`, so that
    /// several worlds can share one store.
    pub(crate) fn new(name: &str, url: &str) -> Self {
        let mut rules = Rules::default();
        rules.sweep = Duration::from_millis(500);
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            records: None,
            nodes: BTreeMap::new(),
            rules,
            shared: Arc::default(),
            past: Vec::new(),
            uids: BTreeSet::new(),
            deaf: false,
            dead_for: Duration::ZERO,
            servers: Vec::new(),
            watched_us: machine::start_watching(),
            settings: Vec::new(),
            fixed: BTreeMap::new(),
            home: tempfile::tempdir().unwrap(),
        }
    }

    /// Sets a key of the gateways' configuration.
    pub(crate) fn set(&mut self, key: &'static str, value: &str) {
        self.settings.retain(|(other, _)| *other != key);
        self.settings.push((key, value.to_owned()));
    }

    /// Writes a file into the folder of the nodes, such as [`CONFIG`].
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.home.path().join(name), text).unwrap();
    }

    /// Keeps the records in another store than the locks.
    pub(crate) fn records_in(mut self, url: &str) -> Self {
        self.records = Some(url.to_owned());
        self
    }

    /// Makes nodes that start later reach the store's servers through proxies of their own.
    pub(crate) fn wired(mut self, servers: &[SocketAddr]) -> Self {
        self.servers = servers.to_vec();
        self
    }

    /// Sets the time for which the store keeps a dead node's locks, whatever TTL the nodes request.
    pub(crate) fn dead_for(mut self, time: Duration) -> Self {
        self.dead_for = time;
        self
    }

    /// The promises against which the nodes are checked, with the measured delay of the machine.
    pub(crate) fn promises(&self) -> Rules {
        let mut rules = self.rules.clone();
        rules.node_lease = rules.node_lease.max(self.dead_for);
        rules.lock_ttl = rules.lock_ttl.max(self.dead_for);
        rules.slack += machine::late_since(self.watched_us);
        rules
    }

    /// Starts a node, or starts it again.
    pub(crate) async fn start(&mut self, node: &str) -> Result<()> {
        let name = self.node_name(node);
        let mut last = None;
        // Another program may take the chosen port before the node binds it, so the start is
        // repeated.
        for _ in 0..3 {
            match self.try_start(&name, self.fixed.get(node)).await {
                Ok(started) => {
                    self.nodes.insert(node.to_owned(), started);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("never tried")?)
    }

    async fn try_start(
        &self,
        name: &str,
        fixed: Option<&(SocketAddr, Option<SocketAddr>)>,
    ) -> Result<Node> {
        let any = (([127, 0, 0, 1], 0).into(), None);
        let (listen, tcp_listen) = fixed.unwrap_or(&any);
        let peer = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let wire = FaultProxy::start(peer).await?;
        let (mut url, mut store) = (self.url.clone(), Vec::new());
        for server in &self.servers {
            let wire = FaultProxy::start(*server).await?;
            url = url.replace(&server.to_string(), &wire.address().to_string());
            store.push(wire);
        }
        let mut command = self.tool(&url);
        command
            .args(["gateway", "run", "--events", "--node", name])
            .args(["--listen", &listen.to_string()])
            .args(["--admin-listen", "127.0.0.1:0"])
            .args(["--peer-listen", &peer.to_string()])
            .args(["--peer-advertise", &wire.address().to_string()])
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("DISTLOCK_GATEWAY_SEND_TOKEN", SEND_TOKEN)
            .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("DISTLOCK_LOG", "warn");
        if let Some(address) = tcp_listen {
            command.args(["--tcp-listen", &address.to_string()]);
        }
        if self.home.path().join(CONFIG).exists() {
            command.args(["--config", CONFIG]);
        }
        let times = [
            ("--lock-ttl", self.rules.lock_ttl),
            ("--lock-wait", self.rules.lock_wait),
            ("--kick-budget", self.rules.kick_budget),
            ("--node-lease", self.rules.node_lease),
            ("--grace", self.rules.grace),
            ("--sweep", self.rules.sweep),
        ];
        for (flag, time) in times {
            command.args([flag, &format!("{}ms", time.as_millis())]);
        }
        for (key, value) in &self.settings {
            command.env(format!("DISTLOCK_GATEWAY_{}", key.to_uppercase()), value);
        }
        let process = Process::spawn(&mut command)?;
        let ready = tokio::task::block_in_place(|| {
            process.wait_for_line(SOON * 2, |line| line.starts_with(r#"{"event":"ready""#))
        })?;
        let ready: Value = serde_json::from_str(&ready)?;
        let address = |key: &str| -> Result<SocketAddr> {
            Ok(ready[key].as_str().context("an address")?.parse()?)
        };
        Ok(Node {
            name: name.to_owned(),
            listen: address("listen")?,
            framed: address("tcp_listen").ok(),
            admin: address("admin_listen")?,
            peer,
            process,
            wire,
            store,
        })
    }

    /// The tool over this store, with no other setting.
    pub(crate) fn tool(&self, url: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distlock"));
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        command
            .env("DISTLOCK_BACKEND", url)
            .env("HOME", self.home.path())
            .current_dir(self.home.path());
        if let Some(records) = &self.records {
            command.env("DISTLOCK_RECORDS", records);
        }
        command
    }

    /// Opens a client of the store for the test itself.
    pub(crate) async fn open(&self) -> Store {
        let mut target = Target::new(self.url.as_str());
        if let Some(records) = &self.records {
            target = target.records_in(records.as_str());
        }
        distlock::open(target).await.unwrap()
    }

    pub(crate) fn node(&self, node: &str) -> &Node {
        &self.nodes[node]
    }

    pub(crate) fn node_id(&self, node: &str) -> NodeId {
        NodeId::new(self.node_name(node)).unwrap()
    }

    fn node_name(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    /// Makes an account of this world.
    pub(crate) fn uid(&mut self, name: &str) -> Uid {
        let uid = format!("{}-{name}", self.name);
        self.uids.insert(uid.clone());
        Uid::new(uid).unwrap()
    }

    /// Connects a device to a node and sends its login.
    pub(crate) async fn client(&self, uid: &Uid, device: &str, node: &str) -> Client {
        Box::pin(self.client_with(uid, device, node, Hello::login())).await
    }

    /// As [`client`](Self::client), with another login.
    pub(crate) async fn client_with(
        &self,
        uid: &Uid,
        device: &str,
        node: &str,
        hello: Hello,
    ) -> Client {
        let node = self.node(node);
        let token = login_token(uid);
        let stamp = Seen {
            at_us: 0,
            client: self.shared.next_number(),
            uid: uid.clone(),
            device: Device::new(device).unwrap(),
            node: NodeId::new(&node.name).unwrap(),
            what: What::LoginSent,
        };
        let shared = Arc::clone(&self.shared);
        if hello.framed {
            let to = node.framed.expect("this world has no front for plain TCP");
            return Client::connect(Wire::framed(to), &token, hello, stamp, shared).await;
        }
        Client::connect(Wire::websocket(node.listen), &token, hello, stamp, shared).await
    }

    /// As [`client`](Self::client), and waits until the login is confirmed.
    pub(crate) async fn log_in(&self, uid: &Uid, device: &str, node: &str) -> Client {
        let mut client = self.client(uid, device, node).await;
        client.wait_until_in().await;
        client
    }

    /// Logs a device in and out this many times.
    pub(crate) async fn log_in_and_out(&self, uid: &Uid, node: &str, times: usize) {
        for _ in 0..times {
            let mut client = self.log_in(uid, "comes and goes", node).await;
            client.leave();
            client
                .wait_for_state("gone", |state| *state == State::Closed)
                .await;
        }
    }

    /// Logs an unrelated account in and out on a node, before and during `happens`. The checker
    /// compares the durations.
    pub(crate) async fn compare_bystander_logins<T>(
        &self,
        quiet: &Uid,
        node: &str,
        happens: impl Future<Output = T>,
    ) -> T {
        // With this number the 99th percentile is not the slowest login.
        const TIMES: usize = 100;
        self.fact(Fact::Bystander { uid: quiet.clone() });
        self.log_in_and_out(quiet, node, TIMES).await;
        let from_us = now_us();
        let meanwhile = self.log_in_and_out(quiet, node, TIMES);
        let (outcome, ()) = tokio::join!(happens, meanwhile);
        self.fact(Fact::Trouble {
            from_us,
            to_us: now_us(),
        });
        outcome
    }

    pub(crate) fn fact(&self, fact: Fact) {
        self.shared.facts.lock().push(fact);
    }

    /// Kills a node with SIGKILL, as a crash does.
    pub(crate) fn kill(&mut self, node: &str) {
        let mut dead = self.nodes.remove(node).unwrap();
        dead.process.signal(Signal::KILL).unwrap();
        tokio::task::block_in_place(|| dead.process.wait(SOON)).unwrap();
        self.fact(Fact::Killed {
            node: NodeId::new(&dead.name).unwrap(),
            at_us: now_us(),
        });
        self.past.push(dead.process.output());
    }

    /// Stops a node in order, as `systemctl stop` does.
    pub(crate) fn stop(&mut self, node: &str) -> Result<()> {
        let mut ending = self.nodes.remove(node).context("a running node")?;
        ending.process.signal(Signal::TERM)?;
        let status = tokio::task::block_in_place(|| ending.process.wait(SOON))?;
        self.past.push(ending.process.output());
        ensure!(status.success(), "{node} ended with {status}");
        Ok(())
    }

    /// Waits until a node takes logins.
    pub(crate) async fn until_up(&self, node: &str) {
        let listen = self.node(node).listen;
        eventually_async("the node is up", SOON, async || {
            let health = try_get(listen, "/healthz").await.ok()?;
            health.starts_with("HTTP/1.1 200").then_some(())
        })
        .await
        .unwrap();
    }

    /// Stops the process of a node until `happens` is done.
    pub(crate) async fn while_stopped<T>(&self, node: &str, happens: impl Future<Output = T>) -> T {
        let from_us = now_us();
        let id = self.node(node).process.id();
        self.node(node).process.signal(Signal::STOP).unwrap();
        let outcome = happens.await;
        distlock_harness::signal(id, Signal::CONT).unwrap();
        let to_us = now_us();
        let node = self.node_id(node);
        self.fact(Fact::Paused {
            node,
            from_us,
            to_us,
        });
        outcome
    }

    /// The history so far.
    pub(crate) fn history(&self) -> Result<History> {
        let mut history = History {
            clients: self.shared.seen.lock().clone(),
            facts: self.shared.facts.lock().clone(),
            ..History::default()
        };
        for past in &self.past {
            history.read_node(past.lines())?;
        }
        for node in self.nodes.values() {
            history.read_node(node.process.output().lines())?;
        }
        history.clients.sort_by_key(|seen| seen.at_us);
        Ok(history)
    }
}

impl Node {
    /// Applies a fault to every wire between the node and the store.
    pub(crate) fn store_link(&self, what: impl Fn(&FaultProxy)) {
        assert!(
            !self.store.is_empty(),
            "this world has no wires to its store"
        );
        self.store.iter().for_each(what);
    }
}

impl Shared {
    /// Returns the number of the next client.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn record(&self, stamp: &Seen, what: What) {
        let mut seen = self.seen.lock();
        seen.push(Seen {
            at_us: now_us(),
            what,
            ..stamp.clone()
        });
    }
}
