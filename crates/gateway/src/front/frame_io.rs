//! The interface between a front and a connection: frames in, frames out.

use async_trait::async_trait;

use super::frames::{ErrorCode, Frame};

/// An event from a client.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The text of a frame, and the message id in front of it where the front has one.
    Frame(String, Option<u16>),
    /// A sign of life without a frame.
    Alive,
    /// Bytes that are no frame. Nothing behind them can be trusted, and after a frame over the
    /// limit even the end of the connection may not be seen.
    Bad(ErrorCode, &'static str),
    /// The client said that it closes; the connection still stands.
    Closing,
    /// The connection is over.
    Gone,
}

/// The reading half of a connection.
#[async_trait]
pub(crate) trait FrameReader: Send + 'static {
    /// Returns the next event. After [`Incoming::Gone`] it returns `Gone` for ever.
    ///
    /// Cancel safety: safe; nothing that arrived is lost.
    async fn next(&mut self) -> Incoming;
}

/// The writing half of a connection.
#[async_trait]
pub(crate) trait FrameWriter: Send + 'static {
    /// Writes a frame and flushes it.
    async fn send(&mut self, frame: &Frame) -> std::io::Result<()>;

    /// Sends a closing frame, where the front has one.
    async fn close(&mut self, code: u16, reason: &str) -> std::io::Result<()>;
}
