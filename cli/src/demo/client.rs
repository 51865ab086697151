//! A device: a real WebSocket client that follows the protocol.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use distlock::{Clock as _, SystemClock};
use futures_util::{SinkExt as _, StreamExt as _, stream::SplitSink};
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, tungstenite::Message};

use super::timeline::{Entry, Timeline};
use crate::processes::Node;

/// The longest time for a round trip and a few operations of the store.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(10);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A connected device.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) device: String,
    pub(super) node: String,
    sink: SplitSink<Socket, Message>,
    seen: mpsc::UnboundedReceiver<SocketEvent>,
    timeline: Arc<Timeline>,
    /// The session, once a login is confirmed.
    pub(super) session: Option<Session>,
    /// Whether the device says at the end of its session when it has saved.
    pub(super) saves: bool,
    /// Whether this side sent its close frame before that of the node arrived.
    closed_first: bool,
}

/// The session that a confirmed login gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) id: Value,
    pub(super) generation: u64,
    /// The `old_confirmed` of its `login_ok`.
    pub(super) old_confirmed: Value,
}

/// An event of the socket.
#[derive(Debug)]
enum SocketEvent {
    Frame(Value),
    /// The node sent its close frame.
    Closing,
    /// The connection has ended.
    Gone,
}

/// The end of a client's session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The node sent this notice.
    Told(Value),
    /// The connection ended without a notice.
    Dropped,
}

impl Client {
    /// Connects, without logging in.
    pub(super) async fn connect(
        device: &str,
        node: &Node,
        timeline: &Arc<Timeline>,
    ) -> Result<Self> {
        let url = format!("ws://{}/ws", node.listen);
        let (socket, _) = within_limit("connect", tokio_tungstenite::connect_async(&url))
            .await?
            .with_context(|| format!("connect {device} to {}", node.name))?;
        let (sink, mut stream) = socket.split();
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let seen = match stream.next().await {
                    Some(Ok(Message::Text(text))) => match serde_json::from_str(text.as_str()) {
                        Ok(frame) => SocketEvent::Frame(frame),
                        Err(_) => SocketEvent::Gone,
                    },
                    Some(Ok(Message::Close(_))) => SocketEvent::Closing,
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => SocketEvent::Gone,
                };
                let over = matches!(seen, SocketEvent::Gone);
                if tell.send(seen).is_err() || over {
                    return;
                }
            }
        });
        Ok(Self {
            device: device.to_owned(),
            node: node.name.clone(),
            sink,
            seen,
            timeline: Arc::clone(timeline),
            session: None,
            saves: false,
            closed_first: false,
        })
    }

    /// Connects and logs in, and fails unless the login is confirmed.
    pub(super) async fn connect_and_log_in(
        device: &str,
        node: &Node,
        token: &str,
        timeline: &Arc<Timeline>,
    ) -> Result<Self> {
        let mut client = Self::connect(device, node, timeline).await?;
        client.send_login(token).await?;
        client.wait_until_in().await?;
        Ok(client)
    }

    /// Waits until the login is confirmed, unless it already is.
    pub(super) async fn wait_until_in(&mut self) -> Result<()> {
        if self.session.is_none() {
            let answer = self.wait_for_frame("login_ok").await?;
            self.note_admission(&answer)?;
        }
        Ok(())
    }

    /// Sends the login without waiting for the answer.
    pub(super) async fn send_login(&mut self, token: &str) -> Result<()> {
        self.log(None, &format!("logs in on {}", self.node));
        self.send(&json!({
            "type": "login",
            "token": token,
            "device": self.device,
            "class": "demo",
            "intent": "login",
            "saves": self.saves,
        }))
        .await
    }

    /// Sends a frame.
    pub(super) async fn send(&mut self, frame: &Value) -> Result<()> {
        let sending = self.sink.send(Message::text(frame.to_string()));
        within_limit("send", sending)
            .await?
            .with_context(|| format!("{} sends {}", self.device, frame["type"]))
    }

    /// Waits for a frame of the type `wanted`, and notes an admission on the way. Fails if the
    /// session ends first.
    pub(super) async fn wait_for_frame(&mut self, wanted: &str) -> Result<Value> {
        loop {
            match self.next_event().await? {
                SocketEvent::Frame(frame) if frame["type"] == wanted => return Ok(frame),
                SocketEvent::Frame(frame) if frame["type"] == "login_ok" => {
                    self.note_admission(&frame)?;
                }
                SocketEvent::Frame(frame) if is_end(&frame) => {
                    bail!("{} waits for {wanted} and gets {frame}", self.device)
                }
                SocketEvent::Frame(frame) => {
                    tracing::debug!(%frame, device = self.device, "passed over");
                }
                SocketEvent::Closing | SocketEvent::Gone => {
                    bail!("{} waits for {wanted} and is disconnected", self.device)
                }
            }
        }
    }

    /// Follows the session until it ends. After a notice the device sends `bye` and closes, as the
    /// protocol requires. The future does not resolve while the session lives.
    ///
    /// Cancel safe until the notice arrives.
    pub(super) async fn follow_to_end(&mut self) -> Result<Ending> {
        loop {
            match self.seen.recv().await {
                Some(SocketEvent::Frame(frame)) if frame["type"] == "login_ok" => {
                    self.note_admission(&frame)?;
                }
                Some(SocketEvent::Frame(frame)) if is_end(&frame) => {
                    self.leave(&frame).await?;
                    return Ok(Ending::Told(frame));
                }
                Some(SocketEvent::Frame(_)) => {}
                Some(SocketEvent::Closing | SocketEvent::Gone) | None => {
                    self.log(self.generation(), "is disconnected without a word");
                    return Ok(Ending::Dropped);
                }
            }
        }
    }

    /// Saves after the notice, says so, and leaves.
    pub(super) async fn save_and_leave(&mut self, notice: &Value) -> Result<()> {
        self.log(self.generation(), "saves the game, and says so");
        self.send(&json!({"type": "saved"})).await?;
        self.leave(notice).await
    }

    /// Sends `bye` after an offline notice, and closes first unless the node has closed already.
    async fn leave(&mut self, notice: &Value) -> Result<()> {
        let by = notice["by_device"].as_str().unwrap_or("?");
        self.log(
            self.generation(),
            &match notice["type"].as_str() {
                Some("offline") => {
                    format!("got the notice: offline, code {}, by {by}", notice["code"])
                }
                Some("superseded") => {
                    format!("got its notice before it was logged in: {by} is newer")
                }
                other => format!("got the notice: {}", other.unwrap_or("?")),
            },
        );
        // The node must send nothing after the notice until this side closes. So a close frame that
        // has already arrived was sent too early.
        while let Ok(seen) = self.seen.try_recv() {
            if matches!(seen, SocketEvent::Closing | SocketEvent::Gone) {
                self.log(self.generation(), "was closed by the node");
                return Ok(());
            }
        }
        if notice["type"] == "offline" {
            self.send(&json!({"type": "bye"})).await?;
        }
        // The node may end the connection as soon as it has the `bye`, so an error is ignored.
        let _ = within_limit("close", self.sink.close()).await?;
        self.closed_first = true;
        self.log(self.generation(), "says bye and closes first");
        Ok(())
    }

    /// Whether this side closed the connection before the node did.
    pub(super) const fn closed_first(&self) -> bool {
        self.closed_first
    }

    /// Waits until the connection has ended.
    pub(super) async fn wait_until_gone(&mut self) -> Result<()> {
        while !matches!(self.next_event().await?, SocketEvent::Gone) {}
        Ok(())
    }

    /// Checks that the session is served: sends a ping and waits for the pong.
    pub(super) async fn check_served(&mut self) -> Result<()> {
        self.send(&json!({"type": "ping"})).await?;
        self.wait_for_frame("pong").await.map(drop)
    }

    /// The generation of the confirmed login, if there is one.
    pub(super) fn generation(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.generation)
    }

    /// Checks the confirmation of a login, and stores its session.
    fn note_admission(&mut self, answer: &Value) -> Result<()> {
        let session = Session {
            id: answer["session"].clone(),
            generation: answer["gen"]
                .as_u64()
                .with_context(|| format!("login_ok without a generation: {answer}"))?,
            old_confirmed: answer["old_confirmed"].clone(),
        };
        if answer["node"] != self.node.as_str() || session.id.is_null() {
            bail!("{} on {} is answered {answer}", self.device, self.node);
        }
        self.session = Some(session);
        self.log(self.generation(), "is in");
        Ok(())
    }

    /// The next event, which must come within the limit.
    async fn next_event(&mut self) -> Result<SocketEvent> {
        Ok(within_limit("wait for the node", self.seen.recv())
            .await?
            .unwrap_or(SocketEvent::Gone))
    }

    /// Prints an event of this device to the timeline.
    fn log(&self, generation: Option<u64>, what: &str) {
        let at = Entry {
            node: &self.node,
            generation,
            token: None,
        };
        self.timeline.print_client_event(&self.device, at, what);
    }
}

/// Whether a frame says that the login was refused or that the session has ended.
fn is_end(frame: &Value) -> bool {
    let kind = frame["type"].as_str().unwrap_or_default();
    ["offline", "superseded", "busy", "denied", "error"].contains(&kind)
}

/// Fails if `doing` takes longer than [`STEP_LIMIT`].
pub(super) async fn within_limit<T>(what: &str, doing: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = doing => Ok(done),
        () = SystemClock.sleep(STEP_LIMIT) => bail!("{what}: not within {STEP_LIMIT:?}"),
    }
}
