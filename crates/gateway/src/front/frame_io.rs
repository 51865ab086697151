//! The interface between a front and a connection: frames in, frames out.

use async_trait::async_trait;

use super::frames::{ErrorCode, Frame};

/// An event from a client.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The text of a frame, and the message id before the text if the front has message ids.
    Frame(String, Option<u16>),
    /// A sign that the client is alive, without a frame.
    Alive,
    /// Bytes that are no frame. Bytes that follow cannot be read as frames. After a frame over the
    /// limit, even the end of the connection may not be seen.
    Bad(ErrorCode, &'static str),
    /// The client announced that it closes; the connection is still open.
    Closing,
    /// The connection has ended.
    Gone,
}

/// The reading half of a connection.
#[async_trait]
pub(crate) trait FrameReader: Send + 'static {
    /// Returns the next event. After [`Incoming::Gone`] every later call returns `Gone`.
    ///
    /// Cancel safety: safe; nothing that arrived is lost.
    async fn next(&mut self) -> Incoming;
}

/// The writing half of a connection.
#[async_trait]
pub(crate) trait FrameWriter: Send + 'static {
    /// Writes a frame and flushes it.
    async fn send(&mut self, frame: &Frame) -> std::io::Result<()>;

    /// Sends a closing frame, if the front has closing frames.
    async fn close(&mut self, code: u16, reason: &str) -> std::io::Result<()>;
}
