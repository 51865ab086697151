//! Lock servers: one with its locks in its memory, or two agents of one Redis server.

use std::{path::PathBuf, thread, time::Duration};

use anyhow::Result;
use distlock::{Clock as _, Moment, SystemClock};
use distlock_harness::servers::{lock_server::LockServer, redis::RedisServer};

/// Number of agents.
const AGENTS: usize = 2;

/// The shortest longest lease that a server allows.
const SHORTEST_MAX_LEASE: Duration = Duration::from_secs(1);

/// The time after a recovery until the server grants for certain.
const AFTER_RECOVERY: Duration = Duration::from_millis(250);

/// A way to restart a lock server that breaks its promises: the bug that it would have if it
/// allowed that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongRestart {
    /// Without a recovery.
    AsNew,
    /// With a recovery that is shorter than the leases of before, as if a lowered `--max-lease` cut
    /// it.
    ShortRecovery,
    /// With a recovery that counts from the first start of the server.
    RecoveryFromStart,
    /// With the locks of an earlier stop.
    StaleExport,
}

/// The lock servers of a store.
#[derive(Debug)]
pub(crate) struct ServedStore {
    /// How a crashed server is restarted; `None` means as an operator does it.
    pub(crate) wrong_restart: Option<WrongRestart>,
    /// The files of the state after the last stop in order.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// The first start of the servers.
    started: Moment,
    pub(crate) servers: Vec<LockServer>,
    /// The store behind the agents; it must live as long as they.
    _behind: Option<RedisServer>,
}

impl ServedStore {
    /// Starts a server with its locks in its memory. The function blocks.
    pub(crate) fn in_memory(max_lease: Duration) -> Result<Self> {
        Ok(Self {
            wrong_restart: None,
            files: Vec::new(),
            started: SystemClock.now(),
            servers: vec![LockServer::in_memory(max_lease)?],
            _behind: None,
        })
    }

    /// Starts a Redis server and its agents. The function blocks.
    pub(crate) fn agents(max_lease: Duration) -> Result<Self> {
        let redis = RedisServer::with(&["appendfsync everysec"])?;
        let agents = (0..AGENTS).map(|_| LockServer::agent(&redis.url(), max_lease));
        Ok(Self {
            wrong_restart: None,
            files: Vec::new(),
            started: SystemClock.now(),
            servers: agents.collect::<Result<_>>()?,
            _behind: Some(redis),
        })
    }

    /// Stops a server in order, and starts it again. The function blocks.
    pub(crate) fn restart_in_order(&mut self, at: usize) -> Result<()> {
        self.servers[at].stop()?;
        if self.wrong_restart == Some(WrongRestart::StaleExport) && self.files.is_empty() {
            self.files = self.servers[at].state_files()?;
        }
        self.servers[at].restart()
    }

    /// Starts a server that was killed. The function blocks.
    pub(crate) fn restart_after_crash(&mut self, at: usize) -> Result<()> {
        let server = &mut self.servers[at];
        match self.wrong_restart {
            Some(WrongRestart::AsNew) => server.restart_as_new(),
            Some(WrongRestart::ShortRecovery) => recover_for(server, SHORTEST_MAX_LEASE),
            Some(WrongRestart::RecoveryFromStart) => {
                let ends = self.started + server.max_lease();
                recover_for(server, ends.since(SystemClock.now()))
            }
            Some(WrongRestart::StaleExport) if !self.files.is_empty() => {
                server.restart_with_files(&self.files)
            }
            Some(WrongRestart::StaleExport) | None => server.restart(),
        }
    }

    /// Returns the URL of all servers.
    pub(crate) fn url(&self) -> String {
        let addresses = self.servers.iter().map(|it| it.address().to_string());
        format!("distlock://{}", addresses.collect::<Vec<_>>().join(","))
    }
}

/// Starts a server that was killed, with a recovery of this time. A recovery that is shorter than
/// any server allows is left out.
fn recover_for(server: &mut LockServer, time: Duration) -> Result<()> {
    if time < SHORTEST_MAX_LEASE {
        return server.restart_as_new();
    }
    let usual = server.max_lease();
    server.remove_state()?;
    server.set_max_lease(time);
    server.restart()?;
    // A server that stops during its recovery would recover at the next start too.
    thread::park_timeout(time + AFTER_RECOVERY);
    server.stop()?;
    server.set_max_lease(usual);
    server.restart()
}
