//! One accepted connection: its place among the allowed number, its time to log in, and how it ends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use distlock_core::{Clock, Sleep};
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::OwnedSemaphorePermit,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Places, Side, Tls, places::AddressPlace, proxy};

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

/// A connection. Until somebody logs in over it, waiting for the client fails after the time for that is over, whether for
/// something to read or for room to write: a client that says nothing, or says it a byte a minute, or does not read what it is
/// answered, holds no place for ever.
pub(crate) struct Line {
    link: Link,
    end: Arc<End>,
    deadline: Deadline,
    clock: Arc<dyn Clock>,
    once_opened: Duration,
}

/// What carries the bytes.
enum Link {
    /// The header of the PROXY protocol, then the handshake of TLS.
    Opening(Opening),
    Open(Open),
    Broken(io::Error),
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

type Opening = Pin<Box<dyn Future<Output = io::Result<Open>> + Send>>;

enum Open {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The time to log in.
enum Deadline {
    /// Until it speaks its front's protocol.
    Opens(Sleep),
    Runs(Sleep),
    Over,
    /// Somebody logged in.
    Met,
}

/// What the session's task decides about its connection.
#[derive(Clone, Debug)]
pub(crate) struct LineHandle {
    end: Arc<End>,
}

#[derive(Debug)]
struct End {
    /// Who connected here: a client, or a proxy.
    accepted: SocketAddr,
    /// Whose connection a proxy passes on.
    source: OnceLock<SocketAddr>,
    opened: AtomicBool,
    logged_in: AtomicBool,
    places: Places,
    /// Given back when somebody logs in.
    pending: Mutex<Option<OwnedSemaphorePermit>>,
    /// Those of its address, the first for as long as it lasts.
    of_address: Mutex<(Option<AddressPlace>, Option<AddressPlace>)>,
    abort: AtomicBool,
    _place: OwnedSemaphorePermit,
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
        let (place, pending) = self.places.take()?;
        let end = End {
            accepted: peer,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            places: self.places.clone(),
            pending: Mutex::new(Some(pending)),
            of_address: Mutex::default(),
            abort: AtomicBool::default(),
            _place: place,
        };
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

async fn open(
    mut stream: TcpStream,
    proxied: Option<Arc<End>>,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<Open> {
    if let Some(end) = proxied {
        let source = proxy::source(&mut stream).await;
        let source = source.inspect_err(|error| {
            tracing::warn!(%error, proxy = %end.accepted, "a connection was refused");
        })?;
        // The health checks of a proxy count for its own address.
        if !end.comes_from(source.unwrap_or(end.accepted)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    }
    let open = match tls {
        Some(config) => Open::Tls(Box::new(TlsAcceptor::from(config).accept(stream).await?)),
        None => Open::Plain(stream),
    };
    let _ = SockRef::from(open.tcp()).set_linger(None);
    Ok(open)
}

impl Open {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl End {
    fn takes_places_of(&self, address: SocketAddr) -> bool {
        let Some((place, pending)) = self.places.take_for(address.ip()) else {
            return false;
        };
        let mut places = self
            .of_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *places = (Some(place), Some(pending));
        true
    }

    /// A proxy said whose connection it passes on. `false` = that address has too many.
    fn comes_from(&self, source: SocketAddr) -> bool {
        if !self.takes_places_of(source) {
            metrics::counter!("distlock_connections_refused_total").increment(1);
            return false;
        }
        let _ = self.source.set(source);
        true
    }
}

impl tonic::transport::server::Connected for Line {
    type ConnectInfo = LineHandle;

    fn connect_info(&self) -> LineHandle {
        self.handle()
    }
}

impl Line {
    pub(crate) fn handle(&self) -> LineHandle {
        LineHandle {
            end: Arc::clone(&self.end),
        }
    }

    /// Does something once the link is open. Both halves may wait for that only while one task has
    /// them: whoever waits last is the one that is woken.
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        does: impl FnOnce(Pin<&mut (dyn Stream + 'static)>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Link::Opening(opening) = &mut self.link
            && let Poll::Ready(opened) = opening.as_mut().poll(context)
        {
            self.link = opened.map_or_else(Link::Broken, Link::Open);
        }
        let answer = match &mut self.link {
            Link::Open(Open::Plain(stream)) => does(Pin::new(stream), context),
            Link::Open(Open::Tls(stream)) => does(Pin::new(stream), context),
            Link::Opening(_) => Poll::Pending,
            Link::Broken(why) => Poll::Ready(Err(io::Error::new(why.kind(), why.to_string()))),
        };
        self.in_time(context, answer)
    }

    /// An answer of the stream's, unless it is to wait and the time to log in is over.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        answer: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if answer.is_ready() {
            return answer;
        }
        if self.end.logged_in.load(Ordering::Acquire) {
            self.deadline = Deadline::Met;
        }
        if let Deadline::Opens(sleep) = &mut self.deadline {
            ready!(sleep.as_mut().poll(context));
            self.deadline = if self.end.opened.load(Ordering::Acquire) {
                Deadline::Runs(self.clock.sleep(self.once_opened))
            } else {
                Deadline::Over
            };
        }
        match &mut self.deadline {
            Deadline::Met | Deadline::Opens(_) => return Poll::Pending,
            Deadline::Runs(sleep) => ready!(sleep.as_mut().poll(context)),
            Deadline::Over => {}
        }
        self.deadline = Deadline::Over;
        self.end.abort.store(true, Ordering::Release);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl LineHandle {
    /// Whose connection it is.
    pub(crate) fn peer(&self) -> SocketAddr {
        *self.end.source.get().unwrap_or(&self.end.accepted)
    }

    /// A proxy said, in the head of a request, whose connection it passes on. `false` = that address
    /// has too many.
    pub(crate) fn comes_from(&self, source: SocketAddr) -> bool {
        self.end.comes_from(source)
    }

    /// The connection speaks its front's protocol.
    pub(crate) fn opened(&self) {
        self.end.opened.store(true, Ordering::Release);
    }

    /// Somebody logged in: from now on the session's own limits hold.
    pub(crate) fn logged_in(&self) {
        self.end.logged_in.store(true, Ordering::Release);
        let mut pending = self
            .end
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        drop(pending.take());
        let places = self.end.of_address.lock();
        drop(places.unwrap_or_else(PoisonError::into_inner).1.take());
    }

    /// Ends the connection by a reset when it is dropped: nothing of it lingers on this side's port. Whatever is to reach the
    /// client must have been sent before.
    pub(crate) fn abort_on_drop(&self) {
        self.end.abort.store(true, Ordering::Release);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Link::Open(open) = &self.link
            && self.end.abort.load(Ordering::Acquire)
        {
            let _ = open.tcp().set_zero_linger();
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(context, |open, context| open.poll_read(context, buffer))
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(context, |open, context| open.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before it is open, nothing was said that would have to arrive.
        if !matches!(self.link, Link::Open(_)) {
            return Poll::Ready(Ok(()));
        }
        self.poll(context, AsyncWrite::poll_shutdown)
    }
}
