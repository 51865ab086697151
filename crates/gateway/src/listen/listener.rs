//! A listener that accepts connections within a quota.
//!
//! Invariant of this module: each connection that the listener returns has its permits. A bad
//! connection must never stop the listener.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::Clock;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Connection, ConnectionQuota, ListenerKind, Tls,
    connection::LoginDeadline,
    handle::ConnectionState,
    transport::{OpenStream, Transport, open},
};

/// Pause after a failed accept. An accept usually fails for lack of file descriptors, and an
/// immediate retry would only use the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections within a quota.
#[derive(Debug)]
pub(crate) struct ConnectionListener {
    tcp: TcpListener,
    quota: ConnectionQuota,
    clock: Arc<dyn Clock>,
    login_timeout: Duration,
    extra_time: Duration,
    tls: Option<(Arc<Tls>, ListenerKind)>,
    /// Whether a header of the PROXY protocol comes first.
    proxied: bool,
}

impl ConnectionListener {
    pub(crate) fn new(
        tcp: TcpListener,
        quota: ConnectionQuota,
        clock: Arc<dyn Clock>,
        login_timeout: Duration,
    ) -> Self {
        Self {
            tcp,
            quota,
            clock,
            login_timeout,
            extra_time: Duration::ZERO,
            tls: None,
            proxied: false,
        }
    }

    /// Uses TLS if the configuration has a certificate for this kind of listener.
    pub(crate) fn with_tls(mut self, tls: Arc<Tls>, kind: ListenerKind) -> Self {
        self.tls = Some((tls, kind));
        self
    }

    /// Expects a proxy in front that names the client by the PROXY protocol.
    pub(crate) const fn proxied(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    /// Gives a connection this much more time once the client speaks the protocol of its front. On
    /// a WebSocket, that is the upgrade. Only then may a login be in progress, and a slow login
    /// needs the time.
    pub(crate) const fn extra_time_once_open(mut self, more: Duration) -> Self {
        self.extra_time = more;
        self
    }

    /// Returns the next connection that got its permits.
    ///
    /// Cancel safety: safe.
    pub(crate) async fn accept(&mut self) -> Connection {
        loop {
            let (stream, peer) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(state) = self.admit(peer) else {
                metrics::counter!("distlock_connections_refused_total").increment(1);
                let _ = stream.set_zero_linger();
                continue;
            };
            // Frames are small, and each frame must be sent at once.
            let _ = stream.set_nodelay(true);
            return Connection {
                transport: self.start_transport(stream, &state),
                state,
                deadline: LoginDeadline::ToOpen(self.clock.sleep(self.login_timeout)),
                clock: Arc::clone(&self.clock),
                extra_time: self.extra_time,
            };
        }
    }

    fn admit(&self, peer: SocketAddr) -> Option<Arc<ConnectionState>> {
        let state = ConnectionState::new(peer, self.quota.clone())?;
        // All clients share the proxy's address, so the proxy's address takes no permits.
        (self.proxied || state.acquire_address(peer)).then(|| Arc::new(state))
    }

    fn start_transport(&self, stream: TcpStream, state: &Arc<ConnectionState>) -> Transport {
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
        Transport::Opening(Box::pin(open(stream, proxied, tls)))
    }
}
