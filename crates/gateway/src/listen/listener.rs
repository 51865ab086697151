//! Accepts connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::Clock;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Line, Places, Side, Tls,
    connection::Deadline,
    handle::End,
    transport::{Link, Open, open},
};

/// Pause after an accept that failed for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections up to a number.
#[derive(Debug)]
pub(crate) struct LineListener {
    tcp: TcpListener,
    places: Places,
    clock: Arc<dyn Clock>,
    login_timeout: Duration,
    once_opened: Duration,
    tls: Option<(Arc<Tls>, Side)>,
    /// A header of the PROXY protocol comes first.
    proxied: bool,
}

impl LineListener {
    pub(crate) fn new(
        tcp: TcpListener,
        places: Places,
        clock: Arc<dyn Clock>,
        login_timeout: Duration,
    ) -> Self {
        Self {
            tcp,
            places,
            clock,
            login_timeout,
            once_opened: Duration::ZERO,
            tls: None,
            proxied: false,
        }
    }

    /// With TLS, where this side of the node has a certificate.
    pub(crate) fn secured(mut self, tls: Arc<Tls>, side: Side) -> Self {
        self.tls = Some((tls, side));
        self
    }

    /// Behind a proxy that says by the PROXY protocol whose connection it passes on.
    pub(crate) const fn proxied(mut self, proxied: bool) -> Self {
        self.proxied = proxied;
        self
    }

    /// Gives a connection that speaks the protocol of its front, which for a WebSocket begins with the upgrade, so much more
    /// time: what a slow login may take is not for those who do not even ask for one.
    pub(crate) const fn more_once_opened(mut self, more: Duration) -> Self {
        self.once_opened = more;
        self
    }

    /// The next connection that has a place.
    ///
    /// Cancel safety: safe.
    pub(crate) async fn next(&mut self) -> Line {
        loop {
            let (stream, peer) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(end) = self.admit(peer) else {
                metrics::counter!("distlock_connections_refused_total").increment(1);
                let _ = stream.set_zero_linger();
                continue;
            };
            // Frames are small and each is wanted at once.
            let _ = stream.set_nodelay(true);
            return Line {
                link: self.link(stream, &end),
                end,
                deadline: Deadline::Opens(self.clock.sleep(self.login_timeout)),
                clock: Arc::clone(&self.clock),
                once_opened: self.once_opened,
            };
        }
    }

    fn admit(&self, peer: SocketAddr) -> Option<Arc<End>> {
        let end = End::new(peer, self.places.clone())?;
        // That of a proxy is everybody's address.
        (self.proxied || end.takes_places_of(peer)).then(|| Arc::new(end))
    }

    fn link(&self, stream: TcpStream, end: &Arc<End>) -> Link {
        let tls = self.tls.as_ref().and_then(|(tls, side)| tls.server(*side));
        if tls.is_none() && !self.proxied {
            return Link::Open(Open::Plain(stream));
        }
        // One that is given up before it is open leaves nothing behind on this side's port.
        let _ = stream.set_zero_linger();
        let proxied = self.proxied.then(|| Arc::clone(end));
        Link::Opening(Box::pin(open(stream, proxied, tls)))
    }
}
