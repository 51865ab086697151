//! A cluster of Redis servers.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    eventually, free_port,
    servers::{
        isolation::Password,
        redis::{
            access::{addresses, password_setting, start_member, url_credentials},
            server::{Flavour, READY_LIMIT, RedisServer},
        },
    },
};

/// A cluster of Redis servers.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers: first one primary for each shard, then the replicas.
    pub nodes: Vec<RedisServer>,
    /// The password of all servers.
    password: Password,
}

impl RedisCluster {
    /// Starts a cluster of `shards` primaries, each with `replicas` replicas, and waits until the
    /// cluster serves clients. A replica replaces a primary that does not answer for 3 s. Even a
    /// primary on a busy machine answers sooner.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn start(shards: usize, replicas: usize) -> Result<Self> {
        Self::start_as(Flavour::Installed, None, shards, replicas)
    }

    /// Works like [`RedisCluster::start`], without replicas, for clients with TLS and a
    /// certificate. `pki` has the same meaning as in [`RedisServer::with_tls`]. The harness itself
    /// connects without TLS.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with_tls(pki: &Path, shards: usize) -> Result<Self> {
        Self::start_as(Flavour::Installed, Some(pki), shards, 0)
    }

    /// Works like [`RedisCluster::start`], without replicas, with servers of another product or
    /// version.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start_flavour`].
    pub fn start_flavour(flavour: Flavour, shards: usize) -> Result<Self> {
        flavour.program()?;
        Self::start_as(flavour, None, shards, 0)
    }

    fn start_as(
        flavour: Flavour,
        pki: Option<&Path>,
        shards: usize,
        replicas: usize,
    ) -> Result<Self> {
        let password = Password::random();
        let required = password_setting(&password);
        let nodes = (0..shards * (1 + replicas))
            .map(|_| {
                // By default the port of the cluster bus is the server's port plus 10,000, which
                // may be taken or invalid.
                let bus = format!("cluster-port {}", free_port()?);
                let settings = [
                    &*required,
                    "cluster-enabled yes",
                    "cluster-node-timeout 3000",
                    "repl-diskless-sync-delay 0",
                    &bus,
                ];
                start_member(flavour, pki, &[], &settings)
            })
            .collect::<Result<Vec<_>>>()?;
        let cluster = Self { nodes, password };
        let mut command = cluster.cli();
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
        eventually("the cluster serves", READY_LIMIT, || {
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

    /// Returns a `redis-cli` command. The password is in the command's environment, because every
    /// user can read the arguments of a process.
    #[must_use]
    pub fn cli(&self) -> Command {
        let mut command = Command::new("redis-cli");
        command.env("REDISCLI_AUTH", self.password());
        command
    }

    /// Returns the password of every server.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.expose()
    }

    /// Returns `redis+cluster://:PASSWORD@127.0.0.1:PORT,..`.
    #[must_use]
    pub fn url(&self) -> String {
        let own = url_credentials(Some(&self.password));
        format!("redis+cluster://{own}{}", addresses(&self.nodes))
    }

    /// Returns the index in [`RedisCluster::nodes`] of the current primary of a key's slot.
    ///
    /// # Errors
    /// Returns an error if no server answers, or if no server serves the slot.
    pub fn primary_of(&self, key: &str) -> Result<usize> {
        let running = self.nodes.iter().enumerate();
        for (at, node) in running.filter(|(_, node)| node.process.is_some()) {
            // A server that does not serve the key answers with a redirection to another server.
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
