//! The raw TCP front.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::net::{Net, Node, eventually, lingering, login, soon};

pub(crate) struct Framed(pub(crate) TcpStream);

impl Framed {
    pub(crate) async fn connect(node: &Node) -> Self {
        let address: SocketAddr = node.tcp_listen.unwrap();
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn send(&mut self, id: u16, frame: &Value) {
        let body = frame.to_string();
        let mut bytes = id.to_be_bytes().to_vec();
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body.as_bytes());
        // The two pieces stand for a network that splits the bytes.
        let (first, second) = bytes.split_at(3);
        self.0.write_all(first).await.unwrap();
        self.0.flush().await.unwrap();
        self.0.write_all(second).await.unwrap();
    }

    pub(crate) async fn frame(&mut self) -> Option<(u16, Value)> {
        soon("a frame", async {
            let id = self.0.read_u16().await.ok()?;
            let mut body = vec![0; self.0.read_u16().await.unwrap().into()];
            self.0.read_exact(&mut body).await.unwrap();
            Some((id, serde_json::from_slice(&body).unwrap()))
        })
        .await
    }
}

pub(crate) async fn node(net: &Net, name: &str) -> Node {
    net.node_with(name, |config| {
        config.set("tcp_listen", "127.0.0.1:0").unwrap();
        config.set("max_frame", "4096").unwrap();
    })
    .await
}

#[tokio::test]
async fn serves_the_same_account_as_the_websocket() {
    let net = Net::new();
    let (n1, n2) = (node(&net, "n1").await, node(&net, "n2").await);
    let mut phone = Framed::connect(&n1).await;
    phone.send(1, &login("anna", "phone")).await;
    let (id, ok) = phone.frame().await.unwrap();
    assert_eq!((id, &ok["type"]), (101, &json!("login_ok")));
    phone.send(3, &json!({"type": "ping"})).await;
    assert_eq!(phone.frame().await, Some((108, json!({"type": "pong"}))));

    let (_pc, _) = n2.login("anna", "pc").await;
    let (id, offline) = phone.frame().await.unwrap();
    assert_eq!(
        (id, &offline["code"], &offline["by_device"]),
        (105, &json!(1), &json!("pc"))
    );
    phone.send(4, &json!({"type": "bye"})).await;
    phone.0.shutdown().await.unwrap();
    assert_eq!(phone.frame().await, None);
    eventually("the phone's end", || async { n1.kick.sessions() == 0 }).await;
    assert_eq!(lingering(n1.tcp_listen.unwrap().port()), 0);
}

#[tokio::test]
async fn a_client_that_does_not_leave_is_reset() {
    let net = Net::new();
    let n1 = node(&net, "n1").await;
    let mut phone = Framed::connect(&n1).await;
    phone.send(1, &login("anna", "phone")).await;
    assert_eq!(phone.frame().await.unwrap().0, 101);
    let (_pc, _) = n1.login("anna", "pc").await;
    assert_eq!(phone.frame().await.unwrap().0, 105);
    assert_eq!(phone.frame().await, None, "nothing but the end");
    eventually("its end", || async { n1.kick.sessions() == 1 }).await;
    assert_eq!(lingering(n1.tcp_listen.unwrap().port()), 0);
}

#[tokio::test]
async fn wrong_frames_end_the_session() {
    let net = Net::new();
    let n1 = node(&net, "n1").await;
    for (bytes, error) in [
        // The length is over the limit, and the rest is never sent.
        (vec![0, 3, 0x20, 0], "too_long"),
        // The id belongs to another frame.
        (
            [&[0, 4, 0, 15][..], br#"{"type":"ping"}"#].concat(),
            "bad_frame",
        ),
        (vec![0, 3, 0, 2, 0xff, 0xfe], "bad_frame"),
        (vec![0, 3, 0, 0], "bad_frame"),
    ] {
        let mut client = Framed::connect(&n1).await;
        client.send(1, &login("anna", "phone")).await;
        assert_eq!(client.frame().await.unwrap().0, 101);
        client.0.write_all(&bytes).await.unwrap();
        let (id, answer) = client.frame().await.unwrap();
        assert_eq!((id, &answer["code"]), (109, &json!(error)));
        assert_eq!(client.frame().await, None);
        eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
    }
    // The proxy in front of the node names its client, and the node does not expect that.
    for header in [
        &b"PROXY TCP4 192.0.2.7"[..],
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11",
    ] {
        let mut proxy = Framed::connect(&n1).await;
        proxy.0.write_all(header).await.unwrap();
        let (_, answer) = proxy.frame().await.unwrap();
        assert_eq!(answer["code"], json!("bad_frame"), "{answer}");
        assert_eq!(proxy.frame().await, None);
    }
    // The frame is incomplete.
    let mut client = Framed::connect(&n1).await;
    client.send(1, &login("anna", "phone")).await;
    assert_eq!(client.frame().await.unwrap().0, 101);
    client.0.write_all(&[0, 3, 0, 15, b'{']).await.unwrap();
    drop(client);
    eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
}
