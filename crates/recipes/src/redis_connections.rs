//! Connections to a Redis server, for the recipes that use Redis commands.
//!
//! This module owns a pool of idle connections. Invariant: no two callers use a connection at the
//! same time, because `WATCH` belongs to a connection. A connection that had an error must never
//! return to the pool, because its `WATCH` may still be active. The URL must never reach an error,
//! because it may hold a password.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_backend_kit::PasswordRule;
use distlock_core::{Error, ErrorKind, Result};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, RedisError, aio::MultiplexedConnection,
};

pub(crate) const BACKEND: &str = "redis";
/// The longest wait for a connection, and also the longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest number of idle connections in the pool.
const MAX_IDLE: usize = 64;

/// The error codes of a server that cannot serve now.
const UNAVAILABLE: [&str; 6] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
];
/// The error codes of a server that refuses the client.
const DENIED: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// The connections to one server. A caller takes a connection for itself alone, and returns the
/// connection to the pool only after success.
#[derive(Clone)]
pub(crate) struct Connections {
    client: Client,
    idle: Arc<Mutex<Vec<MultiplexedConnection>>>,
}

/// Refuses to send a password in clear text to another machine, unless the user allows it. The
/// lock's store has the same rule.
fn check_password_rule(url: &str, client: &Client) -> Result<()> {
    let info = client.get_connection_info();
    let (host, encrypted) = match info.addr() {
        ConnectionAddr::Tcp(host, _) => (host.as_str(), false),
        ConnectionAddr::TcpTls { host, .. } => (host.as_str(), true),
        // A socket file is on this machine.
        _ => return Ok(()),
    };
    let rule = PasswordRule {
        sent: info.redis_settings().password().is_some(),
        encrypted,
        clear_allowed: allows_clear_text(url),
        tls_built: true,
        features: "redis,tls",
        remedy: "write rediss:// instead of redis://",
    };
    rule.check(host).map_err(|error| error.on(BACKEND))
}

/// Whether the URL has the option that allows a password in clear text. The same text in a password
/// is no option.
fn allows_clear_text(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|option| option == "tls=disable")
}

/// The kind of the request that failed. The kind decides whether the outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// A request that changes nothing, so its failure leaves no unknown outcome.
    Read,
    /// A change, which may have happened.
    Change,
}

impl Connections {
    /// Parses the URL. No connection is opened yet.
    pub(crate) fn new(url: &str) -> Result<Self> {
        // The cause may contain the password, so it is left out.
        let client = Client::open(url).map_err(|_| {
            let says = "this is no URL of a Redis server: redis://[USER:PASSWORD@]HOST[:PORT][/DB]";
            Error::new(ErrorKind::InvalidConfig, says).on(BACKEND)
        })?;
        check_password_rule(url, &client)?;
        Ok(Self {
            client,
            idle: Arc::default(),
        })
    }

    /// Takes an idle connection, or opens one.
    pub(crate) async fn take(&self) -> Result<MultiplexedConnection> {
        if let Some(connection) = self.lock_idle().pop() {
            return Ok(connection);
        }
        let timeouts = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&timeouts);
        connecting
            .await
            .map_err(|error| self.handle_error(&error, Request::Read))
    }

    /// Keeps a connection for the next caller. The server must have answered every request of this
    /// connection.
    pub(crate) fn give_back(&self, connection: MultiplexedConnection) {
        let mut idle = self.lock_idle();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    /// Converts an error of the driver. When a connection failed, the idle connections may have
    /// failed too, so all of them are dropped.
    pub(crate) fn handle_error(&self, error: &RedisError, request: Request) -> Error {
        let connection_failed =
            error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        if connection_failed {
            self.lock_idle().clear();
        }
        let kind = match (error.code(), request) {
            (Some(code), _) if UNAVAILABLE.contains(&code) => ErrorKind::Unavailable,
            (Some(code), _) if DENIED.contains(&code) => ErrorKind::AccessDenied,
            (_, Request::Read) if connection_failed => ErrorKind::Unavailable,
            (_, Request::Change) if connection_failed => ErrorKind::OutcomeUnknown,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, "the server cannot be asked")
            .on(BACKEND)
            .caused_by(error.to_string())
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("idle", &self.lock_idle().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_clear_text_to_another_machine_is_refused_unless_allowed() {
        let error = Connections::new("redis://:hunter2@db.example")
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let said = error.to_string();
        assert!(
            said.contains("rediss://") && !said.contains("hunter2"),
            "{said}"
        );
        for url in [
            "redis://:hunter2@localhost",
            "redis://db.example",
            "redis://:hunter2@db.example?tls=disable",
        ] {
            Connections::new(url).unwrap();
        }
        assert!(Connections::new("redis://:tls=disable@db.example").is_err());
    }
}
