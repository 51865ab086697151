//! One accepted connection: its time to log in, and how it ends.

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
    LineHandle,
    handle::End,
    transport::{Link, Open},
};

/// A connection. Until somebody logs in over it, waiting for the client fails after the time for that is over, whether for
/// something to read or for room to write: a client that says nothing, or says it a byte a minute, or does not read what it is
/// answered, holds no place for ever.
pub(crate) struct Line {
    pub(super) link: Link,
    pub(super) end: Arc<End>,
    pub(super) deadline: Deadline,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) once_opened: Duration,
}

/// The time to log in.
pub(super) enum Deadline {
    /// Until it speaks its front's protocol.
    Opens(Sleep),
    Runs(Sleep),
    Over,
    /// Somebody logged in.
    Met,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

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
