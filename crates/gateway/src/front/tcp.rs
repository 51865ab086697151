//! The raw TCP front: a message id and a body length, two bytes each and big-endian, then the same
//! JSON body.
//!
//! After a frame over the limit, this module must never guess the start of the next frame.

use std::io;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio_util::sync::CancellationToken;

use super::{
    FrameReader, FrameWriter, FrontContext, Incoming, connection,
    frames::{ErrorCode, Frame},
};
use crate::listen::{Connection, ConnectionListener};

const HEADER_BYTES: usize = 4;
const CHUNK_BYTES: usize = 4096;

/// Serves raw TCP clients until `stop`. Open sessions continue after `stop`; the tracker in `front`
/// tracks them.
pub(crate) async fn serve_tcp(
    front: FrontContext,
    mut listener: ConnectionListener,
    stop: CancellationToken,
) {
    loop {
        let connection = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let handle = connection.handle();
        tracing::debug!(peer = %handle.peer(), "a client connected by TCP");
        let (reader, writer) = tokio::io::split(connection);
        let reader = TcpReader::new(reader, front.max_frame);
        front.connections.spawn(connection::serve(
            front.clone(),
            reader,
            TcpWriter(writer),
            handle,
        ));
    }
}

pub(crate) struct TcpReader<H> {
    half: H,
    buffer: Vec<u8>,
    max_frame: usize,
    /// Whether a frame was over the limit. The start of the next frame is then unknown.
    lost: bool,
    gone: bool,
}

struct TcpWriter(WriteHalf<Connection>);

impl<H> TcpReader<H> {
    pub(crate) const fn new(half: H, max_frame: usize) -> Self {
        Self {
            half,
            buffer: Vec::new(),
            max_frame,
            lost: false,
            gone: false,
        }
    }

    /// Takes the frame at the start of the buffer, if the frame is complete.
    fn take_frame(&mut self) -> Option<Incoming> {
        let [id_high, id_low, length_high, length_low, ..] = *self.buffer.as_slice() else {
            return None;
        };
        let length = usize::from(u16::from_be_bytes([length_high, length_low]));
        if length > self.max_frame {
            self.lost = true;
            return Some(Incoming::Bad(
                ErrorCode::TooLong,
                "the frame is over the limit",
            ));
        }
        let body = self.buffer.get(HEADER_BYTES..HEADER_BYTES + length)?;
        let text = String::from_utf8(body.to_vec());
        self.buffer.drain(..HEADER_BYTES + length);
        Some(match text {
            Ok(text) => Incoming::Frame(text, Some(u16::from_be_bytes([id_high, id_low]))),
            Err(_) => Incoming::Bad(ErrorCode::BadFrame, "the body is not UTF-8"),
        })
    }
}

#[async_trait]
impl<H: AsyncRead + Unpin + Send + 'static> FrameReader for TcpReader<H> {
    async fn next(&mut self) -> Incoming {
        loop {
            if self.gone {
                return Incoming::Gone;
            }
            if self.lost {
                self.buffer.clear();
            } else if let Some(incoming) = self.take_frame() {
                return incoming;
            }
            let mut chunk = [0; CHUNK_BYTES];
            match self.half.read(&mut chunk).await {
                Ok(0) | Err(_) => self.gone = true,
                Ok(read) => self.buffer.extend_from_slice(&chunk[..read]),
            }
        }
    }
}

#[async_trait]
impl FrameWriter for TcpWriter {
    async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let body = frame.json.as_bytes();
        let length = u16::try_from(body.len())
            .map_err(|_| io::Error::other("the frame is too long for this front"))?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(&frame.id.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(body);
        self.0.write_all(&bytes).await?;
        self.0.flush().await
    }

    async fn close(&mut self, _code: u16, _reason: &str) -> io::Result<()> {
        // This protocol has no closing frame: the last frame asked the client to close.
        Ok(())
    }
}
