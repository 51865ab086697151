//! Servers that belong together: a primary with its replica and sentinels, a cluster.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use super::{Flavour, READY, RedisServer, tls_settings};
use crate::{eventually, free_port};

/// A primary, one replica and three sentinels that watch them.
#[derive(Debug)]
pub struct RedisSentinels {
    /// Whoever is the primary at first.
    pub primary: RedisServer,
    /// Its replica at first.
    pub replica: RedisServer,
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
}

/// A cluster.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers: first one primary for each shard, then a replica for each, if there are replicas.
    pub nodes: Vec<RedisServer>,
}

impl RedisSentinels {
    /// The name the sentinels know the primary by.
    pub const PRIMARY: &'static str = "mymaster";

    /// Starts them, and waits until the sentinels know of each other and of the replica. A primary that does not answer for
    /// 3 s is replaced: longer than a busy machine keeps it from answering.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn start() -> Result<Self> {
        Self::start_as(None)
    }

    /// As [`RedisSentinels::start`], for clients that speak TLS and have a certificate; `pki` as in
    /// [`RedisServer::with_tls`]. The tests themselves ask without.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn with_tls(pki: &Path) -> Result<Self> {
        Self::start_as(Some(pki))
    }

    fn start_as(pki: Option<&Path>) -> Result<Self> {
        let primary = server(pki, &[], &["repl-diskless-sync-delay 0"])?;
        let at = primary.clients_port();
        let replicaof = format!("replicaof 127.0.0.1 {at}");
        let replica = server(pki, &[], &["repl-diskless-sync-delay 0", &replicaof])?;
        let monitor = format!("sentinel monitor {} 127.0.0.1 {at} 2", Self::PRIMARY);
        let down = format!("sentinel down-after-milliseconds {} 3000", Self::PRIMARY);
        let limit = format!("sentinel failover-timeout {} 10000", Self::PRIMARY);
        let settings = ["appendonly no", &monitor, &down, &limit];
        let sentinels = (0..3)
            .map(|_| server(pki, &["--sentinel"], &settings))
            .collect::<Result<Vec<_>>>()?;
        let all = Self {
            primary,
            replica,
            sentinels,
        };
        eventually("the sentinels know everybody", READY, || {
            all.sentinels.iter().all(|sentinel| {
                let known = sentinel.command(&["SENTINEL", "MASTER", Self::PRIMARY]);
                known.is_ok_and(|known| {
                    let words: Vec<_> = known.lines().collect();
                    let value = |name| {
                        words
                            .iter()
                            .position(|word| *word == name)
                            .map(|at| words[at + 1])
                    };
                    value("num-slaves") == Some("1") && value("num-other-sentinels") == Some("2")
                })
            }) && all
                .replica
                .info("master_link_status")
                .is_ok_and(|status| status == "up")
        })?;
        Ok(all)
    }

    /// `redis+sentinel://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT/mymaster`.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "redis+sentinel://{}/{}",
            hosts(&self.sentinels),
            Self::PRIMARY
        )
    }

    /// The port of whoever the first sentinel calls the primary now.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn primary_port(&self) -> Result<u16> {
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::PRIMARY];
        let answer = self.sentinels[0].command(&question)?;
        let port = answer.lines().nth(1).context("host and port")?;
        Ok(port.trim().parse()?)
    }
}

impl RedisCluster {
    /// Starts a cluster of `shards` primaries, each with `replicas` replicas, and waits until it serves. A primary that does
    /// not answer for 3 s is replaced: longer than a busy machine keeps it from answering.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn start(shards: usize, replicas: usize) -> Result<Self> {
        Self::start_as(None, shards, replicas)
    }

    /// As [`RedisCluster::start`], without replicas, for clients that speak TLS and have a certificate; `pki` as in
    /// [`RedisServer::with_tls`]. The tests themselves ask without.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn with_tls(pki: &Path, shards: usize) -> Result<Self> {
        Self::start_as(Some(pki), shards, 0)
    }

    fn start_as(pki: Option<&Path>, shards: usize, replicas: usize) -> Result<Self> {
        let nodes = (0..shards * (1 + replicas))
            .map(|_| {
                // Without it the bus takes the port 10000 above, which may be taken or not exist.
                let bus = format!("cluster-port {}", free_port()?);
                let settings = [
                    "cluster-enabled yes",
                    "cluster-node-timeout 3000",
                    "repl-diskless-sync-delay 0",
                    &bus,
                ];
                server(pki, &[], &settings)
            })
            .collect::<Result<Vec<_>>>()?;
        let cluster = Self { nodes };
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]);
        for node in &cluster.nodes {
            command.arg(format!("127.0.0.1:{}", node.port));
        }
        command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        let output = command.output().context("redis-cli --cluster create")?;
        if !output.status.success() {
            bail!(
                "redis-cli --cluster create: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        eventually("the cluster serves", READY, || {
            cluster.nodes.iter().all(|node| {
                node.command(&["CLUSTER", "INFO"]).is_ok_and(|info| {
                    info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
                }) && (replicas == 0
                    || node.info("role").is_ok_and(|role| role == "master")
                    || node
                        .info("master_link_status")
                        .is_ok_and(|status| status == "up"))
            })
        })?;
        Ok(cluster)
    }

    /// `redis+cluster://127.0.0.1:PORT,..`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", hosts(&self.nodes))
    }

    /// The server that is the primary of the slot of a key now, by its place in [`RedisCluster::nodes`].
    ///
    /// # Errors
    /// When no server can be asked, or none of them serves it.
    pub fn primary_of(&self, key: &str) -> Result<usize> {
        let running = self.nodes.iter().enumerate();
        for (at, node) in running.filter(|(_, node)| node.process.is_some()) {
            // A server that does not serve a key says who does.
            let Ok(answer) = node.command(&["GET", key]) else {
                continue;
            };
            let Some(redirect) = answer.strip_prefix("MOVED ") else {
                return Ok(at);
            };
            let port = redirect
                .rsplit(':')
                .next()
                .and_then(|port| port.parse().ok());
            let port: u16 = port.context("a redirect names a port")?;
            let at = self.nodes.iter().position(|node| node.port == port);
            return at.context("a redirect names one of the servers");
        }
        bail!("no server runs")
    }
}

/// One of them. With certificates it has a second port, for clients and for the others.
fn server(pki: Option<&Path>, arguments: &[&str], settings: &[&str]) -> Result<RedisServer> {
    let mut all: Vec<_> = settings.iter().map(ToString::to_string).collect();
    if let Some(pki) = pki {
        all.extend(tls_settings(pki, free_port()?));
        all.extend(["tls-replication yes".into(), "tls-cluster yes".into()]);
    }
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    RedisServer::start_as(Flavour::Installed, arguments, &all)
}

fn hosts(servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.clients_port()))
        .collect();
    hosts.join(",")
}
