//! Tests that an account moves between two of these servers, which share one store.

use std::{net::SocketAddr, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    /// Connects to a server, and waits until the server serves the session.
    async fn connect(to: SocketAddr, uid: &str, device: &str, class: &str) -> Self {
        let url = format!("ws://{to}/ws/{uid}/{device}/{class}");
        Self(within_a_minute(connect_async(&url)).await.unwrap().0)
    }

    async fn send_text(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// Waits for the next text from the server.
    async fn next_text(&mut self) -> String {
        loop {
            if let Message::Text(text) = within_a_minute(self.0.next()).await.unwrap().unwrap() {
                return text.to_string();
            }
        }
    }
}

/// Waits for a future, and fails after a minute.
async fn within_a_minute<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, future).await.expect("in time")
}

/// Starts a server in a task. Returns its address.
async fn start_server(name: &'static str, backend: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let backend = backend.to_owned();
    tokio::spawn(async move {
        let ended = super::serve(name, listener, &backend).await;
        panic!("{name} ended: {:?}", ended.err());
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_moves_from_one_server_to_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let backend = format!("sqlite:{}", folder.path().join("chat.db").display());
    let (n1, n2) = (
        start_server("n1", &backend).await,
        start_server("n2", &backend).await,
    );
    let mut otto = Client::connect(n2, "otto", "tower", "pc").await;
    let mut laptop = Client::connect(n1, "anna", "laptop", "pc").await;
    let mut phone = Client::connect(n1, "anna", "phone", "phone").await;
    otto.send_text("otto a note").await;
    assert_eq!(otto.next_text().await, "otto: a note");
    assert_eq!(otto.next_text().await, "written to device tower");

    let mut tablet = Client::connect(n2, "anna", "tablet", "pc").await;
    assert_eq!(
        laptop.next_text().await,
        "offline: another device logged in"
    );
    tablet.send_text("otto from my tablet").await;
    assert_eq!(otto.next_text().await, "anna: from my tablet");
    assert_eq!(tablet.next_text().await, "written to device tower");
    phone.send_text("otto from my phone").await;
    assert_eq!(otto.next_text().await, "anna: from my phone");
    assert_eq!(phone.next_text().await, "written to device tower");
    phone.send_text("berta hello").await;
    assert_eq!(
        phone.next_text().await,
        "not delivered: nobody is logged in"
    );
}
