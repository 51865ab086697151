//! Two of these servers over one store, and an account that moves between them.

use std::{net::SocketAddr, time::Duration};

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    /// Connects, also to a server that is still starting.
    async fn connect(to: SocketAddr, uid: &str, device: &str, class: &str) -> Self {
        let url = format!("ws://{to}/ws/{uid}/{device}/{class}");
        Self(soon(connect_async(&url)).await.unwrap().0)
    }

    async fn say(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn hears(&mut self) -> String {
        loop {
            if let Message::Text(text) = soon(self.0.next()).await.unwrap().unwrap() {
                return text.to_string();
            }
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, future).await.expect("in time")
}

async fn server(name: &'static str, backend: &str) -> SocketAddr {
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
    let (n1, n2) = (server("n1", &backend).await, server("n2", &backend).await);
    let mut otto = Client::connect(n2, "otto", "tower", "pc").await;
    let mut laptop = Client::connect(n1, "anna", "laptop", "pc").await;
    let mut phone = Client::connect(n1, "anna", "phone", "phone").await;
    otto.say("otto a note").await;
    assert_eq!(otto.hears().await, "otto: a note");
    assert_eq!(otto.hears().await, "written to device tower");

    let mut tablet = Client::connect(n2, "anna", "tablet", "pc").await;
    assert_eq!(laptop.hears().await, "offline: another device logged in");
    tablet.say("otto from my tablet").await;
    assert_eq!(otto.hears().await, "anna: from my tablet");
    assert_eq!(tablet.hears().await, "written to device tower");
    phone.say("otto from my phone").await;
    assert_eq!(otto.hears().await, "anna: from my phone");
    assert_eq!(phone.hears().await, "written to device tower");
    phone.say("berta hello").await;
    assert_eq!(phone.hears().await, "not delivered: nobody is logged in");
}
