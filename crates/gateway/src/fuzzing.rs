//! Parsers of this crate for the fuzz targets of the repository. This module is not part of the
//! crate's public interface.

use std::net::SocketAddr;

use distlock_listen::read_source;
use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt as _;

use crate::{
    TokenKey,
    front::{
        FrameReader as _, Incoming, TcpReader,
        frames::{FrameError, Inbound, Outbound},
    },
    peer::wire_fuzzing,
};

/// A frame of a client.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFrame {
    /// Whether this node speaks the protocol version that the login names.
    pub version: Option<Result<(), String>>,
    /// The body of the client's message, first as it was read, and then as the receiver's frame
    /// carries it.
    pub body: Option<(String, String)>,
}

/// Reads a frame.
///
/// # Errors
/// The reason for the client; `None` for bytes that are no frame.
pub fn client_frame(text: &str, id: Option<u16>) -> Result<ClientFrame, Option<String>> {
    let mut frame = ClientFrame {
        version: None,
        body: None,
    };
    match Inbound::parse(text, id) {
        Ok(Inbound::Login(login)) => frame.version = Some(login.check_version()),
        Ok(Inbound::Send(send)) => {
            let sent = Outbound::Message {
                from: &send.to,
                body: &send.body,
                id: &send.id,
                seq: None,
            };
            let written = sent.to_frame().json;
            let body = body_of_message(&written).unwrap_or_default();
            frame.body = Some((send.body.get().to_owned(), body));
        }
        Ok(Inbound::Ack(_) | Inbound::Saved | Inbound::Ping | Inbound::Bye | Inbound::Logout) => {}
        Err(FrameError::Garbage) => return Err(None),
        Err(FrameError::Value { why, .. }) => return Err(Some(why)),
    }
    Ok(frame)
}

/// The body in a frame that a client receives.
fn body_of_message(frame: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Carried {
        body: Box<RawValue>,
    }
    let carried: Carried = serde_json::from_str(frame).ok()?;
    Some(carried.body.get().to_owned())
}

/// The frames in the bytes of a raw TCP client, which arrive in two pieces. If the remaining bytes
/// are no frame, the last entry gives the reason.
#[must_use]
pub fn tcp_frames(
    first: &[u8],
    second: &[u8],
    max_frame: usize,
) -> Vec<Result<(u16, String), &'static str>> {
    let sent = std::io::Cursor::new(first.to_vec()).chain(std::io::Cursor::new(second.to_vec()));
    let mut reader = TcpReader::new(sent, max_frame);
    let mut frames = Vec::new();
    // The reader never waits here, because all bytes are in memory.
    while let Some(incoming) = reader.next().now_or_never() {
        match incoming {
            Incoming::Frame(text, id) => frames.push(Ok((id.unwrap_or_default(), text))),
            Incoming::Bad(_, why) => {
                frames.push(Err(why));
                break;
            }
            Incoming::Gone => break,
            Incoming::Alive | Incoming::Closing => {}
        }
    }
    frames
}

/// The client that a header of the PROXY protocol names, and the bytes after the header. `None`
/// means that the bytes are no header.
#[must_use]
pub fn proxy_header(bytes: &[u8]) -> Option<(Option<SocketAddr>, &[u8])> {
    let mut rest = bytes;
    let source = read_source(&mut rest).now_or_never()?;
    source.ok().map(|source| (source, rest))
}

/// A request of a node, first as it was read, and then as it is read after it was written again.
/// `None` means that the request was refused. The first byte selects the message.
#[must_use]
pub fn peer_message(bytes: &[u8]) -> Option<(String, String)> {
    wire_fuzzing::round_trip(bytes)
}

/// A login token with any claims and a valid signature.
#[must_use]
pub fn signed(key: &TokenKey, claims: &[u8]) -> String {
    key.signed(claims)
}
