//! Connections to one server, for commands of a caller's own: a cache, or counters.
//!
//! This module owns a pool of idle connections. Invariant: no two callers use a connection at the
//! same time, because `WATCH` belongs to a connection. A connection that had an error must never
//! return to the pool, because its `WATCH` may still be active. URL, options, TLS and errors, and
//! the test of a connection that was idle, are those of the locks' store.

use std::{fmt, sync::Arc};

#[cfg(any(doc, test))]
use distlock_core::ErrorKind;
use distlock_core::{Error, Result, SystemClock, sync::Mutex};
use redis::{RedisError, aio::MultiplexedConnection};

use crate::{
    config::{Endpoint, RedisConfig, Topology},
    connection::{Connector, LastUse},
    error::{code_and_detail, invalid, of_operation},
};

/// The largest number of idle connections in the pool.
const MAX_IDLE: usize = 64;

/// An idle connection, and the moment when its last caller gave it back.
type Idle = (MultiplexedConnection, LastUse);

/// The connections to one server. A caller takes a connection for itself alone, and returns the
/// connection to the pool only after success.
#[derive(Clone)]
pub struct Connections {
    connector: Arc<Connector>,
    server: Endpoint,
    idle: Arc<Mutex<Vec<Idle>>>,
}

/// The kind of the request that failed. The kind decides whether the outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// A request that changes nothing, so its failure leaves no unknown outcome.
    Read,
    /// A change, which may have happened.
    Change,
}

impl Connections {
    /// Parses the URL, as [`RedisConfig::from_url`], and reads the certificates. No connection is
    /// opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option, and for sentinels and clusters;
    /// [`ErrorKind::Unsupported`] for TLS in a build without it.
    pub fn new(url: &str) -> Result<Self> {
        let config = RedisConfig::from_url(url)?;
        let Topology::Single(server) = &config.topology else {
            let given = match config.topology {
                Topology::Cluster(_) => "redis+cluster://",
                _ => "redis+sentinel://",
            };
            return Err(invalid(format!(
                "a cache and counters use one server, so {given} cannot be used here: write \
                 redis:// or rediss:// with the server's own address, or keep them in the records \
                 of the locks' store"
            )));
        };
        let server = server.clone();
        let connector = Connector::new(config, Arc::new(SystemClock), Arc::default())?;
        Ok(Self {
            connector: Arc::new(connector),
            server,
            idle: Arc::default(),
        })
    }

    /// The key of a value of this name: the option `prefix`, then the name.
    #[must_use]
    pub fn key(&self, name: impl fmt::Display) -> String {
        format!("{}{name}", self.connector.config().prefix)
    }

    /// Takes an idle connection, or opens one. A connection that was idle for longer than 10 s is
    /// tested before it is lent.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`], [`ErrorKind::InvalidConfig`] or [`ErrorKind::Unavailable`] with
    /// the server's address.
    ///
    /// # Cancel safety
    /// Safe: a connection that is being opened or tested is closed.
    pub async fn take(&self) -> Result<MultiplexedConnection> {
        let kept = self.idle.lock().pop();
        if let Some((connection, last_use)) = kept {
            let question = redis::cmd("TIME");
            if !last_use.is_idle() || last_use.is_answered(&connection, &question).await {
                return Ok(connection);
            }
            // The last connection of the pool was idle for the shortest time, so the others are
            // forgotten too. Each of them would cost its next caller a test.
            self.idle.lock().clear();
        }
        self.connector.connect_for_own_commands(&self.server).await
    }

    /// Keeps a connection for the next caller. The server must have answered every request of this
    /// connection.
    pub fn give_back(&self, connection: MultiplexedConnection) {
        let last_use = LastUse::now(Arc::clone(self.connector.clock()));
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push((connection, last_use));
        }
    }

    /// Converts an error of the driver. When a connection failed, the idle connections may have
    /// failed too, so all of them are dropped. They are also dropped when the server is a replica
    /// now, or is loading its data.
    #[must_use]
    pub fn handle_error(&self, error: RedisError, request: Request) -> Error {
        let is_broken = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        if is_broken || is_of_another_server(&error) {
            self.idle.lock().clear();
        }
        let failed = of_operation(error, &self.server.to_string());
        match request {
            Request::Read => failed.of_read(),
            Request::Change => failed,
        }
    }
}

/// Whether the server has said that it cannot serve as the primary. A server that was demoted keeps
/// its connections open, while its name may lead to the new primary by now.
fn is_of_another_server(error: &RedisError) -> bool {
    // An error of a pipeline or of a transaction holds one refusal for each refused command.
    let refusals = error.clone().into_server_errors();
    refusals.is_some_and(|refusals| {
        let mut codes = refusals
            .iter()
            .map(|(_, refusal)| code_and_detail(refusal).0);
        codes.any(|code| matches!(code, "READONLY" | "LOADING"))
    })
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("server", &self.server.to_string())
            .field("idle", &self.idle.lock().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_used_or_refused() {
        let refused = |url: &str, says: &str| {
            let error = Connections::new(url).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
            let said = error.to_string();
            assert!(said.contains(says) && !said.contains("hunter2"), "{said}");
        };
        refused("redis://:hunter2@db.example", "rediss://");
        refused("redis://:tls=disable@db.example", "rediss://");
        refused("redis+sentinel://h1,h2,h3/main", "redis+sentinel:// cannot");
        refused("redis+cluster://h1,h2", "redis+cluster:// cannot");
        refused("redis://h1,h2", "several hosts");
        refused("redis://:hunter2@localhost/x", "no database");
        refused("redis://localhost?db=x", "option `db`");
        refused("redis://localhost?bd=3", "did you mean `db`");
        refused("redis://localhost?tls_ca=/ca.pem", "option `tls_ca`");
        refused(
            "rediss://localhost?tls_ca=/missing/ca.pem",
            "/missing/ca.pem",
        );
        refused("redis://localhost#insecure", "host number 1");
        refused("unix:///run/redis.sock", "unknown scheme");
        refused("localhost", "not a URL");
        for url in [
            "redis://:hunter2@localhost",
            "redis://db.example",
            "redis://:hunter2@db.example?tls=disable",
        ] {
            Connections::new(url).unwrap();
        }
        for url in ["redis://localhost/3", "redis://localhost/1?db=3"] {
            let made = Connections::new(url).unwrap();
            assert_eq!(made.connector.config().database, 3, "{url}");
            assert_eq!(made.key("a"), "distlock:a");
        }
        let made = Connections::new("redis://localhost?prefix=app:").unwrap();
        assert_eq!(made.key("a"), "app:a");
        assert_eq!(
            format!("{made:?}"),
            r#"Connections { server: "localhost:6379", idle: 0, .. }"#
        );
    }
}
