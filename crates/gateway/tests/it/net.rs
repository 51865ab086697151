//! Nodes and clients for the tests.

use std::{future::Future, net::SocketAddr, time::Duration};

use distlock_core::Store;
use distlock_gateway::{Gateway, GatewayConfig, Reloader, TokenKey, Uid, mint};
use distlock_kickout::KickOut;
use distlock_memory::Memory;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{Message, protocol::CloseFrame},
};

/// Longest wait of a test. A run without a bug takes far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ADMIN_TOKEN: &str = "what administrators show";
pub(crate) const KEY: &str = "a key of at least thirty-two bytes";

pub(crate) struct Net {
    pub(crate) memory: Memory,
}

pub(crate) struct Node {
    pub(crate) listen: SocketAddr,
    pub(crate) tcp_listen: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
    pub(crate) kick: KickOut,
    reloader: Option<Reloader>,
    pub(crate) peer: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<distlock_core::Result<()>>,
}

/// A WebSocket client.
pub(crate) struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

/// An event on a client's connection.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    Frame(Value),
    Close(Option<CloseFrame>),
    End,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self {
            memory: Memory::default(),
        }
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        self.node_with(name, |_| {}).await
    }

    pub(crate) async fn node_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Node {
        // Each node has its own store, so each node has its own locker, like separate processes.
        let store = Store::new(self.memory.lock(), self.memory.records());
        self.node_over(name, store, change).await
    }

    pub(crate) async fn node_over(
        &self,
        name: &str,
        store: Store,
        change: impl FnOnce(&mut GatewayConfig),
    ) -> Node {
        let mut config = config(name);
        change(&mut config);
        Node::run(Gateway::start(config, store).await.unwrap())
    }
}

impl Node {
    /// Serves until the test ends.
    pub(crate) fn run(gateway: Gateway) -> Self {
        let ready = gateway.ready().clone();
        let kick = gateway.kick_out().clone();
        let reloader = gateway.reloader();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(gateway.run(async {
            // The end of a test drops the sender, and the drop ends this wait as well.
            let _ = stopped.await;
        }));
        Self {
            listen: ready.listen,
            tcp_listen: ready.tcp_listen,
            admin: ready.admin_listen,
            kick,
            reloader,
            peer: ready.peer_listen,
            stop: Some(stop),
            running,
        }
    }
}

pub(crate) fn config(name: &str) -> GatewayConfig {
    let mut config = GatewayConfig::default();
    for (key, value) in [
        ("node", name),
        ("listen", "127.0.0.1:0"),
        ("peer_listen", "127.0.0.1:0"),
        ("admin_listen", "127.0.0.1:0"),
        ("token_key", KEY),
        ("admin_token", ADMIN_TOKEN),
        ("lock_wait", "10s"),
        ("node_lease", "3s"),
        ("grace", "300ms"),
        ("sweep", "200ms"),
        ("heartbeat", "30s"),
    ] {
        config.set(key, value).unwrap();
    }
    config
}

impl Node {
    pub(crate) async fn reload(&self) -> distlock_core::Result<()> {
        self.reloader.as_ref().unwrap().reload().await
    }

    /// Shuts the node down, as a signal would.
    pub(crate) async fn shut_down(&mut self) {
        drop(self.stop.take());
        soon("the shutdown", &mut self.running)
            .await
            .unwrap()
            .unwrap();
    }

    /// Aborts the node's tasks at any point. The node's lease remains in the store.
    pub(crate) async fn kill(&mut self) {
        self.running.abort();
        let ended = soon("the end of its tasks", &mut self.running).await;
        assert!(ended.is_err_and(|error| error.is_cancelled()));
    }

    pub(crate) async fn connect(&self) -> Client {
        let url = format!("ws://{}/ws", self.listen);
        let (socket, _) = soon("the connection", tokio_tungstenite::connect_async(url))
            .await
            .unwrap();
        Client(socket)
    }

    /// Connects and logs in. Returns the client and its `login_ok`.
    pub(crate) async fn login(&self, uid: &str, device: &str) -> (Client, Value) {
        let mut client = self.connect().await;
        client.send(&login(uid, device)).await;
        let ok = client.frame().await;
        assert_eq!(ok["type"], "login_ok", "{ok}");
        (client, ok)
    }

    /// Sends an HTTP request to the admin listener, with the token. Returns status and body.
    pub(crate) async fn admin(&self, request: &str, body: &str) -> (u16, String) {
        self.admin_with(ADMIN_TOKEN, request, body).await
    }

    /// The same as [`admin`](Self::admin), with another token.
    pub(crate) async fn admin_with(&self, token: &str, request: &str, body: &str) -> (u16, String) {
        let text = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             connection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        http(self.admin, &text).await
    }
}

/// Sends an HTTP request unchanged and reads the answer to its end.
pub(crate) async fn http(to: SocketAddr, request: &str) -> (u16, String) {
    http_over(TcpStream::connect(to).await.unwrap(), request).await
}

/// The same as [`http`], over an open connection.
pub(crate) async fn http_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> (u16, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("the answer", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

impl Client {
    pub(crate) async fn send(&mut self, frame: &Value) {
        self.send_raw(Message::text(frame.to_string())).await;
    }

    pub(crate) async fn send_raw(&mut self, message: Message) {
        self.0.send(message).await.unwrap();
    }

    /// The byte stream below the WebSocket.
    pub(crate) fn into_stream(self) -> MaybeTlsStream<TcpStream> {
        self.0.into_inner()
    }

    /// Sends a text. Returns whether the connection accepted it.
    pub(crate) async fn try_send(&mut self, text: &str) -> bool {
        self.0.send(Message::text(text)).await.is_ok()
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> ClientEvent {
        loop {
            match soon("something from the server", self.0.next()).await {
                Some(Ok(Message::Text(text))) => {
                    return ClientEvent::Frame(serde_json::from_str(&text).unwrap());
                }
                Some(Ok(Message::Close(frame))) => return ClientEvent::Close(frame),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return ClientEvent::End,
            }
        }
    }

    /// The next frame. The test fails if the connection closes instead.
    pub(crate) async fn frame(&mut self) -> Value {
        match self.next().await {
            ClientEvent::Frame(frame) => frame,
            other => panic!("{other:?} instead of a frame"),
        }
    }

    /// Reads until the end of the connection. Returns the frames, and the close code if there was
    /// one.
    pub(crate) async fn rest(&mut self) -> (Vec<Value>, Option<u16>) {
        let mut frames = Vec::new();
        let mut code = None;
        loop {
            match self.next().await {
                ClientEvent::Frame(frame) => frames.push(frame),
                ClientEvent::Close(frame) => code = frame.map(|frame| u16::from(frame.code)),
                ClientEvent::End => return (frames, code),
            }
        }
    }

    /// The code and the reason of the closing frame, if it comes next.
    pub(crate) async fn close_frame(&mut self) -> Option<(u16, String)> {
        match self.next().await {
            ClientEvent::Close(frame) => {
                frame.map(|frame| (u16::from(frame.code), frame.reason.to_string()))
            }
            _ => None,
        }
    }

    /// Waits for `offline`, and leaves.
    pub(crate) async fn leave_when_told(mut self) {
        while self.frame().await["type"] != "offline" {}
        self.leave().await;
    }

    /// Closes the connection, like a cooperative client after `offline`.
    pub(crate) async fn leave(mut self) {
        // The server may have ended the connection already.
        let _ = self
            .0
            .send(Message::text(json!({"type": "bye"}).to_string()))
            .await;
        let _ = self.0.close(None).await;
        self.rest().await;
    }
}

pub(crate) fn token(uid: &str) -> String {
    token_of(KEY, uid)
}

pub(crate) fn token_of(key: &str, uid: &str) -> String {
    let key = TokenKey::new(key.as_bytes()).unwrap();
    mint(&key, &Uid::new(uid).unwrap(), Duration::from_secs(60)).unwrap()
}

pub(crate) fn login(uid: &str, device: &str) -> Value {
    login_with(&token(uid), device)
}

pub(crate) fn login_with(token: &str, device: &str) -> Value {
    json!({"type": "login", "token": token, "device": device, "class": "", "intent": "login"})
}

/// The output of a future. If the future takes too long, the test fails and names `what`.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come within {PATIENCE:?}"))
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F, C>(what: &str, mut condition: C)
where
    C: FnMut() -> F,
    F: Future<Output = bool>,
{
    soon(what, async {
        while !condition().await {
            pause(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets run on the machine's clock, so the test waits on it"
)]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Number of closed connections of this machine that keep `port` in use on their own side, because
/// that side closed first. Such a connection is in TIME_WAIT, or will be as soon as the other side
/// closes.
#[cfg(target_os = "linux")]
pub(crate) fn lingering(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            local.ends_with(&port) && ["04", "05", "06"].contains(&state)
        })
        .count()
}
