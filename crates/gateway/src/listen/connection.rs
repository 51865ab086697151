//! One accepted connection: its bytes, its time to log in, and the way it ends.
//!
//! Invariant of this module: until `mark_logged_in`, no read and no write waits beyond the login
//! deadline. This module must never extend that deadline just because bytes arrive.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use distlock_core::{Clock, Sleep};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    ConnectionHandle,
    handle::ConnectionState,
    transport::{OpenStream, Transport},
};

/// A connection. Before the login, a read that waits for bytes and a write that waits for room both
/// fail at the login deadline. So a client that sends nothing, sends one byte a minute, or reads
/// nothing cannot keep its permit for ever.
pub(crate) struct Connection {
    pub(super) transport: Transport,
    pub(super) state: Arc<ConnectionState>,
    pub(super) deadline: LoginDeadline,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) extra_time: Duration,
}

/// The time to log in.
pub(super) enum LoginDeadline {
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
    pub(crate) fn handle(&self) -> ConnectionHandle {
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
        if let Transport::Opening(opening) = &mut self.transport
            && let Poll::Ready(opened) = opening.as_mut().poll(context)
        {
            self.transport = opened.map_or_else(Transport::Broken, Transport::Open);
        }
        let outcome = match &mut self.transport {
            Transport::Open(OpenStream::Plain(stream)) => operation(Pin::new(stream), context),
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
            LoginDeadline::LoggedIn | LoginDeadline::ToOpen(_) => return Poll::Pending,
            LoginDeadline::ToLogIn(sleep) => ready!(sleep.as_mut().poll(context)),
            LoginDeadline::Expired => {}
        }
        self.deadline = LoginDeadline::Expired;
        self.state.abort.store(true, Ordering::Release);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Transport::Open(open) = &self.transport
            && self.state.abort.load(Ordering::Acquire)
        {
            let _ = open.tcp().set_zero_linger();
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
