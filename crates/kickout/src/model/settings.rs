//! Timers and modes.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::policy::Policy;

/// The settings of one flow. They never change while it runs.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) confirm: Confirm,
    pub(crate) route: RouteMode,
    pub(crate) order: Order,
    pub(crate) timers: Timers,
}

/// The times of the flow. Every wait goes through the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timers {
    /// TTL of an account's lock: what a crash in the middle of a login costs at most.
    pub lock_ttl: Duration,
    /// Longest wait for an account's lock.
    pub lock_wait: Duration,
    /// Total time for telling the sessions on other nodes before a login is answered.
    pub kick_budget: Duration,
    /// Deadline of one call to another node.
    pub peer_deadline: Duration,
    /// TTL of the node's own lease: what a dead node's sessions cost at most.
    pub node_lease: Duration,
    /// Time a client has to leave before its connection is cut.
    pub grace: Duration,
    /// Period of the sweeper.
    pub sweep: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            lock_ttl: Duration::from_secs(5),
            lock_wait: Duration::from_secs(3),
            kick_budget: Duration::from_secs(1),
            peer_deadline: Duration::from_millis(300),
            node_lease: Duration::from_secs(9),
            grace: Duration::from_secs(2),
            sweep: Duration::from_secs(3),
        }
    }
}

impl Timers {
    /// How often a node looks after its own sessions: with every renewal of its lease.
    pub(crate) fn tick(&self) -> Duration {
        self.node_lease / 3
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (key, value) in [
            ("lock_ttl", self.lock_ttl),
            ("kick_budget", self.kick_budget),
            ("peer_deadline", self.peer_deadline),
            ("node_lease", self.node_lease),
            ("sweep", self.sweep),
        ] {
            if value.is_zero() {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("{key} is zero"),
                ));
            }
        }
        Ok(())
    }
}

/// When a login is answered although an older session could not be told yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confirm {
    /// After the kick budget; the older session's node finds out by itself.
    #[default]
    Available,
    /// When every older session is known to be gone, or its node's lease has ended.
    Strict,
}

/// How a message finds its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RouteMode {
    /// Look up, deliver to exactly that session, let the target compare, look up again on a mismatch.
    #[default]
    Fenced,
    /// Hold the account's lock from the lookup until the delivery.
    Locked,
}

/// When a login gives the account's lock back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// After the write, before older sessions are told.
    #[default]
    WriteThenTell,
    /// When older sessions were told, or the time for that is over. For comparison only: whoever logs in next waits for nodes
    /// that do not answer, and it makes nothing safer, because every write is conditional anyway.
    TellUnderLock,
}
