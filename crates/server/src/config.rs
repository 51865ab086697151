//! The options of the server, with their limits.

use std::{path::PathBuf, time::Duration};

use distlock_core::{Error, ErrorKind, Result, Ttl};
use distlock_listen::ConnectionBounds;

/// The options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address to listen at.
    pub listen: String,
    /// The longest lease. A longer requested TTL is cut to it.
    pub max_lease: Duration,
    /// What clients may use.
    pub limits: ServerLimits,
}

/// What a server needs that keeps the locks in its own memory.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// The file with everything that a crash must not lose. Other files are beside it.
    pub path: PathBuf,
    /// Without the file, no server has granted locks before. Otherwise the server waits until the
    /// leases of a predecessor have ended. With the file, this changes nothing.
    pub is_new: bool,
}

/// What clients may use.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Connections.
    pub connections: usize,
    /// Connections of one address.
    pub connections_per_address: usize,
    /// Operations of one session without an answer.
    pub operations: usize,
    /// Held locks, on a server that keeps them in its own memory. Some more can be held, because
    /// they are counted now and then.
    pub names: usize,
    /// Callers that wait for locks.
    pub waiters: usize,
    /// Callers that wait for one lock.
    pub waiters_per_name: usize,
    /// The time of a connection to show that it speaks the protocol.
    pub login: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: format!("127.0.0.1:{}", distlock_wire::DEFAULT_PORT),
            max_lease: Duration::from_secs(60),
            limits: ServerLimits::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_address: 5_000,
            operations: 4_096,
            names: 4_000_000,
            waiters: 100_000,
            waiters_per_name: 100_000,
            login: Duration::from_secs(10),
        }
    }
}

impl ServerConfig {
    pub(crate) fn max_lease(&self) -> Result<Ttl> {
        let range = Duration::from_secs(1)..=Ttl::MAX.duration();
        if !range.contains(&self.max_lease) {
            let problem = format!("is {:?}, and 1 s to 24 h are allowed", self.max_lease);
            return Err(config_error("max_lease", &problem));
        }
        Ttl::new(self.max_lease)
    }

    pub(crate) const fn bounds(&self) -> ConnectionBounds {
        let limits = &self.limits;
        ConnectionBounds {
            all: limits.connections,
            // A client shows its first frame at once, so few connections wait for theirs.
            pending: limits.connections / 4 + 1,
            all_per_address: limits.connections_per_address,
            pending_per_address: limits.connections_per_address / 4 + 1,
        }
    }
}

/// An error about the value of an option. `problem` follows the option as the rest of the sentence.
pub(crate) fn config_error(option: &'static str, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, format!("{option} {problem}")).of_setting(option)
}
