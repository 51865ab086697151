//! A store while it runs: its servers, and the ways to pause, kill and empty them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::{Paused, PostgresServer},
    redis::RedisServer,
};
use distlock_harness::{FaultProxy, Signal};

use super::{
    cluster::ClusterStore, ensemble::EnsembleStore, kinds::StoreKind, sentinels::SentinelStore,
};
use crate::chaos::history::Excuse;

/// The ZooKeeper node that contains a run.
pub(super) const ROOT: &str = "/chaos";

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
    /// Redis servers that do not know each other.
    IndependentRedis(Vec<RedisServer>),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ZooKeeper(EnsembleStore),
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
            StoreKind::Mariadb => StoreServers::MySql(mysql(Product::MariaDb)?),
            StoreKind::Mysql => StoreServers::MySql(mysql(Product::MySql)?),
            StoreKind::Postgres if settable_clock => {
                StoreServers::Postgres(PostgresServer::with_clock()?)
            }
            StoreKind::Postgres => StoreServers::Postgres(PostgresServer::start()?),
            StoreKind::Zookeeper => StoreServers::ZooKeeper(EnsembleStore::start()?),
        };
        Ok(Self { kind, servers })
    }

    /// Starts Redis servers that do not know each other. The function blocks.
    pub(crate) fn start_independent_redis(servers: usize) -> Result<Self> {
        let all = (0..servers).map(|_| RedisServer::start());
        Ok(Self {
            kind: StoreKind::Redis,
            servers: StoreServers::IndependentRedis(all.collect::<Result<_>>()?),
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
            StoreServers::IndependentRedis(all) => all.iter().collect(),
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
            StoreServers::IndependentRedis(all) => all.iter().map(RedisServer::address).collect(),
            StoreServers::MySql(it) => vec![it.address()],
            StoreServers::Postgres(it) => vec![it.address()],
            StoreServers::ZooKeeper(it) => {
                let servers = 0..it.servers.len();
                servers.map(|at| it.servers.address(at)).collect()
            }
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
            // The URL of a control with several servers is a list with commas.
            StoreServers::IndependentRedis(all) => {
                let urls: Vec<_> = all.iter().map(RedisServer::url).collect();
                urls.join(",")
            }
            StoreServers::MySql(it) => it.url(),
            StoreServers::Postgres(it) => it.url(),
            StoreServers::ZooKeeper(it) => {
                let servers = it.servers.servers();
                format!("zookeeper://{servers}{ROOT}?session_timeout=2s")
            }
        }
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
            StoreServers::IndependentRedis(all) => {
                all[pick % all.len()].signal(Signal::STOP)?;
                PausedServer::Numbered(pick % all.len())
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
            (PausedServer::Numbered(at), StoreServers::IndependentRedis(all)) => {
                all[at].signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(_), StoreServers::MySql(it)) => it.signal(Signal::CONT)?,
            (PausedServer::Numbered(at), StoreServers::Sentinels(it)) => {
                it.server(at).signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(at), StoreServers::Cluster(it)) => {
                it.nodes()[at].signal(Signal::CONT)?;
            }
            (PausedServer::Numbered(at), StoreServers::ZooKeeper(it)) => it.servers.resume(at)?,
            (PausedServer::Numbered(_), _) => {}
        }
        Ok(())
    }

    /// Kills a server without a shutdown, and returns its index: `pick` modulo the number of
    /// servers.
    pub(crate) fn kill(&mut self, pick: usize) -> usize {
        match &mut self.servers {
            StoreServers::Redis(it) => it.kill(),
            StoreServers::IndependentRedis(all) => {
                let at = pick % all.len();
                all[at].kill();
                return at;
            }
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
            StoreServers::InProcess | StoreServers::File(_) => {}
        }
        0
    }

    /// Restarts a killed server on the data that it kept. The function blocks.
    pub(crate) fn restart_server(&mut self, at: usize) -> Result<()> {
        match &mut self.servers {
            StoreServers::Redis(it) => it.restart(),
            StoreServers::IndependentRedis(all) => all[at].restart(),
            StoreServers::MySql(it) => it.restart(),
            StoreServers::Postgres(it) => it.restart(),
            StoreServers::Sentinels(it) => it.server_mut(at).restart(),
            StoreServers::Cluster(it) => it.node_mut(at).restart(),
            StoreServers::ZooKeeper(it) => it.servers.restart(at),
            StoreServers::InProcess | StoreServers::File(_) => Ok(()),
        }
    }

    /// Kills a server and restarts it without its data. Returns the exception that the
    /// documentation allows then. The function blocks.
    pub(crate) fn wipe(&mut self) -> Result<Excuse> {
        match &mut self.servers {
            StoreServers::Redis(it) => it.restart_empty()?,
            // The same server is wiped each time, so only a minority of the servers loses data.
            StoreServers::IndependentRedis(all) => all[0].restart_empty()?,
            _ => anyhow::bail!("the data of this store cannot be deleted"),
        }
        Ok(Excuse::LostHistory)
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

    /// Deletes all data of the store. Returns the exception that the documentation allows then. The
    /// function blocks.
    pub(crate) fn delete_all_data(&self) -> Result<Excuse> {
        if self.redis_servers().is_empty() {
            bail!("this store has no command that deletes all data");
        }
        // A replica refuses the command, and copies the deletion of its primary.
        self.run_on_each_redis(&["FLUSHALL"]).context("FLUSHALL")?;
        Ok(Excuse::LostHistory)
    }
}
