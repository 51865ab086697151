//! One connection of a device. The client records its own steps and all received frames.
//!
//! Measures by how much a busy machine delays its processes.
//!
//! The documented slack applies to a machine with idle time. This meter measures the extra delay of
//! a busy machine, apart from the tested nodes, and the run adds that delay to the slack.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock_checker::{Fact, Seen, What};
use distlock_core::sync::Mutex;
use distlock_kickout::{Code, Generation, SessionId, Uid};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

use crate::chaos::history::{Micros, now};

/// Time-out for a node to open or close a connection; the node may be stopped or dead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The steps and frames of all clients, and the facts of the nemesis.
#[derive(Debug, Default)]
pub(super) struct Observations {
    seen: Mutex<Vec<Seen>>,
    facts: Mutex<Vec<Fact>>,
}

impl Observations {
    /// Records a step or frame of a client at the present time. `stamp` identifies the client.
    fn record_seen(&self, stamp: &Seen, what: What) {
        let mut seen = self.seen.lock();
        seen.push(Seen {
            at_us: now(),
            what,
            ..stamp.clone()
        });
    }

    /// Records a fact about a fault or a lookup.
    pub(super) fn record_fact(&self, fact: Fact) {
        let mut facts = self.facts.lock();
        facts.push(fact);
    }

    /// Returns the steps and frames of all clients until now.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let seen = self.seen.lock();
        seen.clone()
    }

    /// Returns the facts until now.
    pub(super) fn facts(&self) -> Vec<Fact> {
        let facts = self.facts.lock();
        facts.clone()
    }
}

/// The state of a client's login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientState {
    /// The node has not answered yet.
    Waiting,
    LoggedIn(SessionId, Generation),
    /// The node refused the login or ended the session, or the connection broke.
    LoggedOut,
}

/// A command of a device to the task that serves its connection.
#[derive(Debug)]
enum ClientCommand {
    Send { to: Uid, id: String },
    Leave,
}

/// A connected device. Dropping the value breaks the connection without a logout, like a device
/// that loses its power.
#[derive(Debug)]
pub(super) struct Client {
    state: watch::Receiver<ClientState>,
    commands: mpsc::UnboundedSender<ClientCommand>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Client {
    /// Connects to a node and asks for a login.
    ///
    /// # Errors
    /// Returns an error if the node cannot be reached; no login was sent then.
    pub(super) async fn connect(
        node: SocketAddr,
        token: &str,
        stamp: Seen,
        observations: Arc<Observations>,
    ) -> Result<Self> {
        let connecting = connect_async(format!("ws://{node}/ws"));
        let (mut socket, _) = timeout(CONNECT_TIMEOUT, connecting)
            .await
            .context("no answer")??;
        observations.record_seen(&stamp, What::LoginSent);
        let login = json!({
            "type": "login", "token": token, "device": stamp.device, "class": "",
            "intent": "login", "acks": true,
        });
        // If this send fails, the reader sees the end of the connection.
        let _ = socket.send(Message::text(login.to_string())).await;
        let (state_sender, state) = watch::channel(ClientState::Waiting);
        let (commands, asked) = mpsc::unbounded_channel();
        let connection = ClientConnection {
            socket,
            stamp,
            observations,
            state_sender,
        };
        tokio::spawn(connection.serve(asked));
        Ok(Self { state, commands })
    }

    /// Returns the present state of the login.
    pub(super) fn state(&self) -> ClientState {
        self.state.borrow().clone()
    }

    /// Waits for the answer to the login, or for the end of the connection.
    pub(super) async fn wait_for_answer(&mut self) -> ClientState {
        let answer = self.state.wait_for(|it| *it != ClientState::Waiting).await;
        answer.map_or(ClientState::LoggedOut, |it| it.clone())
    }

    /// Waits until the client is logged out.
    pub(super) async fn wait_until_logged_out(&mut self) {
        // The sender is dropped only when the task of the client ends. The client is logged out
        // then as well.
        let _ = self
            .state
            .wait_for(|it| *it == ClientState::LoggedOut)
            .await;
    }

    /// Sends a message to an account, if the connection is still open.
    pub(super) fn send(&self, to: &Uid, id: String) {
        let to = to.clone();
        let _ = self.commands.send(ClientCommand::Send { to, id });
    }

    /// Logs out, and waits until the connection is closed.
    pub(super) async fn log_out(mut self) {
        let _ = self.commands.send(ClientCommand::Leave);
        let _ = timeout(CONNECT_TIMEOUT, self.wait_until_logged_out()).await;
    }
}

/// The state of a connection in the task that serves the connection.
struct ClientConnection {
    socket: Socket,
    stamp: Seen,
    observations: Arc<Observations>,
    state_sender: watch::Sender<ClientState>,
}

impl ClientConnection {
    /// Carries out commands and records frames until the connection has ended.
    async fn serve(mut self, mut asked: mpsc::UnboundedReceiver<ClientCommand>) {
        loop {
            tokio::select! {
                command = asked.recv() => match command {
                    Some(ClientCommand::Send { to, id }) => self.send(to, id).await,
                    Some(ClientCommand::Leave) => {
                        self.record_seen(What::Leaves);
                        self.send_frame(&json!({"type": "logout"})).await;
                        break self.close().await;
                    }
                    None => {
                        self.record_seen(What::Leaves);
                        break;
                    }
                },
                frame = next_frame(&mut self.socket) => match frame {
                    None => {
                        self.record_seen(What::Closed);
                        break;
                    }
                    Some(frame) => if self.handle_frame(&frame).await {
                        break;
                    },
                },
            }
        }
        self.state_sender.send_replace(ClientState::LoggedOut);
    }

    /// Records a step or frame of this client.
    fn record_seen(&self, what: What) {
        self.observations.record_seen(&self.stamp, what);
    }

    /// Sends one frame.
    async fn send_frame(&mut self, frame: &Value) {
        // If this send fails, the reader sees the end of the connection.
        let _ = self.socket.send(Message::text(frame.to_string())).await;
    }

    /// Closes the connection, and waits a limited time for the node to close its side.
    async fn close(&mut self) {
        let _ = timeout(CONNECT_TIMEOUT, self.socket.close(None)).await;
    }

    /// Records a message and sends it.
    async fn send(&mut self, to: Uid, id: String) {
        let frame = json!({"type": "send", "to": to, "body": id, "id": id});
        self.record_seen(What::Sent { id, to: Some(to) });
        self.send_frame(&frame).await;
    }

    /// Records a frame. Returns whether the connection has ended.
    async fn handle_frame(&mut self, frame: &Value) -> bool {
        let id = || frame["id"].as_str().unwrap_or_default().to_owned();
        let code = || serde_json::from_value(frame["code"].clone()).unwrap_or(Code::Denied);
        let session = || serde_json::from_value::<SessionId>(frame["session"].clone());
        match frame["type"].as_str().unwrap_or_default() {
            "login_ok" => {
                let Ok(session) = session() else { return true };
                let r#gen = Generation::new(frame["gen"].as_u64().unwrap_or_default());
                self.record_seen(What::LoginOk { session, r#gen });
                self.state_sender
                    .send_replace(ClientState::LoggedIn(session, r#gen));
            }
            "offline" => {
                self.record_seen(What::Told { code: code() });
                self.state_sender.send_replace(ClientState::LoggedOut);
                self.record_seen(What::Leaves);
                self.send_frame(&json!({"type": "bye"})).await;
                self.close().await;
                return true;
            }
            "message" => {
                self.record_seen(What::Message { id: id() });
                if let Some(seq) = frame["seq"].as_u64() {
                    self.record_seen(What::Acked { id: id() });
                    self.send_frame(&json!({"type": "ack", "seq": seq})).await;
                }
            }
            "sent" => self.record_seen(What::Outcome {
                id: id(),
                outcome: frame["outcome"].as_str().unwrap_or_default().to_owned(),
                devices: serde_json::from_value(frame["devices"].clone()).unwrap_or_default(),
            }),
            "busy" => return self.record_refusal_and_close(What::Busy).await,
            "denied" => {
                return self
                    .record_refusal_and_close(What::Denied { code: code() })
                    .await;
            }
            "superseded" => return self.record_refusal_and_close(What::Overtaken).await,
            "error" if frame["code"] == "superseded" => self.record_seen(What::Refused),
            "error" if frame["id"].is_string() => self.record_seen(What::Outcome {
                id: id(),
                outcome: frame["code"].as_str().unwrap_or_default().to_owned(),
                devices: None,
            }),
            "error" if frame["code"] == "unavailable" => {
                return self.record_refusal_and_close(What::Busy).await;
            }
            _ => {}
        }
        false
    }

    /// Records the refusal of a login and closes the connection.
    async fn record_refusal_and_close(&mut self, what: What) -> bool {
        self.record_seen(what);
        self.record_seen(What::Leaves);
        self.close().await;
        true
    }
}

/// Returns the next frame, or `None` after the node has closed the connection. Cancel safe.
async fn next_frame(socket: &mut Socket) -> Option<Value> {
    loop {
        match socket.next().await? {
            Ok(Message::Text(text)) => return serde_json::from_str(&text).ok(),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Number of wake-ups in one measurement: about as many as one login needs in all processes, with
/// its calls to a store and to another node.
const WAKE_UPS: usize = 64;
/// Pause between two measurements.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures until the value is dropped.
#[derive(Debug)]
pub(super) struct DelayMeter {
    worst: Arc<Mutex<Micros>>,
    over: Arc<AtomicBool>,
}

impl DelayMeter {
    /// Starts two threads that wake each other up, and measures the time of each wake-up.
    pub(super) fn start() -> Self {
        let meter = Self {
            worst: Arc::default(),
            over: Arc::default(),
        };
        let (worst, over) = (Arc::clone(&meter.worst), Arc::clone(&meter.over));
        let (ask, asked) = std::sync::mpsc::sync_channel::<()>(0);
        let (answer, answers) = std::sync::mpsc::sync_channel::<()>(0);
        thread::spawn(move || while asked.recv().is_ok() && answer.send(()).is_ok() {});
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let from = now();
                for _ in 0..WAKE_UPS / 2 {
                    if ask.send(()).is_err() || answers.recv().is_err() {
                        return;
                    }
                }
                let took = now() - from;
                let mut worst = worst.lock();
                *worst = took.max(*worst);
                drop(worst);
                thread::park_timeout(PAUSE);
            }
        });
        meter
    }

    /// Returns the longest delay of this machine so far.
    pub(super) fn longest_delay(&self) -> Duration {
        let worst = self.worst.lock();
        Duration::from_micros(*worst)
    }
}

impl Drop for DelayMeter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
