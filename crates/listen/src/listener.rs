//! A listener that accepts connections within a quota.
//!
//! Invariant of this module: each connection that the listener returns has its permits, until the
//! listener gives them to a newer connection. A bad connection must never stop the listener. The
//! stream is never handed out before the PROXY header and the TLS handshake are complete.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::Clock;
use futures_util::TryFutureExt as _;
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    BodyTime, Connection, ConnectionQuota, ListenerKind, Socket, Tls,
    connection::{ConnectionState, LoginDeadline},
    metrics_page::REFUSED,
    proxy,
    quota::counted_network,
    socket::Accepted,
};

/// Pause after a failed accept. An accept usually fails for lack of file descriptors, and an
/// immediate retry would only use the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections within a quota.
#[derive(Debug)]
pub struct ConnectionListener {
    socket: Socket,
    quota: ConnectionQuota,
    clock: Arc<dyn Clock>,
    login_timeout: Duration,
    extra_time: Duration,
    tls: Option<(Arc<Tls>, ListenerKind)>,
    /// Whether a header of the PROXY protocol comes first.
    proxied: bool,
    /// The strangers, oldest first, if the oldest one leaves when there is no place. Connections
    /// that have logged in or ended may still be in the list.
    strangers: Option<VecDeque<Weak<ConnectionState>>>,
}

/// The limit that a connection would exceed.
enum Full {
    /// A limit of the whole quota.
    Quota,
    /// A limit of this network.
    Network(IpAddr),
}

impl ConnectionListener {
    /// A listener on this socket. A connection has `login_timeout` to log in. On a Unix socket
    /// there is neither TLS nor a proxy, whatever else is set.
    #[must_use]
    pub fn new(
        socket: impl Into<Socket>,
        quota: ConnectionQuota,
        clock: Arc<dyn Clock>,
        login_timeout: Duration,
    ) -> Self {
        Self {
            socket: socket.into(),
            quota,
            clock,
            login_timeout,
            extra_time: Duration::ZERO,
            tls: None,
            proxied: false,
            strangers: None,
        }
    }

    /// Gives a new connection the place of the oldest stranger when there is no other place, for
    /// callers that show their token at once. Strangers that stay silent then keep nobody out.
    ///
    /// Clients do not get this. A login takes longer, and in a storm each newcomer would end a
    /// login that is almost complete.
    #[must_use]
    pub fn oldest_stranger_leaves(mut self) -> Self {
        self.strangers = Some(VecDeque::new());
        self
    }

    /// The time for the body of a request: as long as the time to log in, also after the login.
    #[must_use]
    pub fn body_time(&self) -> BodyTime {
        BodyTime::new(Arc::clone(&self.clock), self.login_timeout)
    }

    /// Uses TLS if the configuration has a certificate for this kind of listener.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<Tls>, kind: ListenerKind) -> Self {
        self.tls = Some((tls, kind));
        self
    }

    /// Expects a proxy in front that names the client by the PROXY protocol.
    #[must_use]
    pub const fn proxied(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    /// Gives a connection this much more time once the client speaks the protocol of its front. On
    /// a WebSocket, that is the upgrade. Only then may a login be in progress, and a slow login
    /// needs the time.
    #[must_use]
    pub const fn extra_time_once_open(mut self, more: Duration) -> Self {
        self.extra_time = more;
        self
    }

    /// Returns the next connection that got its permits.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accept(&mut self) -> Connection {
        loop {
            let (stream, peer) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(state) = self.admit(peer) else {
                metrics::counter!(REFUSED).increment(1);
                stream.set_zero_linger();
                continue;
            };
            stream.set_nodelay();
            return Connection {
                transport: self.start_transport(stream, &state),
                state,
                deadline: LoginDeadline::ToOpen(self.clock.sleep(self.login_timeout)),
                clock: Arc::clone(&self.clock),
                extra_time: self.extra_time,
            };
        }
    }

    /// Gives a connection its permits, those of the oldest stranger if no others are left.
    fn admit(&mut self, peer: SocketAddr) -> Option<Arc<ConnectionState>> {
        loop {
            let full = match self.try_admit(peer) {
                Ok(state) => {
                    if let Some(strangers) = &mut self.strangers {
                        strangers.retain(|it| it.upgrade().is_some_and(|it| it.is_stranger()));
                        strangers.push_back(Arc::downgrade(&state));
                    }
                    return Some(state);
                }
                Err(full) => full,
            };
            let stands_in_way = |it: &Arc<ConnectionState>| match full {
                Full::Quota => true,
                Full::Network(network) => counted_network(it.accepted.ip()) == network,
            };
            // Each round ends one stranger, so the loop ends.
            self.strangers
                .iter()
                .flatten()
                .filter_map(Weak::upgrade)
                .find(|it| stands_in_way(it) && it.evict())?;
            metrics::counter!(REFUSED).increment(1);
        }
    }

    fn try_admit(&self, peer: SocketAddr) -> Result<Arc<ConnectionState>, Full> {
        let quota = &self.quota;
        // The network's own limit comes first. Otherwise a network with too many strangers would
        // end the strangers of other networks.
        let address = if self.proxied {
            // All clients share the proxy's address, so the proxy's address takes no permits.
            None
        } else {
            let permits = quota.acquire_for_address(peer.ip());
            Some(permits.ok_or_else(|| Full::Network(counted_network(peer.ip())))?)
        };
        let permits = quota.acquire().ok_or(Full::Quota)?;
        let state = ConnectionState::new(peer, quota.clone(), permits, address);
        Ok(Arc::new(state))
    }

    fn start_transport(&self, stream: Accepted, state: &Arc<ConnectionState>) -> Transport {
        let stream = match stream {
            Accepted::Tcp(stream) => stream,
            Accepted::Unix(stream) => return Transport::Open(OpenStream::Unix(stream)),
        };
        let tls = self
            .tls
            .as_ref()
            .and_then(|(tls, kind)| tls.server_config(*kind));
        if tls.is_none() && !self.proxied {
            return Transport::Open(OpenStream::Plain(stream));
        }
        // With a reset, a connection that ends during the handshake does not keep this side's port
        // in use.
        let _ = stream.set_zero_linger();
        let proxied = self.proxied.then(|| Arc::clone(state));
        let opening = open(stream, proxied, tls);
        if !matches!(self.tls, Some((_, ListenerKind::Peers))) {
            return Transport::Opening(Box::pin(opening));
        }
        let address = state.accepted;
        let opening = opening.inspect_err(move |error| log_refused_handshake(address, error));
        Transport::Opening(Box::pin(opening))
    }
}

/// Logs and counts a peer whose connection TLS refused, for example for its certificate. A
/// connection that only broke off is of no concern.
fn log_refused_handshake(address: SocketAddr, error: &io::Error) {
    if let Some(cause) = error.get_ref()
        && cause.is::<rustls::Error>()
    {
        metrics::counter!("distlock_peer_calls_refused_total").increment(1);
        tracing::warn!(%address, %error, "a call of another node was refused in its TLS handshake");
    }
}

/// The stream of a connection, and its progress.
pub(crate) enum Transport {
    /// Reads the header of the PROXY protocol, and then completes the handshake of TLS.
    Opening(Opening),
    Open(OpenStream),
    Broken(io::Error),
}

pub(crate) type Opening = Pin<Box<dyn Future<Output = io::Result<OpenStream>> + Send>>;

pub(crate) enum OpenStream {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(crate) async fn open(
    mut stream: TcpStream,
    proxied: Option<Arc<ConnectionState>>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<OpenStream> {
    if let Some(state) = proxied {
        let source = proxy::read_source(&mut stream).await;
        let source = source.inspect_err(|error| {
            tracing::warn!(%error, proxy = %state.accepted, "a connection was refused");
        })?;
        // The proxy names no client in its own health check, so the health check counts for the
        // proxy's address.
        if !state.admit_source(source.unwrap_or(state.accepted)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
    let open = match tls {
        Some(config) => OpenStream::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?)),
        None => OpenStream::Plain(stream),
    };
    if let Some(tcp) = open.tcp() {
        let _ = SockRef::from(tcp).set_linger(None);
    }
    Ok(open)
}

impl OpenStream {
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Unix(_) => None,
            Self::Tls(stream) => Some(stream.get_ref().0),
        }
    }
}
