//! The settings of a worker, and the documented bounds of calls.
//!
//! The settings come through the environment, because the store's URL may contain a password. A
//! command line would show it to other users.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::chaos::{controls::Control, options::Workload, planted_bugs::StoreBug};

/// The environment variable with the settings. A process that has this variable is a worker.
const SETTINGS: &str = "DISTLOCK_LAB_WORKER";
/// Pause between two attempts to open the store.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The documented bound of `inspect`, `list` and `close`.
pub(crate) const READ_BOUND: Duration = Duration::from_secs(10);
/// The documented bound of a release and of an extension.
pub(crate) const RELEASE_BOUND: Duration = Duration::from_secs(20);
/// Time that the library may add to the requested wait.
pub(crate) const EXTRA_WAIT: Duration = Duration::from_secs(5);
/// Time for which a worker waits for the notice of a loss. A later notice breaks a promise.
pub(crate) const LATEST_NOTICE: Duration = Duration::from_secs(2);
/// The documented time for which somebody who comes later may pass the first that waits for a
/// shared lock.
pub(crate) const PASSES_FOR: Duration = Duration::from_millis(250);
/// The locks of readers and writers.
pub(crate) const RW_LOCKS: [&str; 2] = ["rw 0", "rw 1"];
/// The semaphores, each with its number of permits.
pub(crate) const SEMAPHORES: [(&str, u32); 2] = [("permits 0", 2), ("permits 1", 5)];
/// The lock of those who wait in the order of arrival.
pub(crate) const FAIR_LOCK: &str = "fair";

/// The settings of a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkerSettings {
    pub(crate) worker: u32,
    pub(crate) socket: PathBuf,
    pub(crate) url: String,
    /// The URL of the store with the records, if that is another store.
    pub(crate) records_url: Option<String>,
    /// The state file of the lock server, for a bug that knows its key.
    pub(crate) server_state: Option<PathBuf>,
    pub(crate) seed: u64,
    /// The locks that all tasks compete for.
    pub(crate) names: Vec<String>,
    /// More locks, which brief tasks hold for a moment each.
    pub(crate) quiet_names: Vec<String>,
    pub(crate) ttl_ms: (u64, u64),
    /// Longest time for which a task holds a lock on purpose.
    pub(crate) hold_ms: u64,
    /// Number of independent clients of the store in this process. Each client has `tasks` tasks,
    /// of which `brief_tasks` are brief.
    pub(crate) clients: u32,
    pub(crate) tasks: u32,
    pub(crate) brief_tasks: u32,
    /// Whether the runtime has one thread instead of two.
    pub(crate) single_threaded: bool,
    /// Whether the worker looks for leftovers at the end. Only the process itself can do so for a
    /// store in its memory.
    pub(crate) checks_leftovers: bool,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) bug: Option<StoreBug>,
    /// The lock that the worker uses instead of distlock.
    pub(crate) control: Option<Control>,
}

impl WorkerSettings {
    /// Reads the settings. `None` means that this process is no worker.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        match env::var(SETTINGS) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).context(SETTINGS)?)),
            Err(_) => Ok(None),
        }
    }

    /// Returns the environment variable that carries these settings, as name and value.
    pub(crate) fn environment_variable(&self) -> Result<(&'static str, String)> {
        Ok((SETTINGS, serde_json::to_string(self)?))
    }

    /// Returns the longest TTL that a task asks for.
    pub(crate) const fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.1)
    }
}
