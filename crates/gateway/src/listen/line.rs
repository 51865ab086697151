//! One accepted connection: its place among the allowed number, its time to log in, and how it ends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use distlock_core::{Clock, Sleep};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// Pause after an accept that failed for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The places for connections on all fronts of a node.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    /// Those that have not logged in yet: a crowd of strangers leaves room for whoever is in.
    pending: Arc<Semaphore>,
}

impl Places {
    pub(crate) fn new(all: usize, pending: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            pending: Arc::new(Semaphore::new(pending)),
        }
    }

    fn take(&self) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let pending = Arc::clone(&self.pending).try_acquire_owned().ok()?;
        let place = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some((place, pending))
    }
}

/// Accepts connections up to a number.
#[derive(Debug)]
pub(crate) struct LineListener {
    tcp: TcpListener,
    places: Places,
    clock: Arc<dyn Clock>,
    login_timeout: Duration,
    once_opened: Duration,
}

/// A connection. Until somebody logs in over it, waiting for the client fails after the time for that is over, whether for
/// something to read or for room to write: a client that says nothing, or says it a byte a minute, or does not read what it is
/// answered, holds no place for ever.
pub(crate) struct Line {
    stream: TcpStream,
    peer: SocketAddr,
    end: Arc<End>,
    deadline: Deadline,
    clock: Arc<dyn Clock>,
    once_opened: Duration,
    _place: OwnedSemaphorePermit,
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
    pub(crate) peer: SocketAddr,
}

#[derive(Debug, Default)]
struct End {
    opened: AtomicBool,
    logged_in: AtomicBool,
    pending: Mutex<Option<OwnedSemaphorePermit>>,
    abort: AtomicBool,
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
        }
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
    pub(crate) async fn next(&mut self) -> (Line, SocketAddr) {
        loop {
            let (stream, peer) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some((place, pending)) = self.places.take() else {
                metrics::counter!("distlock_connections_refused_total").increment(1);
                let _ = stream.set_zero_linger();
                continue;
            };
            // Frames are small and each is wanted at once.
            let _ = stream.set_nodelay(true);
            let line = Line {
                stream,
                peer,
                end: Arc::new(End {
                    pending: Mutex::new(Some(pending)),
                    ..End::default()
                }),
                deadline: Deadline::Opens(self.clock.sleep(self.login_timeout)),
                clock: Arc::clone(&self.clock),
                once_opened: self.once_opened,
                _place: place,
            };
            return (line, peer);
        }
    }
}

impl axum::serve::Listener for LineListener {
    type Io = Line;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Line, SocketAddr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, LineListener>>
    for LineHandle
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, LineListener>) -> Self {
        stream.io().handle(*stream.remote_addr())
    }
}

impl tonic::transport::server::Connected for Line {
    type ConnectInfo = LineHandle;

    fn connect_info(&self) -> LineHandle {
        self.handle(self.peer)
    }
}

impl Line {
    pub(crate) fn handle(&self, peer: SocketAddr) -> LineHandle {
        LineHandle {
            end: Arc::clone(&self.end),
            peer,
        }
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
    }

    /// Ends the connection by a reset when it is dropped: nothing of it lingers on this side's port. Whatever is to reach the
    /// client must have been sent before.
    pub(crate) fn abort_on_drop(&self) {
        self.end.abort.store(true, Ordering::Release);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.end.abort.load(Ordering::Acquire) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.in_time(context, answer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let answer = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, answer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, answer)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let answer = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, answer)
    }
}
