//! A store while it runs: its servers, and the ways to pause, kill and empty them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use distlock::Target;
use distlock_harness::servers::{
    lock_server::LockServer,
    mysql::{MySqlServer, Product},
    postgres::{Paused, PostgresServer},
    redis::RedisServer,
};
use distlock_harness::{FaultProxy, Signal};

use super::{
    cluster::ClusterStore, ensemble::EnsembleStore, independent::IndependentServers,
    kinds::StoreKind, sentinels::SentinelStore,
};
use crate::{
    chaos::history::Excuse,
    served::{ServedStore, WrongRestart},
};

/// The ZooKeeper node that contains a run.
pub(super) const ROOT: &str = "/chaos";

/// The longest lease of a lock server. It is short, so that the recovery after a crash is short.
const MAX_LEASE: Duration = Duration::from_secs(4);

/// A store while it runs.
#[derive(Debug)]
pub(crate) struct RunningStore {
    pub(crate) kind: StoreKind,
    pub(super) servers: StoreServers,
}

/// The servers of a store, by kind.
#[derive(Debug)]
pub(super) enum StoreServers {
    /// The store is in the memory of the one process that uses it.
    InProcess,
    File(PathBuf),
    Redis(RedisServer),
    Sentinels(SentinelStore),
    Cluster(ClusterStore),
    Independent(IndependentServers),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ZooKeeper(EnsembleStore),
    Served(ServedStore),
}

/// A stopped server. A paused Postgres continues when this value is dropped. Other servers continue
/// when [`RunningStore::resume`] is called.
#[derive(Debug)]
pub(crate) enum PausedServer {
    Postgres(Paused),
    /// The index of the server; 0 if there is only one.
    Numbered(usize),
}

impl PausedServer {
    /// Returns the index of the server. `None` means that the store is Postgres.
    pub(crate) const fn index(&self) -> Option<usize> {
        match self {
            Self::Numbered(at) => Some(*at),
            Self::Postgres(_) => None,
        }
    }
}

impl RunningStore {
    /// Starts a store. `settable_clock` means that the run may put the server's clock forward. The
    /// function blocks.
    pub(crate) fn start(kind: StoreKind, folder: &Path, settable_clock: bool) -> Result<Self> {
        let mysql = if settable_clock {
            MySqlServer::with_clock
        } else {
            MySqlServer::start
        };
        let servers = match kind {
            StoreKind::Memory => StoreServers::InProcess,
            StoreKind::Sqlite => StoreServers::File(folder.join("chaos.db")),
            StoreKind::Redis => StoreServers::Redis(RedisServer::start()?),
            StoreKind::RedisSentinel => StoreServers::Sentinels(SentinelStore::start()?),
            StoreKind::RedisCluster => StoreServers::Cluster(ClusterStore::start()?),
            StoreKind::Quorum => {
                let records = folder.join("records.db");
                let mut servers = IndependentServers::start(settable_clock)?;
                servers.make_quorum(records)?;
                StoreServers::Independent(servers)
            }
            StoreKind::Ring => {
                let mut servers = IndependentServers::start(settable_clock)?;
                servers.make_ring()?;
                StoreServers::Independent(servers)
            }
            StoreKind::Mariadb => StoreServers::MySql(mysql(Product::MariaDb)?),
            StoreKind::Mysql => StoreServers::MySql(mysql(Product::MySql)?),
            StoreKind::Postgres if settable_clock => {
                StoreServers::Postgres(PostgresServer::with_clock()?)
            }
            StoreKind::Postgres => StoreServers::Postgres(PostgresServer::start()?),
            StoreKind::Zookeeper => StoreServers::ZooKeeper(EnsembleStore::start()?),
            StoreKind::LockServer => StoreServers::Served(ServedStore::in_memory(MAX_LEASE)?),
            StoreKind::Agents => StoreServers::Served(ServedStore::agents(MAX_LEASE)?),
        };
        Ok(Self { kind, servers })
    }

    /// Starts the servers of a quorum for a control that asks them by itself. The function blocks.
    pub(crate) fn start_independent_servers(settable_clock: bool) -> Result<Self> {
        Ok(Self {
            kind: StoreKind::Quorum,
            servers: StoreServers::Independent(IndependentServers::start(settable_clock)?),
        })
    }

    /// Tells whether the store is in the memory of one process, so that no other process can reach
    /// the store.
    pub(crate) const fn is_in_process(&self) -> bool {
        matches!(self.servers, StoreServers::InProcess)
    }

    /// Returns the file of an embedded store.
    pub(crate) fn database_path(&self) -> Option<&Path> {
        match &self.servers {
            StoreServers::File(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the Redis servers that keep data.
    pub(super) fn redis_servers(&self) -> Vec<&RedisServer> {
        match &self.servers {
            StoreServers::Redis(it) => vec![it],
            StoreServers::Independent(it) => it.servers().iter().collect(),
            StoreServers::Sentinels(it) => it.data_servers().to_vec(),
            StoreServers::Cluster(it) => it.nodes().iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the addresses of the servers, if a proxy can stand in front of them.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match &self.servers {
            StoreServers::InProcess
            | StoreServers::File(_)
            | StoreServers::Sentinels(_)
            | StoreServers::Cluster(_) => Vec::new(),
            StoreServers::Redis(it) => vec![it.address()],
            StoreServers::Independent(it) => {
                it.servers().iter().map(RedisServer::address).collect()
            }
            StoreServers::MySql(it) => vec![it.address()],
            StoreServers::Postgres(it) => vec![it.address()],
            StoreServers::ZooKeeper(it) => {
                let servers = 0..it.servers.len();
                servers.map(|at| it.servers.address(at)).collect()
            }
            StoreServers::Served(it) => it.servers.iter().map(LockServer::address).collect(),
        }
    }

    /// Returns the URL by which a client opens the store without a proxy.
    pub(crate) fn url(&self) -> String {
        match &self.servers {
            StoreServers::InProcess => "memory:chaos".into(),
            StoreServers::File(path) => format!("sqlite:{}", path.display()),
            StoreServers::Redis(it) => it.url(),
            StoreServers::Sentinels(it) => it.url(),
            StoreServers::Cluster(it) => it.url(),
            StoreServers::Independent(it) => it.url(),
            StoreServers::MySql(it) => it.url(),
            StoreServers::Postgres(it) => it.url(),
            StoreServers::ZooKeeper(it) => {
                let servers = it.servers.servers();
                format!("zookeeper://{servers}{ROOT}?session_timeout=2s")
            }
            StoreServers::Served(it) => it.url(),
        }
    }

    /// Returns the URL of the store with the records, if that is another store.
    pub(crate) fn records_url(&self) -> Option<String> {
        match &self.servers {
            StoreServers::Independent(it) => it.records_url(),
            _ => None,
        }
    }

    /// Returns what a client opens without a proxy.
    pub(crate) fn target(&self) -> Target {
        target(&self.url(), self.records_url())
    }

    /// Returns [`RunningStore::url`] with one proxy in place of each of
    /// [`RunningStore::addresses`].
    pub(crate) fn url_through(&self, proxies: &[FaultProxy]) -> String {
        let ways = self.addresses().into_iter().zip(proxies);
        ways.fold(self.url(), |url, (address, proxy)| {
            url.replace(&address.to_string(), &proxy.address().to_string())
        })
    }

    /// Pauses a server with SIGSTOP. `pick` modulo the number of servers is the index.
    pub(crate) fn pause(&self, pick: usize) -> Result<PausedServer> {
        Ok(match &self.servers {
            StoreServers::Postgres(it) => PausedServer::Postgres(it.pause()?),
            StoreServers::Redis(it) => {
                it.signal(Signal::STOP)?;
                PausedServer::Numbered(0)
            }
            StoreServers::Independent(it) => {
                let at = pick % it.servers().len();
                it.servers()[at].signal(Signal::STOP)?;
                PausedServer::Numbered(at)
            }
            StoreServers::MySql(it) => {
                it.signal(Signal::STOP)?;
                PausedServer::Numbered(0)
            }
            StoreServers::Sentinels(it) => {
                let at = pick % it.server_count();
                it.server(at).signal(Signal::STOP)?;
                PausedServer::Numbered(at)
            }
            StoreServers::Cluster(it) => {
                let at = pick % it.nodes().len();
                it.nodes()[at].signal(Signal::STOP)?;
                PausedServer::Numbered(at)
            }
            StoreServers::ZooKeeper(it) => {
                let at = pick % it.servers.len();
                it.servers.pause(at)?;
                PausedServer::Numbered(at)
            }
            StoreServers::Served(it) => {
                let at = pick % it.servers.len();
                it.servers[at].signal(Signal::STOP)?;
                PausedServer::Numbered(at)
            }
            StoreServers::InProcess | StoreServers::File(_) => {
                bail!("an embedded store has no server")
            }
        })
    }

    /// Lets a paused server continue.
    pub(crate) fn resume(&self, paused: PausedServer) -> Result<()> {
        match (paused, &self.servers) {
            (PausedServer::Postgres(paused), _) => drop(paused),
            (PausedServer::Numbered(_), StoreServers::Redis(it)) => it.signal(Signal::CONT)?,
            (PausedServer::Numbered(at), StoreServers::Independent(it)) => {
                it.servers()[at].signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(_), StoreServers::MySql(it)) => it.signal(Signal::CONT)?,
            (PausedServer::Numbered(at), StoreServers::Sentinels(it)) => {
                it.server(at).signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(at), StoreServers::Cluster(it)) => {
                it.nodes()[at].signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(at), StoreServers::ZooKeeper(it)) => it.servers.resume(at)?,
            (PausedServer::Numbered(at), StoreServers::Served(it)) => {
                it.servers[at].signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(_), _) => {}
        }
        Ok(())
    }

    /// Kills a server without a shutdown, and returns its index: `pick` modulo the number of
    /// servers.
    pub(crate) fn kill(&mut self, pick: usize) -> usize {
        match &mut self.servers {
            StoreServers::Redis(it) => it.kill(),
            StoreServers::Independent(it) => return it.kill(pick),
            StoreServers::MySql(it) => it.kill(),
            StoreServers::Postgres(it) => it.kill(),
            StoreServers::Sentinels(it) => {
                let at = pick % it.server_count();
                it.server_mut(at).kill();
                return at;
            }
            StoreServers::Cluster(it) => {
                let at = pick % it.nodes().len();
                it.node_mut(at).kill();
                return at;
            }
            StoreServers::ZooKeeper(it) => {
                let at = pick % it.servers.len();
                it.servers.kill(at);
                return at;
            }
            StoreServers::Served(it) => {
                let at = pick % it.servers.len();
                it.servers[at].kill();
                return at;
            }
            StoreServers::InProcess | StoreServers::File(_) => {}
        }
        0
    }

    /// Restarts a killed server on the data that it kept. The function blocks.
    pub(crate) fn restart_server(&mut self, at: usize) -> Result<()> {
        match &mut self.servers {
            StoreServers::Redis(it) => it.restart(),
            StoreServers::Independent(it) => it.restart(at),
            StoreServers::MySql(it) => it.restart(),
            StoreServers::Postgres(it) => it.restart(),
            StoreServers::Sentinels(it) => it.server_mut(at).restart(),
            StoreServers::Cluster(it) => it.node_mut(at).restart(),
            StoreServers::ZooKeeper(it) => it.servers.restart(at),
            StoreServers::Served(it) => it.restart_after_crash(at),
            StoreServers::InProcess | StoreServers::File(_) => Ok(()),
        }
    }

    /// Stops a lock server in order, and starts it again. The function blocks.
    pub(crate) fn restart_in_order(&mut self, pick: usize) -> Result<()> {
        let served = self.served()?;
        served.restart_in_order(pick % served.servers.len())
    }

    /// Starts a lock server with an older copy of its state, which it refuses, and then without
    /// state. The function blocks.
    pub(crate) fn roll_back(&mut self, pick: usize) -> Result<()> {
        let served = self.served()?;
        let at = pick % served.servers.len();
        served.servers[at].roll_back()
    }

    /// Sets how a lock server is restarted after a crash, to plant a bug.
    pub(crate) fn restart_wrongly(&mut self, wrong: WrongRestart) -> Result<()> {
        self.served()?.wrong_restart = Some(wrong);
        Ok(())
    }

    /// Returns the state file of a lock server with its locks in its memory.
    pub(crate) fn server_state(&self) -> Option<PathBuf> {
        match (self.kind, &self.servers) {
            (StoreKind::LockServer, StoreServers::Served(it)) => {
                it.servers.first().map(LockServer::state_path)
            }
            _ => None,
        }
    }

    fn served(&mut self) -> Result<&mut ServedStore> {
        match &mut self.servers {
            StoreServers::Served(it) => Ok(it),
            _ => bail!("this store has no lock server"),
        }
    }

    /// Kills a server and restarts it without its data. Returns the exception that the
    /// documentation allows then, if it allows one. The function blocks.
    pub(crate) fn wipe(&mut self, pick: usize) -> Result<Option<Excuse>> {
        match &mut self.servers {
            StoreServers::Redis(it) => it.restart_empty()?,
            // The other servers still know every lock.
            StoreServers::Independent(it) => return it.wipe(pick).map(|()| None),
            _ => anyhow::bail!("the data of this store cannot be deleted"),
        }
        Ok(Some(Excuse::LostHistory))
    }

    /// Ends every connection of a client, as an administrator can. The function blocks.
    pub(crate) fn end_connections(&self) -> Result<()> {
        match &self.servers {
            StoreServers::Postgres(it) => it
                .sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                )
                .map(drop),
            StoreServers::MySql(it) => {
                // MySQL fails to read its process table by SELECT while a running statement
                // contains bytes that are no text.
                let all = it.sql("SHOW PROCESSLIST")?;
                let clients = all
                    .lines()
                    .filter(|line| !line.contains("SHOW PROCESSLIST"));
                for client in clients {
                    let mut fields = client.split('\t');
                    let (id, user) = (fields.next(), fields.next());
                    // The first line is a header, and some threads belong to the server itself.
                    let Some(id) = id.and_then(|id| id.parse::<u64>().ok()) else {
                        continue;
                    };
                    if user == Some("system user") || user == Some("event_scheduler") {
                        continue;
                    }
                    // A connection that has ended meanwhile gives an error, which does no harm.
                    let _ = it.sql(&format!("KILL {id}"));
                }
                Ok(())
            }
            _ => self.run_on_each_redis(&["CLIENT", "KILL", "TYPE", "normal"]),
        }
    }

    /// Makes Redis servers forget the scripts that clients have loaded. The function blocks.
    pub(crate) fn forget_scripts(&self) -> Result<()> {
        self.run_on_each_redis(&["SCRIPT", "FLUSH"])
    }

    /// Runs one command on each Redis server that keeps data.
    fn run_on_each_redis(&self, command: &[&str]) -> Result<()> {
        for server in self.redis_servers() {
            server.command(command)?;
        }
        Ok(())
    }

    /// Deletes all data of the store, of independent servers those of one. Returns the exception
    /// that the documentation allows then, if it allows one. The function blocks.
    pub(crate) fn delete_all_data(&mut self, pick: usize) -> Result<Option<Excuse>> {
        if let StoreServers::Independent(it) = &mut self.servers {
            return it.delete_data(pick).map(|()| None);
        }
        if self.redis_servers().is_empty() {
            bail!("this store has no command that deletes all data");
        }
        // A replica refuses the command, and copies the deletion of its primary.
        self.run_on_each_redis(&["FLUSHALL"]).context("FLUSHALL")?;
        Ok(Some(Excuse::LostHistory))
    }

    /// Tells whether the servers are independent, so that each can be broken apart from the others.
    pub(crate) const fn has_independent_servers(&self) -> bool {
        matches!(self.servers, StoreServers::Independent(_))
    }

    /// Tells whether a member of a quorum has no vote now.
    pub(crate) fn is_silent(&self, at: usize) -> bool {
        matches!(&self.servers, StoreServers::Independent(it) if it.is_silent(at))
    }

    /// Adds a member to a ring, or removes one, and returns what was done. `None` if nothing could
    /// be changed.
    pub(crate) async fn change_ring(&self, pick: usize) -> Option<String> {
        match &self.servers {
            StoreServers::Independent(it) => it.change_ring(pick).await,
            _ => None,
        }
    }

    /// Returns how many more servers can be lost without a loss of the majority. Other stores than
    /// a quorum need no spare server for a fault.
    pub(crate) fn spare_servers(&self) -> usize {
        match &self.servers {
            StoreServers::Independent(it) => it.spare(),
            _ => usize::MAX,
        }
    }
}

/// Returns what a client opens: locks at one URL, and perhaps records at another.
pub(crate) fn target(url: &str, records_url: Option<String>) -> Target {
    let target = Target::new(url);
    match records_url {
        Some(records) => target.records_in(records),
        None => target,
    }
}
