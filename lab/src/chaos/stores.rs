//! The stores that are broken: each is started for one run, and is gone after it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::{Paused, PostgresServer},
    redis::RedisServer,
    zookeeper::ZooKeeper,
};
use distlock_harness::{FaultProxy, Signal};
use serde::{Deserialize, Serialize};

use super::history::Excuse;

/// Which store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Mariadb,
    Mysql,
    Postgres,
    Zookeeper,
}

impl Kind {
    /// Its name on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Shortest and longest TTL of a run, in milliseconds, unless told otherwise. A session of
    /// ZooKeeper has to outlast an election.
    pub(crate) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::Memory | Self::Sqlite => (300, 900),
            Self::Zookeeper => (2_000, 4_000),
            _ => (1_000, 3_000),
        }
    }
}

/// A store while it runs.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) kind: Kind,
    server: Server,
}

#[derive(Debug)]
enum Server {
    /// In the one process that uses it.
    Inside,
    File(PathBuf),
    Redis(RedisServer),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ZooKeeper(ZooKeeper),
}

/// A server that stands still. It goes on when this is dropped or told to.
#[derive(Debug)]
pub(crate) enum Still {
    Postgres(Paused),
    /// By its place in the ensemble; 0 where there is one server only.
    Server(usize),
}

impl Stage {
    /// Starts it. Blocks.
    pub(crate) fn start(kind: Kind, folder: &Path) -> Result<Self> {
        let server = match kind {
            Kind::Memory => Server::Inside,
            Kind::Sqlite => Server::File(folder.join("chaos.db")),
            Kind::Redis => Server::Redis(RedisServer::start()?),
            Kind::Mariadb => Server::MySql(MySqlServer::start(Product::MariaDb)?),
            Kind::Mysql => Server::MySql(MySqlServer::start(Product::MySql)?),
            Kind::Postgres => Server::Postgres(PostgresServer::start()?),
            Kind::Zookeeper => Server::ZooKeeper(ZooKeeper::start()?),
        };
        Ok(Self { kind, server })
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

    /// Where its servers listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match &self.server {
            Server::Inside | Server::File(_) => Vec::new(),
            Server::Redis(it) => vec![it.address()],
            Server::MySql(it) => vec![it.address()],
            Server::Postgres(it) => vec![it.address()],
            Server::ZooKeeper(it) => (0..it.len()).map(|at| it.address(at)).collect(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Inside => "memory:chaos".into(),
            Server::File(path) => format!("sqlite:{}", path.display()),
            Server::Redis(it) => it.url(),
            Server::MySql(it) => it.url(),
            Server::Postgres(it) => it.url(),
            Server::ZooKeeper(it) => {
                format!("zookeeper://{}/chaos?session_timeout=2s", it.servers())
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
            Server::MySql(it) => {
                it.signal(Signal::STOP)?;
                Still::Server(0)
            }
            Server::ZooKeeper(it) => {
                it.pause(any % it.len())?;
                Still::Server(any % it.len())
            }
            Server::Inside | Server::File(_) => anyhow::bail!("an embedded store has no server"),
        })
    }

    /// Lets it go on.
    pub(crate) fn resume(&self, still: Still) -> Result<()> {
        match (still, &self.server) {
            (Still::Postgres(paused), _) => drop(paused),
            (Still::Server(_), Server::Redis(it)) => it.signal(Signal::CONT)?,
            (Still::Server(_), Server::MySql(it)) => it.signal(Signal::CONT)?,
            (Still::Server(at), Server::ZooKeeper(it)) => it.resume(at)?,
            (Still::Server(_), _) => {}
        }
        Ok(())
    }

    /// Kills a server as a crash would, and answers which.
    pub(crate) fn kill(&mut self, any: usize) -> usize {
        match &mut self.server {
            Server::Redis(it) => it.kill(),
            Server::MySql(it) => it.kill(),
            Server::Postgres(it) => it.kill(),
            Server::ZooKeeper(it) => {
                let at = any % it.len();
                it.kill(at);
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
            Server::MySql(it) => it.restart(),
            Server::Postgres(it) => it.restart(),
            Server::ZooKeeper(it) => it.restart(at),
            Server::Inside | Server::File(_) => Ok(()),
        }
    }

    /// Ends every connection of a client, as an administrator can. Blocks.
    pub(crate) fn end_connections(&self) -> Result<()> {
        match &self.server {
            Server::Redis(it) => it.command(&["CLIENT", "KILL", "TYPE", "normal"]).map(drop),
            Server::Postgres(it) => it
                .sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                )
                .map(drop),
            Server::MySql(it) => {
                let all = it.sql(
                    "SELECT GROUP_CONCAT(id) FROM information_schema.processlist \
                     WHERE id <> CONNECTION_ID() AND user <> 'system user'",
                )?;
                for id in all.split(',').filter(|id| id.parse::<u64>().is_ok()) {
                    // One that has gone meanwhile needs no end.
                    let _ = it.sql(&format!("KILL {id}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes a Redis server forget the scripts that clients have loaded. Blocks.
    pub(crate) fn forget_scripts(&self) -> Result<()> {
        match &self.server {
            Server::Redis(it) => it.command(&["SCRIPT", "FLUSH"]).map(drop),
            _ => Ok(()),
        }
    }

    /// Makes the store forget everything, and answers with the exception that the documentation
    /// allows then. Blocks.
    pub(crate) fn forget_all(&self) -> Result<Excuse> {
        match &self.server {
            Server::Redis(it) => it.command(&["FLUSHALL"]).context("FLUSHALL")?,
            _ => anyhow::bail!("this store cannot be told to forget everything"),
        };
        Ok(Excuse::LostHistory)
    }
}
