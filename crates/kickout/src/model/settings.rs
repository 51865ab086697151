//! The settings of a flow: its policy, its durations, and the moment of a login's answer.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::policy::Policy;

/// The settings of one flow. The settings never change while the flow runs.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) confirm: Confirm,
    pub(crate) timers: Timers,
}

/// The durations of the flow. Every wait uses the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timers {
    /// TTL of an account's lock: the longest delay that a node causes which crashes or stands still
    /// during a login.
    pub lock_ttl: Duration,
    /// Longest wait for an account's lock.
    pub lock_wait: Duration,
    /// Total time for the kicks to other nodes before a login is answered.
    pub kick_budget: Duration,
    /// Deadline of one call to another node.
    pub peer_deadline: Duration,
    /// TTL of the node's own lease: the longest time for which a dead node's sessions count. The
    /// node renews the lease on the runtime that called
    /// [`Builder::start`](crate::Builder::start), so a runtime that stands still for this long
    /// loses the lease, and with it its sessions.
    pub node_lease: Duration,
    /// Time for a client to leave before its connection is cut.
    pub grace: Duration,
    /// Time for the program of an ended session to save, counted from the session's notice. A login
    /// that ended the session waits that long at most. The client of such a session may stay that
    /// long, if this is longer than `grace`. 0 = no login waits.
    pub save_budget: Duration,
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
            save_budget: Duration::from_secs(2),
            sweep: Duration::from_secs(3),
        }
    }
}

impl Timers {
    /// Period of the reconciliation: a third of the lease, which is the period of its renewals.
    pub(crate) fn reconcile_period(&self) -> Duration {
        self.node_lease / 3
    }

    /// Time for a client to leave: a client whose program saves may need the time for that.
    pub(crate) fn grace_of(&self, saves: bool) -> Duration {
        if saves {
            self.grace.max(self.save_budget)
        } else {
            self.grace
        }
    }

    /// Refuses a duration of zero where it would make the flow useless.
    pub(crate) fn validate(&self) -> Result<()> {
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
                    format!("{key} is zero: more than zero is needed"),
                ));
            }
        }
        Ok(())
    }
}

/// The moment at which a login is answered while the end of an older session is not confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Confirm {
    /// After the kick budget, and after the time to save of a session whose node answered. A node
    /// that did not answer finds the revocation at its next reconciliation.
    #[default]
    Available,
    /// After the end of every older session is confirmed, or the lease of its node has ended. The
    /// time to save is a limit here, too.
    Strict,
}
