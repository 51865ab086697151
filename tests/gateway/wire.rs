//! The carriers of a client's frames: a WebSocket, or plain TCP with a length and a number before
//! each frame.

use std::{io, net::SocketAddr};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

/// The numbers of the frames that clients send here.
const NUMBERS: [(&str, u16); 5] = [
    ("login", 1),
    ("send", 2),
    ("bye", 4),
    ("logout", 5),
    ("ack", 6),
];

pub(crate) enum Wire {
    WebSocket(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
    Framed(TcpStream, Vec<u8>),
}

impl Wire {
    pub(crate) async fn websocket(to: SocketAddr) -> Self {
        let (socket, _) = connect_async(format!("ws://{to}/ws"))
            .await
            .expect("connected");
        Self::WebSocket(Box::new(socket))
    }

    pub(crate) async fn framed(to: SocketAddr) -> Self {
        Self::Framed(TcpStream::connect(to).await.expect("connected"), Vec::new())
    }

    pub(crate) async fn send(&mut self, frame: &Value) -> io::Result<()> {
        match self {
            Self::WebSocket(socket) => {
                let sent = socket.send(Message::text(frame.to_string())).await;
                sent.map_err(io::Error::other)
            }
            Self::Framed(stream, _) => {
                let number = NUMBERS.iter().find(|(name, _)| frame["type"] == *name);
                let body = frame.to_string();
                let mut bytes = number.expect("a frame of ours").1.to_be_bytes().to_vec();
                bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
                bytes.extend(body.as_bytes());
                stream.write_all(&bytes).await
            }
        }
    }

    /// Receives the next frame; `None` when the other side has closed. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        match self {
            Self::WebSocket(socket) => loop {
                match socket.next().await? {
                    Ok(Message::Text(text)) => return serde_json::from_str(&text).ok(),
                    Ok(Message::Close(_)) | Err(_) => return None,
                    Ok(_) => {}
                }
            },
            Self::Framed(stream, buffer) => loop {
                if let [_, _, high, low, ..] = *buffer.as_slice() {
                    let end = 4 + usize::from(u16::from_be_bytes([high, low]));
                    if buffer.len() >= end {
                        let body: Vec<u8> = buffer.drain(..end).skip(4).collect();
                        return serde_json::from_slice(&body).ok();
                    }
                }
                if stream.read_buf(buffer).await.ok()? == 0 {
                    return None;
                }
            },
        }
    }

    pub(crate) async fn close(&mut self) {
        // An error means that the connection has ended already.
        match self {
            Self::WebSocket(socket) => drop((**socket).close(None).await),
            Self::Framed(stream, _) => drop(stream.shutdown().await),
        }
    }
}
