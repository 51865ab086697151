//! One accepted connection: its bytes, its time to log in, the way it ends, and the handle by
//! which other tasks change it.
//!
//! This module owns the permits of the connection. The permits for connections without a login
//! return at the login, and all other permits return when the last handle is dropped, or when a
//! newer connection takes the place of this one. Until `mark_logged_in`, no read and no write waits
//! beyond the login deadline. This module must never extend that deadline just because bytes
//! arrive. A handle never reads from or writes to the connection.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use distlock_core::{Clock, Sleep, sync::Mutex};
use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
};

use super::{
    ConnectionQuota,
    listener::{OpenStream, Transport},
    metrics_page::REFUSED,
    quota::{AddressPermit, Pair},
};

/// A handle by which the session's task decides about its connection.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    pub(crate) state: Arc<ConnectionState>,
}

#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// The other end of the TCP connection: a client, or a proxy.
    pub(crate) accepted: SocketAddr,
    /// The client whose connection a proxy passes on.
    source: OnceLock<SocketAddr>,
    pub(crate) opened: AtomicBool,
    pub(crate) logged_in: AtomicBool,
    quota: ConnectionQuota,
    permits: Mutex<Permits>,
    pub(crate) abort: AtomicBool,
    /// Whether a newer connection took the place of this one.
    evicted: AtomicBool,
    /// Whether the connection ends the next time that its task runs.
    cut_off: AtomicBool,
    /// The task of the connection, which an eviction and `cut_off` wake.
    task: AtomicWaker,
}

/// The permits of a connection. The two `pending` permits return at the login.
#[derive(Debug, Default)]
struct Permits {
    _all: Option<OwnedSemaphorePermit>,
    pending: Option<OwnedSemaphorePermit>,
    address: Option<AddressPermit>,
    address_pending: Option<AddressPermit>,
}

impl ConnectionState {
    /// A connection with these permits: of the node, and of its address unless a proxy will name
    /// the address.
    pub(crate) fn new(
        accepted: SocketAddr,
        quota: ConnectionQuota,
        (all, pending): Pair<OwnedSemaphorePermit>,
        address: Option<Pair<AddressPermit>>,
    ) -> Self {
        let (address, address_pending) = address.unzip();
        Self {
            accepted,
            source: OnceLock::new(),
            opened: AtomicBool::default(),
            logged_in: AtomicBool::default(),
            quota,
            permits: Mutex::new(Permits {
                _all: Some(all),
                pending: Some(pending),
                address,
                address_pending,
            }),
            abort: AtomicBool::default(),
            evicted: AtomicBool::default(),
            cut_off: AtomicBool::default(),
            task: AtomicWaker::new(),
        }
    }

    /// Whether the connection has not logged in, and still has its place.
    pub(crate) fn is_stranger(&self) -> bool {
        self.permits.lock().pending.is_some()
    }

    /// Ends the connection of a stranger. Its permits return at once, not when its task has
    /// noticed. Returns `false` for a connection that is no stranger, which keeps its permits.
    pub(crate) fn evict(&self) -> bool {
        let mut permits = self.permits.lock();
        // A login takes this permit under the same lock. So a connection cannot both log in and
        // lose its place.
        if permits.pending.is_none() {
            return false;
        }
        *permits = Permits::default();
        drop(permits);
        self.abort.store(true, Ordering::Release);
        self.evicted.store(true, Ordering::Release);
        self.task.wake();
        true
    }

    /// Whether the connection has lost its place. If it loses its place later, `task` is woken.
    pub(crate) fn is_evicted(&self, task: &Waker) -> bool {
        // The waker is stored before the flag is read. Otherwise an eviction between the two would
        // wake nobody.
        self.task.register(task);
        self.evicted.load(Ordering::Acquire)
    }

    /// Takes the permits of the client that a proxy names. Returns `false` when that address has
    /// too many connections.
    pub(crate) fn admit_source(&self, source: SocketAddr) -> bool {
        let Some((address, pending)) = self.quota.acquire_for_address(source.ip()) else {
            metrics::counter!(REFUSED).increment(1);
            return false;
        };
        let mut permits = self.permits.lock();
        (permits.address, permits.address_pending) = (Some(address), Some(pending));
        drop(permits);
        let _ = self.source.set(source);
        true
    }
}

impl ConnectionHandle {
    /// The address of the client: the address that a proxy named, or else the other end of the TCP
    /// connection.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        *self.state.source.get().unwrap_or(&self.state.accepted)
    }

    /// Takes the permits of the client that a proxy names in the head of a request. Returns `false`
    /// when that address has too many connections.
    #[must_use]
    pub fn admit_source(&self, source: SocketAddr) -> bool {
        self.state.admit_source(source)
    }

    /// Notes that the client speaks the protocol of its front.
    pub fn mark_open(&self) {
        self.state.opened.store(true, Ordering::Release);
    }

    /// Marks this connection as logged in. From now on this connection has no login deadline, and
    /// no longer counts as pending in the quota.
    pub fn mark_logged_in(&self) {
        self.state.logged_in.store(true, Ordering::Release);
        let mut permits = self.state.permits.lock();
        drop((permits.pending.take(), permits.address_pending.take()));
    }

    /// Makes the drop of the connection send a reset, so that the closed connection does not keep
    /// this side's port in use. All bytes for the client must have been sent before, because a
    /// reset discards unsent bytes.
    pub fn abort_on_drop(&self) {
        self.state.abort.store(true, Ordering::Release);
    }

    /// Ends a connection whose client does not read, with a reset. Wakes the task that was the last
    /// to wait for the client; another task of the same connection notices it when it runs.
    pub fn cut_off(&self) {
        self.abort_on_drop();
        self.state.cut_off.store(true, Ordering::Release);
        self.state.task.wake();
    }
}

/// A connection. Before the login, a read that waits for bytes and a write that waits for room both
/// fail at the login deadline. So a client that sends nothing, sends one byte a minute, or reads
/// nothing cannot keep its permit for ever.
pub struct Connection {
    pub(crate) transport: Transport,
    pub(crate) state: Arc<ConnectionState>,
    pub(crate) deadline: LoginDeadline,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) extra_time: Duration,
}

/// The time to log in.
pub(crate) enum LoginDeadline {
    /// Ends when the client has spoken the protocol of its front.
    ToOpen(Sleep),
    ToLogIn(Sleep),
    Expired,
    /// The client logged in, and no deadline applies any more.
    LoggedIn,
}

trait ByteStream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> ByteStream for T {}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle()
    }
}

impl Connection {
    /// The handle of this connection.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        ConnectionHandle {
            state: Arc::clone(&self.state),
        }
    }

    /// Runs an operation on the stream once the transport is open. Before that, only one task may
    /// poll the two halves: the pending handshake stores one waker, so the half that polled first
    /// would never be woken.
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        operation: impl FnOnce(
            Pin<&mut (dyn ByteStream + 'static)>,
            &mut Context<'_>,
        ) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !matches!(self.deadline, LoginDeadline::LoggedIn)
            && self.state.is_evicted(context.waker())
        {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.state.cut_off.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if let Transport::Opening(opening) = &mut self.transport
            && let Poll::Ready(opened) = opening.as_mut().poll(context)
        {
            self.transport = opened.map_or_else(Transport::Broken, Transport::Open);
        }
        let outcome = match &mut self.transport {
            Transport::Open(OpenStream::Plain(stream)) => operation(Pin::new(stream), context),
            Transport::Open(OpenStream::Unix(stream)) => operation(Pin::new(stream), context),
            Transport::Open(OpenStream::Tls(stream)) => operation(Pin::new(stream), context),
            Transport::Opening(_) => Poll::Pending,
            Transport::Broken(why) => Poll::Ready(Err(io::Error::new(why.kind(), why.to_string()))),
        };
        self.fail_if_login_expired(context, outcome)
    }

    /// Passes an outcome on. A pending one becomes a time-out error once the login deadline has
    /// passed.
    fn fail_if_login_expired<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        if self.state.logged_in.load(Ordering::Acquire) {
            self.deadline = LoginDeadline::LoggedIn;
        }
        if let LoginDeadline::ToOpen(sleep) = &mut self.deadline {
            ready!(sleep.as_mut().poll(context));
            self.deadline = if self.state.opened.load(Ordering::Acquire) {
                LoginDeadline::ToLogIn(self.clock.sleep(self.extra_time))
            } else {
                LoginDeadline::Expired
            };
        }
        match &mut self.deadline {
            LoginDeadline::LoggedIn => {
                // The waker is stored before the flag is read. Otherwise a call of `cut_off`
                // between the two would wake nobody.
                self.state.task.register(context.waker());
                if self.state.cut_off.load(Ordering::Acquire) {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                return Poll::Pending;
            }
            LoginDeadline::ToOpen(_) => return Poll::Pending,
            LoginDeadline::ToLogIn(sleep) => ready!(sleep.as_mut().poll(context)),
            LoginDeadline::Expired => {}
        }
        self.deadline = LoginDeadline::Expired;
        self.state.abort.store(true, Ordering::Release);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.state).finish()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Transport::Open(open) = &self.transport
            && let Some(tcp) = open.tcp()
            && self.state.abort.load(Ordering::Acquire)
        {
            let _ = tcp.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll(context, |open, context| open.poll_read(context, buffer))
    }
}

impl AsyncWrite for Connection {
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
        // Before the transport is open, nothing has been written that would still have to arrive.
        if !matches!(self.transport, Transport::Open(_)) {
            return Poll::Ready(Ok(()));
        }
        self.poll(context, AsyncWrite::poll_shutdown)
    }
}
