//! A minimal device: one connection and one login.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, Moment, SystemClock};
use distlock_kickout::{Generation, SessionId};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::WebSocketConfig},
};

/// The longest time for each step. A step that takes longer is an error.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(30);

/// A connected device. Dropping it resets the connection, so that thousands of devices leave no
/// port in the state `TIME_WAIT`.
#[derive(Debug)]
pub(super) struct Client {
    socket: WebSocketStream<TcpStream>,
}

/// A frame of a node. Fields that are not needed here are left out.
#[derive(Debug, Deserialize)]
pub(super) struct Frame {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) session: Option<SessionId>,
    pub(super) r#gen: Option<Generation>,
    pub(super) id: Option<String>,
    pub(super) outcome: Option<String>,
    pub(super) code: Option<serde_json::Value>,
    pub(super) reason: Option<String>,
}

impl Client {
    /// Connects, without logging in.
    pub(super) async fn connect(to: SocketAddr) -> Result<Self> {
        let connecting = async {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            // Small buffers, because there are many clients and their frames are short.
            let config = WebSocketConfig::default()
                .read_buffer_size(4096)
                .write_buffer_size(0);
            let url = format!("ws://{to}/ws");
            let (socket, _) =
                tokio_tungstenite::client_async_with_config(url, stream, Some(config)).await?;
            Ok(Self { socket })
        };
        within_limit("connect", connecting).await?
    }

    /// Sends the login.
    pub(super) async fn send_login(&mut self, token: &str, device: &str) -> Result<()> {
        let frame = json!({
            "type": "login",
            "token": token,
            "device": device,
            "class": "",
            "intent": "login",
        });
        self.send(&frame.to_string()).await
    }

    /// Sends a frame.
    pub(super) async fn send(&mut self, frame: &str) -> Result<()> {
        let sending = self.socket.send(Message::text(frame));
        Ok(within_limit("send a frame", sending).await??)
    }

    /// The next frame; `None` after the end of the connection.
    ///
    /// Cancel safe.
    pub(super) async fn next_frame(&mut self) -> Result<Option<Frame>> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(text.as_str())
                        .map(Some)
                        .with_context(|| format!("a node said {text}"));
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(None),
                Some(Ok(_)) => {}
            }
        }
    }

    /// Waits for the answer to a login or to a ping.
    pub(super) async fn wait_for_answer(&mut self) -> Result<Frame> {
        match within_limit("wait for the answer to a login", self.next_frame()).await?? {
            Some(frame) => Ok(frame),
            None => bail!("the connection ended before the login was answered"),
        }
    }

    /// Waits for the answer to a login, and fails unless it is a confirmation.
    pub(super) async fn wait_until_in(&mut self) -> Result<()> {
        let frame = self.wait_for_answer().await?;
        if frame.kind != "login_ok" {
            bail!("a login was answered {frame}");
        }
        Ok(())
    }

    /// Waits for the notice that ends the session, and returns the moment of its arrival.
    pub(super) async fn wait_for_notice(&mut self) -> Result<Moment> {
        while let Some(frame) = within_limit("wait for the notice", self.next_frame()).await?? {
            match frame.kind.as_str() {
                "offline" => return Ok(SystemClock.now()),
                "message" | "pong" => {}
                _ => bail!("a session that was taken over was told {frame}"),
            }
        }
        bail!("a session was disconnected without a word")
    }

    /// Sends `bye` and closes, as the protocol requires. Returns the moment when both sides have
    /// closed.
    pub(super) async fn leave(&mut self) -> Result<Moment> {
        let leaving = async {
            // The node may end the connection as soon as it has the `bye`, so an error is ignored.
            let _ = self.socket.feed(Message::text(r#"{"type":"bye"}"#)).await;
            let _ = self.socket.close(None).await;
            while let Ok(Some(_)) = self.next_frame().await {}
        };
        within_limit("close", leaving).await?;
        Ok(SystemClock.now())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.socket.get_ref().set_zero_linger();
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(code) = &self.code {
            write!(f, " {code}")?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

/// Fails if `doing` takes longer than [`STEP_LIMIT`].
pub(super) async fn within_limit<T>(what: &str, doing: impl Future<Output = T>) -> Result<T> {
    match tokio::time::timeout(STEP_LIMIT, doing).await {
        Ok(done) => Ok(done),
        Err(_) => bail!("{what}: not within {STEP_LIMIT:?}"),
    }
}
