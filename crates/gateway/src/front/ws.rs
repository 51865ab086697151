//! The WebSocket front: `/ws`, one JSON object per text frame.
//!
//! This module must never let a client that reads nothing fill the memory with answers to its
//! pings.

use std::{io, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket},
    },
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::get,
};
use distlock_listen::{ConnectionHandle, ConnectionListener, serve_http};
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use tokio_util::sync::CancellationToken;

use super::{
    FrameReader, FrameWriter, FrontContext, Incoming, connection,
    frames::{ErrorCode, Frame},
};
use crate::{config::ClientAddress, health::health};

/// Bytes read at a time. Frames are short. The library fills a buffer of this size with zeroes
/// before every read, and keeps the buffer as long as the connection lasts. With the library's
/// default of 128 KiB, the buffer would be most of the memory of an idle session.
const READ_BUFFER: usize = 1024;

/// Bytes that may wait to be written: the library's own threshold for writing, 128 KiB, and the
/// longest frame. Answers to pings wait here while their client reads nothing; by the library's
/// default their number has no bound. In a full buffer, an answer to a ping replaces the previous
/// answer, and the next frame fails and ends the connection.
const WRITE_BUFFER: usize = 256 * 1024;

/// Serves WebSocket clients until `stop`. Open sessions continue after `stop`; the tracker in
/// `front` tracks them.
pub(crate) async fn serve_websocket(
    front: Arc<FrontContext>,
    listener: ConnectionListener,
    stop: CancellationToken,
) {
    let routes = Router::new()
        .route("/ws", get(upgrade))
        .route(
            "/healthz",
            get(async |State(front): State<Arc<FrontContext>>| health(&front.kick)),
        )
        .with_state(front);
    serve_http(listener, routes, stop).await;
}

async fn upgrade(
    State(front): State<Arc<FrontContext>>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    // The proxy in front tries another node after this answer. A client that connects to the node
    // itself learns more from a notice, so it is let in.
    let health = health(&front.kick);
    if front.client_address != ClientAddress::Connection && !health.status().is_success() {
        return health;
    }
    if front.client_address == ClientAddress::ForwardedFor
        && let Some(source) = forwarded_for(&headers)
        && !connection.admit_source((source, 0).into())
    {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    }
    let connections = front.connections.clone();
    upgrade
        .max_message_size(front.max_frame)
        .max_frame_size(front.max_frame)
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(WRITE_BUFFER)
        .on_upgrade(move |socket| connections.track_future(serve_socket(front, socket, connection)))
}

/// The address in the last entry, which the proxy before this node wrote. The client may have
/// invented the earlier entries.
fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all("x-forwarded-for").iter().next_back()?;
    let last = last.to_str().ok()?.rsplit(',').next()?.trim();
    last.trim_matches(['[', ']']).parse().ok()
}

async fn serve_socket(front: Arc<FrontContext>, socket: WebSocket, connection: ConnectionHandle) {
    tracing::debug!(peer = %connection.peer(), "a client connected by WebSocket");
    let (writer, reader) = socket.split();
    let reader = WsReader {
        stream: reader,
        lost: false,
        gone: false,
    };
    connection::serve(front, reader, WsWriter(writer), connection).await;
}

struct WsReader {
    stream: SplitStream<WebSocket>,
    /// Whether a frame was over the limit, or bytes were no frame.
    lost: bool,
    gone: bool,
}

struct WsWriter(SplitSink<WebSocket, Message>);

#[async_trait]
impl FrameReader for WsReader {
    async fn next(&mut self) -> Incoming {
        if self.gone {
            return Incoming::Gone;
        }
        if self.lost {
            // The library reads no further, so the end of the connection cannot be seen.
            return std::future::pending().await;
        }
        match self.stream.next().await {
            Some(Ok(Message::Text(text))) => Incoming::Frame(text.as_str().to_owned(), None),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Incoming::Alive,
            Some(Ok(Message::Close(_))) => Incoming::Closing,
            Some(Ok(Message::Binary(_))) => {
                Incoming::Bad(ErrorCode::BadFrame, "only text frames are understood")
            }
            Some(Err(error)) if is_too_long(&error) => {
                self.lost = true;
                Incoming::Bad(ErrorCode::TooLong, "the frame is over the limit")
            }
            Some(Err(error)) if is_garbage(&error) => {
                self.lost = true;
                Incoming::Bad(ErrorCode::BadFrame, "not a frame of a WebSocket")
            }
            Some(Err(_)) | None => {
                self.gone = true;
                Incoming::Gone
            }
        }
    }
}

#[async_trait]
impl FrameWriter for WsWriter {
    async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.0
            .send(Message::Text(frame.json.as_str().into()))
            .await
            .map_err(io::Error::other)
    }

    async fn close(&mut self, code: u16, reason: &str) -> io::Result<()> {
        self.0
            .send(Message::Close(Some(CloseFrame {
                code,
                reason: reason.into(),
            })))
            .await
            .map_err(io::Error::other)
    }
}

/// Whether the client broke the rules of RFC 6455. The library reports an end without a closing
/// frame as the same kind of error, and only the text differs.
fn is_garbage(error: &axum::Error) -> bool {
    let text = error.to_string();
    (text.starts_with("WebSocket protocol error") && !text.contains("without closing handshake"))
        || text.starts_with("UTF-8 encoding error")
}

/// Whether a frame was over the library's limit. Only the text of the error shows this.
fn is_too_long(error: &axum::Error) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    text.contains("too long") || text.contains("too big") || text.contains("size limit")
}
