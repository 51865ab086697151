//! What a front gives to a connection: frames in, frames out.

use async_trait::async_trait;

use super::frames::{ErrorCode, Frame};

/// What came from a client.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A frame's text, and the message id in front of it where the front has one.
    Frame(String, Option<u16>),
    /// A sign of life without a frame.
    Alive,
    /// Something that is no frame. Nothing that follows can be trusted, and of a frame over the limit not even the
    /// connection's end need follow.
    Bad(ErrorCode, &'static str),
    /// The client said that it closes; the connection still stands.
    Closing,
    /// The connection is over.
    Gone,
}

/// The reading half of a connection.
#[async_trait]
pub(crate) trait FrameReader: Send + 'static {
    /// What comes next. After [`Incoming::Gone`] it is `Gone` for ever.
    ///
    /// Cancel safety: safe; nothing that arrived is lost.
    async fn next(&mut self) -> Incoming;
}

/// The writing half of a connection.
#[async_trait]
pub(crate) trait FrameWriter: Send + 'static {
    /// Writes a frame and flushes it.
    async fn send(&mut self, frame: &Frame) -> std::io::Result<()>;

    /// Says that this side closes, where the front has words for that.
    async fn close(&mut self, code: u16, reason: &str) -> std::io::Result<()>;
}
