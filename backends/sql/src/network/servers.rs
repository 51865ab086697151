//! Connects to one of the servers of a URL, at one of the addresses of its name.
//!
//! Names are resolved anew for each connection, because the servers behind a name may move. A
//! silent server or address delays a connection by [`PAUSE`] only: the next one is tried then,
//! while the earlier attempt goes on.

use std::{future::Future, net::SocketAddr, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, at_most, sync::Mutex};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::net::lookup_host;

use crate::{
    config::{ServerConfig, ServerHost},
    statement_error::catch_panics,
};

/// The time without an answer after which the next server or address is tried too: the "connection
/// attempt delay" that RFC 8305 recommends.
const PAUSE: Duration = Duration::from_millis(250);

/// A server, or one address of it, to which a dialect tries to connect.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) host: ServerHost,
    /// The address to use, if the host's name has several addresses. Otherwise the driver takes the
    /// host as it is written.
    pub(crate) address: Option<SocketAddr>,
    /// Whether the URL leads to other servers or addresses too. Then only a server that takes
    /// writes is the right one.
    pub(crate) one_of_several: bool,
}

/// The servers of one store.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    /// The server of the last connection. It is tried first, so that the connections of a store
    /// change to another server only if that one does not serve them.
    last: Mutex<Option<Candidate>>,
    /// The addresses that names have in a test, instead of those that the system knows.
    #[cfg(test)]
    pub(crate) names: Vec<(String, Vec<SocketAddr>)>,
}

impl Servers {
    /// Connects to the first server that `attempt` accepts. `unresolved` makes the error for a name
    /// that cannot be resolved.
    pub(crate) async fn connect<T, F>(
        &self,
        config: &ServerConfig,
        clock: &dyn Clock,
        unresolved: impl Fn(sqlx::Error) -> Error,
        attempt: impl Fn(Candidate) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let last = self.last.lock().clone();
        let mut hosts = config.hosts.clone();
        if let Some(last) = &last {
            hosts.sort_by_key(|host| *host != last.host);
        }
        let one_of_several = hosts.len() > 1;
        let trying = Trying {
            pause: PAUSE.min(config.connect_timeout / 8),
            limit: config.connect_timeout * 9 / 10,
            clock,
        };
        let (trying, unresolved, attempt) = (&trying, &unresolved, &attempt);
        let attempts = hosts.into_iter().map(|host| {
            let candidate = Candidate {
                host,
                address: None,
                one_of_several,
            };
            let last = last.as_ref().and_then(|last| last.address);
            Attempt {
                label: candidate.host.to_string(),
                trying: Box::pin(async move {
                    let addresses = self.addresses(config, &candidate.host, last).await;
                    let addresses = addresses.map_err(unresolved)?;
                    try_addresses(candidate, addresses, trying, attempt).await
                }),
            }
        });
        let (candidate, connected) = first_success(attempts.collect(), trying).await?;
        *self.last.lock() = Some(candidate);
        Ok(connected)
    }

    /// Connects to every server of the URL on its own, at the same time.
    pub(crate) async fn connect_to_each<T, F>(
        config: &ServerConfig,
        clock: &dyn Clock,
        unresolved: impl Fn(sqlx::Error) -> Error,
        attempt: impl Fn(Candidate) -> F,
    ) -> Vec<(ServerHost, Result<T>)>
    where
        F: Future<Output = Result<T>>,
    {
        let connecting = config.hosts.iter().map(|host| async {
            let alone = ServerConfig {
                hosts: vec![host.clone()],
                ..config.clone()
            };
            let servers = Self::default();
            let connecting = servers.connect(&alone, clock, &unresolved, &attempt);
            let connected = at_most(clock, config.connect_timeout, connecting).await;
            (host.clone(), connected.unwrap_or_else(|| Err(no_answer())))
        });
        join_all(connecting).await
    }

    /// The addresses of a host, each once, `last` before all others; none for a Unix socket.
    async fn addresses(
        &self,
        config: &ServerConfig,
        host: &ServerHost,
        last: Option<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, sqlx::Error> {
        if config.uses_socket() {
            return Ok(Vec::new());
        }
        #[cfg(test)]
        if let Some((_, addresses)) = self.names.iter().find(|(name, _)| *name == host.name) {
            return Ok(addresses.clone());
        }
        let looking = async { Ok(lookup_host((&*host.name, host.port)).await?) };
        let mut addresses = Vec::new();
        for address in catch_panics(looking).await? {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.sort_by_key(|address| Some(*address) != last);
        Ok(addresses)
    }
}

/// Connects to a host at one of its addresses. Returns the candidate that was used.
async fn try_addresses<T, F>(
    candidate: Candidate,
    addresses: Vec<SocketAddr>,
    trying: &Trying<'_>,
    attempt: &impl Fn(Candidate) -> F,
) -> Result<(Candidate, T)>
where
    F: Future<Output = Result<T>>,
{
    if addresses.len() < 2 {
        let connected = attempt(candidate.clone()).await?;
        return Ok((candidate, connected));
    }
    let attempts = addresses.into_iter().map(|address| {
        let candidate = Candidate {
            address: Some(address),
            // The name may stand for a primary and its replicas. A replica that answers first must
            // not be used.
            one_of_several: true,
            ..candidate.clone()
        };
        let connecting = attempt(candidate.clone());
        Attempt {
            label: address.to_string(),
            trying: Box::pin(async { connecting.await.map(|connected| (candidate, connected)) }),
        }
    });
    first_success(attempts.collect(), trying).await
}

/// An attempt, with the address that it tries, for messages.
pub(super) struct Attempt<F> {
    pub(super) label: String,
    pub(super) trying: F,
}

/// The times of several attempts.
pub(super) struct Trying<'a> {
    /// The time without a success after which the next attempt begins too. Each attempt must have a
    /// share of `connect_timeout`.
    pub(super) pause: Duration,
    /// The time after which an attempt fails. It ends before `connect_timeout`, so that the error
    /// names each server.
    pub(super) limit: Duration,
    pub(super) clock: &'a dyn Clock,
}

/// Makes the attempts in their order. The next one begins when an earlier one has failed, or after
/// a pause; the earlier ones go on. A success drops all others.
pub(super) async fn first_success<T, F>(attempts: Vec<Attempt<F>>, trying: &Trying<'_>) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let Trying {
        pause,
        limit,
        clock,
    } = *trying;
    let mut attempts: Vec<_> = attempts.into_iter().rev().collect();
    if attempts.len() == 1
        && let Some(only) = attempts.pop()
    {
        return only.trying.await;
    }
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::new();
    while let Some(next) = attempts.pop() {
        running.push(async move {
            let outcome = at_most(clock, limit, next.trying).await;
            (next.label, outcome.unwrap_or_else(|| Err(no_answer())))
        });
        let is_last = attempts.is_empty();
        let patience = async {
            if is_last {
                std::future::pending::<()>().await;
            } else {
                clock.sleep(pause).await;
            }
        };
        tokio::pin!(patience);
        loop {
            let (label, outcome) = tokio::select! {
                biased;
                ended = running.next() => match ended {
                    Some(ended) => ended,
                    None => break,
                },
                () = &mut patience => break,
            };
            match outcome {
                Ok(success) => return Ok(success),
                Err(error) => failures.push((label, error)),
            }
            if !is_last {
                break;
            }
        }
    }
    Err(all_failed(&failures))
}

pub(super) fn no_answer() -> Error {
    let problem = "no answer in time (option `connect_timeout`)";
    Error::new(ErrorKind::Unavailable, problem)
}

/// One error for several failed attempts. Its kind is that of all of them. If they differ, it is
/// `Unavailable`: the trouble of one server may pass.
fn all_failed(failures: &[(String, Error)]) -> Error {
    let mut kinds = failures.iter().map(|(_, error)| error.kind());
    let first = kinds.next().unwrap_or(ErrorKind::Unavailable);
    let kind = if kinds.all(|kind| kind == first) {
        first
    } else {
        ErrorKind::Unavailable
    };
    let each = failures
        .iter()
        .map(|(label, error)| format!("{label}: {error}"));
    Error::new(kind, each.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use distlock_core::{ErrorKind, SystemClock};

    use super::*;
    use crate::config::Product;

    const fn at(last: u8) -> SocketAddr {
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 5432)
    }

    /// Connects to a name with these addresses, of which only `primary` takes writes.
    async fn connect(addresses: &[SocketAddr], primary: SocketAddr) -> Result<Candidate> {
        let config = ServerConfig::new(Product::Postgres, "db.example", "app");
        let servers = Servers {
            names: vec![("db.example".to_owned(), addresses.to_vec())],
            ..Servers::default()
        };
        let unresolved = |error: sqlx::Error| {
            let problem = error.to_string();
            Error::new(ErrorKind::Unavailable, problem)
        };
        let attempt = |candidate: Candidate| async move {
            if candidate.one_of_several && candidate.address != Some(primary) {
                let problem = "the server is read-only";
                return Err(Error::new(ErrorKind::Unavailable, problem));
            }
            Ok(candidate)
        };
        servers
            .connect(&config, &SystemClock, unresolved, attempt)
            .await
    }

    #[tokio::test]
    async fn a_replica_is_passed_over_where_a_name_has_several_addresses() {
        let used = connect(&[at(1), at(2)], at(2)).await.unwrap();
        assert_eq!(used.address, Some(at(2)));
        let error = connect(&[at(1), at(2)], at(3)).await.unwrap_err();
        let said = error.to_string();
        for address in [at(1), at(2)] {
            assert!(
                said.contains(&format!("{address}: the server is read-only")),
                "{said}"
            );
        }
        // The doctor connects to the only server, and reports that it is read-only.
        let used = connect(&[at(1)], at(3)).await.unwrap();
        assert_eq!(used.address, None);
    }
}
