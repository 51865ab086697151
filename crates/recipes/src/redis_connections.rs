//! Connections to a Redis server for recipes that need more of it than locks and records.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, PasswordRule, Result};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, RedisError, aio::MultiplexedConnection,
};

pub(crate) const BACKEND: &str = "redis";
/// Longest wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that are kept while nobody uses them.
const KEPT: usize = 64;

/// What a server says that cannot serve now, and one that may not be asked.
const AWAY: [&str; 6] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
];
const DENIED: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// One server's connections. Whoever takes one has it alone, and gives it back when it is in order.
#[derive(Clone)]
pub(crate) struct Connections {
    client: Client,
    idle: Arc<Mutex<Vec<MultiplexedConnection>>>,
}

/// As the store of the locks: a password leaves this machine through TLS or on purpose.
fn password_rule(url: &str, client: &Client) -> Result<()> {
    let info = client.get_connection_info();
    let (host, encrypted) = match info.addr() {
        ConnectionAddr::Tcp(host, _) => (host.as_str(), false),
        ConnectionAddr::TcpTls { host, .. } => (host.as_str(), true),
        // A socket is on this machine.
        _ => return Ok(()),
    };
    let rule = PasswordRule {
        sent: info.redis_settings().password().is_some(),
        encrypted,
        clear_allowed: url.contains("tls=disable"),
        tls_built: true,
        features: "redis,tls",
        remedy: "write rediss:// instead of redis://",
    };
    rule.check(host).map_err(|error| error.on(BACKEND))
}

/// What an error of the connection leaves open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// Nothing that changes anything was sent.
    Nothing,
    /// A change was, and may be made.
    Change,
}

impl Connections {
    /// No connection is made yet.
    pub(crate) fn new(url: &str) -> Result<Self> {
        // The cause may have the password in it.
        let client = Client::open(url).map_err(|_| {
            let says = "this is no URL of a Redis server: redis://[USER:PASSWORD@]HOST[:PORT][/DB]";
            Error::new(ErrorKind::InvalidConfig, says).on(BACKEND)
        })?;
        password_rule(url, &client)?;
        Ok(Self {
            client,
            idle: Arc::default(),
        })
    }

    pub(crate) async fn take(&self) -> Result<MultiplexedConnection> {
        if let Some(connection) = self.idle().pop() {
            return Ok(connection);
        }
        let patience = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&patience);
        connecting
            .await
            .map_err(|error| self.failed(&error, Sent::Nothing))
    }

    pub(crate) fn give_back(&self, connection: MultiplexedConnection) {
        let mut idle = self.idle();
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }

    /// What an error means. Where a connection broke, the others may be as dead, and nobody is
    /// given one of them.
    pub(crate) fn failed(&self, error: &RedisError, sent: Sent) -> Error {
        let broke = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        if broke {
            self.idle().clear();
        }
        let kind = match (error.code(), sent) {
            (Some(code), _) if AWAY.contains(&code) => ErrorKind::Unavailable,
            (Some(code), _) if DENIED.contains(&code) => ErrorKind::AccessDenied,
            (_, Sent::Nothing) if broke => ErrorKind::Unavailable,
            (_, Sent::Change) if broke => ErrorKind::OutcomeUnknown,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, "the server cannot be asked")
            .on(BACKEND)
            .caused_by(error.to_string())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("idle", &self.idle().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_leaves_this_machine_through_tls_or_on_purpose() {
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
    }
}
