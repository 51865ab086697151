//! The settings of a worker, and the bounds that it measures calls by.
//!
//! Its settings come through the environment: they hold the store's URL, which may have a password.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::chaos::{controls::Control, planted_bugs::StoreBug, workload::Workload};

/// The variable that makes a process a worker.
const SETTINGS: &str = "DISTLOCK_LAB_WORKER";
/// How often a store that cannot be opened is tried again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The documented bound of a call that only looks, and of `close`.
pub(super) const READ_BOUND: Duration = Duration::from_secs(10);
/// The documented bound of a release and of an extension.
pub(super) const RELEASE_BOUND: Duration = Duration::from_secs(20);
/// Time that the library may add to the wait that was asked for.
pub(super) const BEYOND_WAIT: Duration = Duration::from_secs(5);
/// A loss that is not told by then is never told.
pub(super) const LATEST_NOTICE: Duration = Duration::from_secs(2);

/// The settings of a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct WorkerSettings {
    pub(crate) worker: u32,
    pub(crate) socket: PathBuf,
    pub(crate) url: String,
    pub(crate) seed: u64,
    /// The locks that all fight for.
    pub(crate) names: Vec<String>,
    /// More locks, which are held for a moment each.
    pub(crate) quiet_names: Vec<String>,
    pub(crate) ttl_ms: (u64, u64),
    /// Longest time that a lock is held on purpose.
    pub(crate) hold_ms: u64,
    /// Independent clients of the store in this process, tasks of each, and how many of these
    /// tasks hurry.
    pub(crate) clients: u32,
    pub(crate) tasks: u32,
    pub(crate) brief_tasks: u32,
    /// One thread for everything, instead of two.
    pub(crate) single_threaded: bool,
    /// Whether it looks at the end what the store still holds: of a store that nobody else sees.
    pub(crate) checks_leftovers: bool,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) bug: Option<StoreBug>,
    /// The lock that is used instead of distlock.
    pub(crate) control: Option<Control>,
}

impl WorkerSettings {
    /// `None` = this process is no worker.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        match env::var(SETTINGS) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).context(SETTINGS)?)),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn variable(&self) -> Result<(&'static str, String)> {
        Ok((SETTINGS, serde_json::to_string(self)?))
    }

    pub(super) const fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.1)
    }
}
