//! Opens a client of the ensemble, and finds the addresses behind the names of the servers. No
//! error may contain a password.
//!
//! The client resolves a name again at each connect, and then tries the addresses of the name in
//! the resolver's order, without a limit for each address. So an address that does not answer takes
//! the whole time of an attempt, and the next attempt begins with the same address. A name with
//! several addresses is therefore checked before a session is opened: the client also gets each
//! address that accepts a connection, as a server of its own.
//!
//! Invariant: the names stay in the list. The addresses may all have changed when the session
//! reconnects (as in Kubernetes), and only a name leads to the new ones.

use std::{io, net::SocketAddr, time::Duration};

use distlock_backend_kit::Credentials;
use distlock_core::{Clock, Error, Result, at_most};
use futures_util::future::{join_all, select_ok};
use tokio::net::{TcpStream, lookup_host};
use zookeeper_client as zk;

use super::StoreContext;
use crate::{
    config::ZooKeeperConfig,
    error::{Access, translate},
};

/// The time limit for the resolver, and for the addresses to accept connections. Two limits and one
/// attempt of the client at a silent address fit into the default `connect_timeout`.
const LIMIT: Duration = Duration::from_millis(800);

/// The longest time without an answer after which the client gives a connection up, also in a long
/// session. The client sends a ping on a connection that was silent for up to half of this time, so
/// a router that forgets silent connections does not forget this one. Without the limit, the client
/// would ping in a session of an hour every two minutes, and notice a dead connection after a
/// quarter of an hour.
const LONGEST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a client of the servers at `endpoints` with these credentials, whose session requests this
/// timeout.
pub(crate) async fn dial(
    context: &StoreContext,
    endpoints: &[String],
    session_timeout: Duration,
    credentials: &Credentials,
) -> Result<zk::Client> {
    let connector = zk::Client::connector()
        .with_session_timeout(session_timeout)
        // A holder trusts its lock for at most two thirds of the session timeout without an answer.
        // The client must find another server well before that time is over.
        .with_connection_timeout((session_timeout / 4).min(LONGEST_CONNECTION_TIMEOUT))
        .with_fail_eagerly();
    let connector = context.login.prepare(connector, credentials).await;
    let servers = endpoints.join(",");
    let dialled = match &context.config.tls {
        None => connector.connect(&servers).await,
        #[cfg(feature = "tls")]
        Some(_) => connector.secure_connect(&servers).await,
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(zk::Error::Unimplemented),
    };
    dialled.map_err(|error| -> Error { translate(error, Access::Read).during("connect") })
}

/// Returns the endpoints to which the client connects for these servers: their names, and the
/// addresses behind each name that has several.
pub(crate) async fn endpoints(
    servers: &[String],
    config: &ZooKeeperConfig,
    clock: &dyn Clock,
) -> Vec<String> {
    let of_servers = servers.iter().map(async |server| {
        let mut endpoints = vec![server.clone()];
        // With TLS the client checks the certificate against the host that it connects to, and
        // certificates seldom name addresses.
        if config.tls.is_none() {
            let accepting = accepting_addresses(server, clock).await;
            endpoints.extend(accepting.iter().map(ToString::to_string));
        }
        endpoints
    });
    join_all(of_servers).await.concat()
}

/// Returns the addresses of a server that accept a connection. Returns nothing for a server with
/// one address, because the client reaches that by itself.
async fn accepting_addresses(server: &str, clock: &dyn Clock) -> Vec<SocketAddr> {
    let addresses = resolve(server, clock).await;
    if addresses.len() < 2 {
        return Vec::new();
    }
    accepting(addresses, clock).await
}

/// Returns those of the addresses that accept a connection in time.
async fn accepting(addresses: Vec<SocketAddr>, clock: &dyn Clock) -> Vec<SocketAddr> {
    let checks = addresses.into_iter().map(async |address| {
        let connected = at_most(clock, LIMIT, TcpStream::connect(address)).await;
        connected.is_some_and(|it| it.is_ok()).then_some(address)
    });
    join_all(checks).await.into_iter().flatten().collect()
}

/// Connects to a server: to the first of its addresses that accepts.
pub(crate) async fn connect(server: &str, clock: &dyn Clock) -> io::Result<TcpStream> {
    let addresses = resolve(server, clock).await;
    if addresses.is_empty() {
        // This call reports why the name has no address.
        return TcpStream::connect(server).await;
    }
    first_accepting(addresses).await
}

async fn first_accepting(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let connects = addresses.into_iter().map(TcpStream::connect);
    let (stream, _) = select_ok(connects.map(Box::pin)).await?;
    Ok(stream)
}

/// Returns all addresses of a server, each once. Returns nothing when the name cannot be resolved.
async fn resolve(server: &str, clock: &dyn Clock) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let found = at_most(clock, LIMIT, lookup_host(server)).await;
    for address in found.into_iter().flatten().flatten() {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use distlock_core::SystemClock;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// An address that drops each connection request: its queue of connections is full.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        loop {
            tokio::select! {
                biased;
                connected = TcpStream::connect(address) => queued.push(connected.unwrap()),
                () = SystemClock.sleep(Duration::from_millis(200)) => break,
            }
            assert!(queued.len() < 100, "the queue has a limit");
        }
        (address, listener, queued)
    }

    #[tokio::test]
    async fn addresses_that_are_silent_or_refuse_are_passed_over() {
        let (silent, _listener, _queued) = silent().await;
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = gone.local_addr().unwrap();
        drop(gone);
        let serving = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serving = serving.local_addr().unwrap();
        let all = vec![silent, refusing, serving];
        let start = SystemClock.now();
        let first = first_accepting(all.clone()).await.unwrap();
        assert_eq!(first.peer_addr().unwrap(), serving);
        assert!(
            SystemClock.now().since(start) < LIMIT,
            "without a limit for each address"
        );
        assert_eq!(accepting(all, &SystemClock).await, [serving]);
        assert!(SystemClock.now().since(start) < LIMIT * 3);
    }

    #[tokio::test]
    async fn a_name_with_one_address_or_none_stays_a_name() {
        for server in ["127.0.0.1:1", "[::1]:1", "name.invalid:1"] {
            let config = ZooKeeperConfig::new([server]);
            let found = endpoints(&config.servers, &config, &SystemClock).await;
            assert_eq!(found, [server]);
        }
        assert!(connect("name.invalid:1", &SystemClock).await.is_err());
    }
}
