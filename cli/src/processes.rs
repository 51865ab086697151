//! Starts gateway nodes as processes of this very program.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, SystemClock, Target, config::Config};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
};

/// The longest time from the start of a process until it listens. A cold start reads the program
/// from disk.
const START: Duration = Duration::from_secs(20);
/// The longest time for an orderly end, in which a node informs its clients.
const STOP: Duration = Duration::from_secs(5);

/// A running node. It is killed when this value is dropped, and it ends by itself when this process
/// ends.
#[derive(Debug)]
pub struct Node {
    /// The name of the node in its group.
    pub name: String,
    /// The address for clients.
    pub listen: String,
    child: Child,
}

/// The lines that a node prints after its ready line: its transitions, if it was started with
/// `--events`.
pub type NodeOutput = tokio::io::Lines<BufReader<ChildStdout>>;

impl Node {
    /// Starts a node over this store with `more` arguments of `gateway run`, and waits until it
    /// listens.
    pub async fn start(
        name: &str,
        store: &Target,
        key: &str,
        more: &[String],
    ) -> Result<(Self, NodeOutput)> {
        let mut command = Command::new(std::env::current_exe().context("where this program is")?);
        for (variable, _) in std::env::vars_os() {
            // Settings for other nodes of the user must not apply to this node.
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        if let Some(records) = store.records() {
            command.env(Config::RECORDS_VARIABLE, records.reveal_url());
        }
        let log = std::env::var_os("DISTLOCK_LOG").unwrap_or_else(|| "error".into());
        let child = command
            .args(["gateway", "run", "--exit-with-stdin", "--node", name])
            .args(more)
            .args(["--listen", "127.0.0.1:0"])
            .args(["--peer-listen", "127.0.0.1:0"])
            .args(["--admin-listen", "127.0.0.1:0"])
            // All clients are on this machine.
            .args(["--max-per-address", "1000000"])
            .args(["--max-pending-per-address", "1000000"])
            // The URL and the key are secrets. Every user can read the arguments of a process, so
            // secrets are passed as variables.
            .env(Config::BACKEND_VARIABLE, store.reveal_url())
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", key)
            // No administrator uses this node. Without an admin token the node would generate one
            // and print it.
            .env(
                "DISTLOCK_GATEWAY_ADMIN_TOKEN",
                uuid::Uuid::new_v4().to_string(),
            )
            .env("DISTLOCK_LOG", log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start node {name}"))?;
        let mut node = Self {
            name: name.to_owned(),
            listen: String::new(),
            child,
        };
        let stdout = node
            .child
            .stdout
            .take()
            .context("a node without standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let ready = tokio::select! {
            line = lines.next_line() => line.with_context(|| format!("read from node {name}"))?,
            () = SystemClock.sleep(START) => bail!("node {name} is not ready after {START:?}"),
        };
        let ready: Value = match ready {
            Some(line) => {
                serde_json::from_str(&line).with_context(|| format!("what node {name} says"))?
            }
            None => bail!("node {name} ended before it was ready: its own message is above"),
        };
        node.listen = match (ready["event"].as_str(), ready["listen"].as_str()) {
            (Some("ready"), Some(listen)) => listen.to_owned(),
            _ => bail!("node {name} says {ready} instead of being ready"),
        };
        Ok((node, lines))
    }

    /// The id of the process; `None` after it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills the node with SIGKILL, as a crash would.
    pub async fn crash(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("kill node {}", self.name))
    }

    /// Ends the node in an orderly way, or kills it if that takes too long.
    pub async fn stop(mut self) {
        drop(self.child.stdin.take());
        tokio::select! {
            _ = self.child.wait() => {}
            () = SystemClock.sleep(STOP) => drop(self.child.kill().await),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        // Waits until the process is dead, because the folder of the process may be removed next.
        // The process was just killed, so the wait is short. `NOWAIT` leaves the reaping to the
        // owner of the process.
        if let Some(id) = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
        {
            let _ = waitid(
                WaitId::Pid(id),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            );
        }
    }
}
