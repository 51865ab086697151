//! Accepts connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::Clock;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Connection, ConnectionQuota, ListenerKind, Tls,
    connection::LoginDeadline,
    handle::ConnectionState,
    transport::{OpenStream, Transport, open},
};

/// Pause after an accept that failed for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections up to a number.
#[derive(Debug)]
pub(crate) struct ConnectionListener {
    tcp: TcpListener,
    quota: ConnectionQuota,
    clock: Arc<dyn Clock>,
    login_timeout: Duration,
    extra_time: Duration,
    tls: Option<(Arc<Tls>, ListenerKind)>,
    /// A header of the PROXY protocol comes first.
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

    /// With TLS, where this kind of the node has a certificate.
    pub(crate) fn with_tls(mut self, tls: Arc<Tls>, kind: ListenerKind) -> Self {
        self.tls = Some((tls, kind));
        self
    }

    /// Behind a proxy that says by the PROXY protocol whose connection it passes on.
    pub(crate) const fn proxied(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    /// Gives a connection that speaks the protocol of its front, which for a WebSocket begins with the upgrade, so much more
    /// time: what a slow login may take is not for those who do not even ask for one.
    pub(crate) const fn extra_time_once_open(mut self, more: Duration) -> Self {
        self.extra_time = more;
        self
    }

    /// The next connection that has a place.
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
            // Frames are small and each is wanted at once.
            let _ = stream.set_nodelay(true);
            return Connection {
                transport: self.transport(stream, &state),
                state,
                deadline: LoginDeadline::ToOpen(self.clock.sleep(self.login_timeout)),
                clock: Arc::clone(&self.clock),
                extra_time: self.extra_time,
            };
        }
    }

    fn admit(&self, peer: SocketAddr) -> Option<Arc<ConnectionState>> {
        let state = ConnectionState::new(peer, self.quota.clone())?;
        // That of a proxy is everybody's address.
        (self.proxied || state.acquire_address(peer)).then(|| Arc::new(state))
    }

    fn transport(&self, stream: TcpStream, state: &Arc<ConnectionState>) -> Transport {
        let tls = self.tls.as_ref().and_then(|(tls, kind)| tls.server(*kind));
        if tls.is_none() && !self.proxied {
            return Transport::Open(OpenStream::Plain(stream));
        }
        // One that is given up before it is open leaves nothing behind on this kind's port.
        let _ = stream.set_zero_linger();
        let proxied = self.proxied.then(|| Arc::clone(state));
        Transport::Opening(Box::pin(open(stream, proxied, tls)))
    }
}
