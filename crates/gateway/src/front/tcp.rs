//! The raw TCP front: a message id and a body length, two bytes each and big-endian, then the same
//! JSON body.
//!
//! After a frame over the limit, this module must never guess the start of the next frame.

use std::{error::Error, fmt, io, sync::Arc};

use async_trait::async_trait;
use distlock_listen::{Connection, ConnectionListener, PROXY_BEGINNINGS};
use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWriteExt as _, WriteHalf};
use tokio_util::{
    bytes::BytesMut,
    codec::{Decoder, FramedRead, LengthDelimitedCodec, LengthDelimitedCodecError},
    sync::CancellationToken,
};

use super::{
    FrameReader, FrameWriter, FrontContext, Incoming, connection,
    frames::{ErrorCode, Frame},
};

const ID_BYTES: usize = 2;
const HEADER_BYTES: usize = 4;
/// The size of the buffer of a connection, which grows for a longer frame. A buffer that starts
/// below 1,024 bytes is replaced by one that holds only the next header, so each later frame would
/// need two reads (crate `bytes` 1.12).
const BUFFER_BYTES: usize = 1024;

/// Serves raw TCP clients until `stop`. Open sessions continue after `stop`; the tracker in `front`
/// tracks them.
pub(crate) async fn serve_tcp(
    front: Arc<FrontContext>,
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
    /// Yields whole frames with their headers.
    frames: FramedRead<H, FrameDecoder>,
    /// Whether the start of the next frame is unknown: a frame was over the limit, or the
    /// connection began with no frame.
    lost: bool,
}

/// Cuts the bytes into frames, and refuses a connection that begins with a header of the PROXY
/// protocol. Without this, the header would be the beginning of a frame whose rest never comes.
struct FrameDecoder {
    codec: LengthDelimitedCodec,
    /// Whether the first bytes of the connection were looked at.
    begun: bool,
}

/// The proxy in front of this node names the client, and the node does not expect that.
#[derive(Debug)]
struct UnexpectedHeader;

impl fmt::Display for UnexpectedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header of the PROXY protocol, and proxy_protocol is off")
    }
}

impl Error for UnexpectedHeader {}

impl Decoder for FrameDecoder {
    type Item = BytesMut;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        if !self.begun {
            match begins_with_header(bytes) {
                None => return Ok(None),
                Some(true) => return Err(io::Error::other(UnexpectedHeader)),
                Some(false) => self.begun = true,
            }
        }
        self.codec.decode(bytes)
    }
}

/// Whether a connection begins with a header of the PROXY protocol; `None` = more bytes tell. No
/// frame begins so: its body would not begin as JSON does.
fn begins_with_header(bytes: &[u8]) -> Option<bool> {
    let mut unclear = false;
    for header in PROXY_BEGINNINGS {
        if bytes.starts_with(header) {
            return Some(true);
        }
        unclear |= header.starts_with(bytes);
    }
    (!unclear).then_some(false)
}

struct TcpWriter(WriteHalf<Connection>);

impl<H: AsyncRead> TcpReader<H> {
    pub(crate) fn new(half: H, max_frame: usize) -> Self {
        let codec = LengthDelimitedCodec::builder()
            .length_field_offset(ID_BYTES)
            .length_field_type::<u16>()
            .max_frame_length(max_frame)
            // The header stays in front of the body, because it contains the message id.
            .length_adjustment(HEADER_BYTES.cast_signed())
            .num_skip(0)
            .new_codec();
        Self {
            frames: FramedRead::with_capacity(
                half,
                FrameDecoder {
                    codec,
                    begun: false,
                },
                BUFFER_BYTES,
            ),
            lost: false,
        }
    }
}

#[async_trait]
impl<H: AsyncRead + Unpin + Send + 'static> FrameReader for TcpReader<H> {
    async fn next(&mut self) -> Incoming {
        if self.lost {
            // Nothing is read any longer, so the end of the connection cannot be seen.
            return std::future::pending().await;
        }
        match self.frames.next().await {
            Some(Ok(frame)) => {
                let (header, body) = frame.split_at(HEADER_BYTES);
                match str::from_utf8(body) {
                    Ok(text) => {
                        let id = u16::from_be_bytes([header[0], header[1]]);
                        Incoming::Frame(text.to_owned(), Some(id))
                    }
                    Err(_) => Incoming::Bad(ErrorCode::BadFrame, "the body is not UTF-8"),
                }
            }
            Some(Err(error)) if is_too_long(&error) => {
                self.lost = true;
                Incoming::Bad(ErrorCode::TooLong, "the frame is over the limit")
            }
            Some(Err(error)) if is_unexpected_header(&error) => {
                self.lost = true;
                Incoming::Bad(
                    ErrorCode::BadFrame,
                    "a header of the PROXY protocol, which this address does not expect",
                )
            }
            Some(Err(_)) | None => Incoming::Gone,
        }
    }
}

/// Whether the reader refused a frame because of its length.
fn is_too_long(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(cause) if cause.is::<LengthDelimitedCodecError>())
}

fn is_unexpected_header(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(cause) if cause.is::<UnexpectedHeader>())
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
