//! A store while it runs: its servers, and the ways to stop, kill and empty them.

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

use super::{cluster::Cluster, ensemble::Ensemble, kinds::Kind, sentinels::Sentinels};
use crate::chaos::history::Excuse;

/// The node under which ZooKeeper keeps a run.
pub(super) const ROOT: &str = "/chaos";

/// A store while it runs.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) kind: Kind,
    pub(super) server: Server,
}

#[derive(Debug)]
pub(super) enum Server {
    /// In the one process that uses it.
    Inside,
    File(PathBuf),
    Redis(RedisServer),
    Sentinels(Sentinels),
    Cluster(Cluster),
    /// Servers that do not know of each other.
    IndependentRedis(Vec<RedisServer>),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ZooKeeper(Ensemble),
}

/// A server that stands still. It goes on when this is dropped or told to.
#[derive(Debug)]
pub(crate) enum Still {
    Postgres(Paused),
    /// By its place among the servers; 0 where there is one only.
    Server(usize),
}

impl Still {
    /// Its place among the servers, where there are several.
    pub(crate) const fn place(&self) -> Option<usize> {
        match self {
            Self::Server(at) => Some(*at),
            Self::Postgres(_) => None,
        }
    }
}

impl Stage {
    /// Starts it; `steps` = its clock is stepped later. Blocks.
    pub(crate) fn start(kind: Kind, folder: &Path, steps: bool) -> Result<Self> {
        let mysql = if steps {
            MySqlServer::with_clock
        } else {
            MySqlServer::start
        };
        let server = match kind {
            Kind::Memory => Server::Inside,
            Kind::Sqlite => Server::File(folder.join("chaos.db")),
            Kind::Redis => Server::Redis(RedisServer::start()?),
            Kind::RedisSentinel => Server::Sentinels(Sentinels::start()?),
            Kind::RedisCluster => Server::Cluster(Cluster::start()?),
            Kind::Mariadb => Server::MySql(mysql(Product::MariaDb)?),
            Kind::Mysql => Server::MySql(mysql(Product::MySql)?),
            Kind::Postgres if steps => Server::Postgres(PostgresServer::with_clock()?),
            Kind::Postgres => Server::Postgres(PostgresServer::start()?),
            Kind::Zookeeper => Server::ZooKeeper(Ensemble::start()?),
        };
        Ok(Self { kind, server })
    }

    /// Starts Redis servers that do not know of each other. Blocks.
    pub(crate) fn independent_redis(servers: usize) -> Result<Self> {
        let all = (0..servers).map(|_| RedisServer::start());
        Ok(Self {
            kind: Kind::Redis,
            server: Server::IndependentRedis(all.collect::<Result<_>>()?),
        })
    }

    /// Whether only the process that opens it can reach it.
    pub(crate) const fn is_inside(&self) -> bool {
        matches!(self.server, Server::Inside)
    }

    /// The file of an embedded store.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.server {
            Server::File(path) => Some(path),
            _ => None,
        }
    }

    /// Its Redis servers that keep data.
    pub(super) fn redis(&self) -> Vec<&RedisServer> {
        match &self.server {
            Server::Redis(it) => vec![it],
            Server::IndependentRedis(all) => all.iter().collect(),
            Server::Sentinels(it) => it.data().to_vec(),
            Server::Cluster(it) => it.nodes().iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Where its servers listen, if clients reach them where they are told to.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match &self.server {
            Server::Inside | Server::File(_) | Server::Sentinels(_) | Server::Cluster(_) => {
                Vec::new()
            }
            Server::Redis(it) => vec![it.address()],
            Server::IndependentRedis(all) => all.iter().map(RedisServer::address).collect(),
            Server::MySql(it) => vec![it.address()],
            Server::Postgres(it) => vec![it.address()],
            Server::ZooKeeper(it) => {
                let servers = 0..it.servers.len();
                servers.map(|at| it.servers.address(at)).collect()
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Inside => "memory:chaos".into(),
            Server::File(path) => format!("sqlite:{}", path.display()),
            Server::Redis(it) => it.url(),
            Server::Sentinels(it) => it.url(),
            Server::Cluster(it) => it.url(),
            // Of each, with commas between them.
            Server::IndependentRedis(all) => {
                let urls: Vec<_> = all.iter().map(RedisServer::url).collect();
                urls.join(",")
            }
            Server::MySql(it) => it.url(),
            Server::Postgres(it) => it.url(),
            Server::ZooKeeper(it) => {
                let servers = it.servers.servers();
                format!("zookeeper://{servers}{ROOT}?session_timeout=2s")
            }
        }
    }

    /// As [`Stage::url`], by way of one proxy for each of [`Stage::addresses`].
    pub(crate) fn url_through(&self, proxies: &[FaultProxy]) -> String {
        let ways = self.addresses().into_iter().zip(proxies);
        ways.fold(self.url(), |url, (address, proxy)| {
            url.replace(&address.to_string(), &proxy.address().to_string())
        })
    }

    /// Stops a server where it stands.
    pub(crate) fn pause(&self, any: usize) -> Result<Still> {
        Ok(match &self.server {
            Server::Postgres(it) => Still::Postgres(it.pause()?),
            Server::Redis(it) => {
                it.signal(Signal::STOP)?;
                Still::Server(0)
            }
            Server::IndependentRedis(all) => {
                all[any % all.len()].signal(Signal::STOP)?;
                Still::Server(any % all.len())
            }
            Server::MySql(it) => {
                it.signal(Signal::STOP)?;
                Still::Server(0)
            }
            Server::Sentinels(it) => {
                let at = any % it.len();
                it.server(at).signal(Signal::STOP)?;
                Still::Server(at)
            }
            Server::Cluster(it) => {
                let at = any % it.nodes().len();
                it.nodes()[at].signal(Signal::STOP)?;
                Still::Server(at)
            }
            Server::ZooKeeper(it) => {
                let at = any % it.servers.len();
                it.servers.pause(at)?;
                Still::Server(at)
            }
            Server::Inside | Server::File(_) => bail!("an embedded store has no server"),
        })
    }

    /// Lets it go on.
    pub(crate) fn resume(&self, still: Still) -> Result<()> {
        match (still, &self.server) {
            (Still::Postgres(paused), _) => drop(paused),
            (Still::Server(_), Server::Redis(it)) => it.signal(Signal::CONT)?,
            (Still::Server(at), Server::IndependentRedis(all)) => all[at].signal(Signal::CONT)?,
            (Still::Server(_), Server::MySql(it)) => it.signal(Signal::CONT)?,
            (Still::Server(at), Server::Sentinels(it)) => it.server(at).signal(Signal::CONT)?,
            (Still::Server(at), Server::Cluster(it)) => it.nodes()[at].signal(Signal::CONT)?,
            (Still::Server(at), Server::ZooKeeper(it)) => it.servers.resume(at)?,
            (Still::Server(_), _) => {}
        }
        Ok(())
    }

    /// Kills a server as a crash would, and answers which.
    pub(crate) fn kill(&mut self, any: usize) -> usize {
        match &mut self.server {
            Server::Redis(it) => it.kill(),
            Server::IndependentRedis(all) => {
                let at = any % all.len();
                all[at].kill();
                return at;
            }
            Server::MySql(it) => it.kill(),
            Server::Postgres(it) => it.kill(),
            Server::Sentinels(it) => {
                let at = any % it.len();
                it.server_mut(at).kill();
                return at;
            }
            Server::Cluster(it) => {
                let at = any % it.nodes().len();
                it.node_mut(at).kill();
                return at;
            }
            Server::ZooKeeper(it) => {
                let at = any % it.servers.len();
                it.servers.kill(at);
                return at;
            }
            Server::Inside | Server::File(_) => {}
        }
        0
    }

    /// Starts it again on what it had kept. Blocks.
    pub(crate) fn revive(&mut self, at: usize) -> Result<()> {
        match &mut self.server {
            Server::Redis(it) => it.restart(),
            Server::IndependentRedis(all) => all[at].restart(),
            Server::MySql(it) => it.restart(),
            Server::Postgres(it) => it.restart(),
            Server::Sentinels(it) => it.server_mut(at).restart(),
            Server::Cluster(it) => it.node_mut(at).restart(),
            Server::ZooKeeper(it) => it.servers.restart(at),
            Server::Inside | Server::File(_) => Ok(()),
        }
    }

    /// Kills a server and starts it again without its data, and answers with the exception that
    /// the documentation allows then. Blocks.
    pub(crate) fn wipe(&mut self) -> Result<Excuse> {
        match &mut self.server {
            Server::Redis(it) => it.restart_empty()?,
            // Always the same one: a minority of the servers forgets, and no more than that.
            Server::IndependentRedis(all) => all[0].restart_empty()?,
            _ => anyhow::bail!("the data of this store cannot be taken away"),
        }
        Ok(Excuse::LostHistory)
    }

    /// Ends every connection of a client, as an administrator can. Blocks.
    pub(crate) fn end_connections(&self) -> Result<()> {
        match &self.server {
            Server::Postgres(it) => it
                .sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                )
                .map(drop),
            Server::MySql(it) => {
                // MySQL cannot select from its table of processes while a statement with bytes that
                // are no text is running.
                let all = it.sql("SHOW PROCESSLIST")?;
                let clients = all
                    .lines()
                    .filter(|line| !line.contains("SHOW PROCESSLIST"));
                for client in clients {
                    let mut fields = client.split('\t');
                    let (id, user) = (fields.next(), fields.next());
                    // The header, and threads of the server itself.
                    let Some(id) = id.and_then(|id| id.parse::<u64>().ok()) else {
                        continue;
                    };
                    if user == Some("system user") || user == Some("event_scheduler") {
                        continue;
                    }
                    // One that has gone meanwhile needs no end.
                    let _ = it.sql(&format!("KILL {id}"));
                }
                Ok(())
            }
            _ => self.each_redis(&["CLIENT", "KILL", "TYPE", "normal"]),
        }
    }

    /// Makes Redis servers forget the scripts that clients have loaded. Blocks.
    pub(crate) fn forget_scripts(&self) -> Result<()> {
        self.each_redis(&["SCRIPT", "FLUSH"])
    }

    fn each_redis(&self, command: &[&str]) -> Result<()> {
        for server in self.redis() {
            server.command(command)?;
        }
        Ok(())
    }

    /// Makes the store forget everything, and answers with the exception that the documentation
    /// allows then. Blocks.
    pub(crate) fn forget_all(&self) -> Result<Excuse> {
        if self.redis().is_empty() {
            bail!("this store cannot be told to forget everything");
        }
        // A replica refuses, and forgets what its primary forgets.
        self.each_redis(&["FLUSHALL"]).context("FLUSHALL")?;
        Ok(Excuse::LostHistory)
    }
}
