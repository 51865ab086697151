//! Floods: strangers cause no work for the store, and clients cannot fill a node's memory.

use std::{io, time::Duration};

use distlock_core::Store;
use distlock_report::CountingStore;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    net::{Net, eventually, lingering, login, soon},
    tcp::{self, Framed},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_ask_nothing_of_the_store() {
    let net = Net::new();
    // Scans are not counted, because only the sweeper makes scans.
    let counting = CountingStore::new(&Store::new(net.memory.lock(), net.memory.records()));
    let n1 = net
        .node_over("n1", counting.store(), |config| {
            // The node's own background work must not run during the test.
            config.node_lease = Duration::from_secs(3600);
            config.sweep = Duration::from_secs(3600);
        })
        .await;
    let before = counting.calls();
    for _ in 0..20 {
        let mut crowd = Vec::new();
        for _ in 0..5 {
            crowd.push(TcpStream::connect(n1.listen).await.unwrap());
        }
        for mut stranger in crowd {
            // The node may have refused the connection already.
            let _ = stranger.write_all(b"GET /ws HTTP/1.1\r\n").await;
        }
        drop(n1.connect().await);
        for bad in [
            Message::text("garbage"),
            Message::text(json!({"type": "login", "token": "x", "device": "phone"}).to_string()),
            Message::text(json!({"type": "send", "to": "otto", "body": 1, "id": "m"}).to_string()),
        ] {
            let mut client = n1.connect().await;
            client.send_raw(bad).await;
            client.rest().await;
        }
    }
    assert_eq!(counting.calls(), before);
    let mut client = n1.connect().await;
    client.send(&login("anna", "phone")).await;
    assert_eq!(client.frame().await["type"], "login_ok");
    assert!(counting.calls() > before);
}

/// A client's frame with this opcode and payload, masked with zeroes.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap();
    let mut frame = vec![0x80 | opcode];
    if length < 126 {
        frame.push(0x80 | length.to_be_bytes()[1]);
    } else {
        frame.push(0x80 | 126);
        frame.extend(length.to_be_bytes());
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_to_pings_do_not_pile_up() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.heartbeat = Duration::from_secs(600);
        })
        .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let stream = socket.connect(n1.listen).await.unwrap();
    let url = format!("ws://{}/ws", n1.listen);
    let (mut anna, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    let text = Message::text(login("anna", "phone").to_string());
    anna.send(text).await.unwrap();
    soon("login_ok", anna.next()).await.unwrap().unwrap();
    let mut anna = anna.into_inner();
    // These pings are far more bytes than a socket buffers.
    let pings = frame(9, &[b'p'; 125]).repeat(1000);
    for _ in 0..160 {
        let written = anna.write_all(&pings);
        soon("the pings to be read", written).await.unwrap();
    }
    // The node's write buffer for this connection is full of answers to pings. The answer to this
    // frame is longer than an answer to a ping, so this answer does not fit into the buffer.
    let send = json!({"type": "send", "to": "otto", "body": 1, "id": "x".repeat(128)});
    let last = frame(1, send.to_string().as_bytes());
    anna.write_all(&last).await.unwrap();
    eventually("its end", || async { n1.kick.sessions() == 0 }).await;
    // The client did not close, so the node sends a reset.
    let mut unread = Vec::new();
    let end = soon("the reset", anna.read_to_end(&mut unread)).await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let port = n1.listen.port();
    eventually("no socket lingers", || async { lingering(port) == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_never_stops_sending_is_disconnected() {
    let net = Net::new();
    let n1 = tcp::node(&net, "n1").await;
    let ping = br#"{"type":"ping"}"#;

    let mut framed = Framed::connect(&n1).await;
    framed.send(1, &login("anna", "phone")).await;
    assert_eq!(framed.frame().await.unwrap().0, 101);
    let (mut pc, _) = n1.login("anna", "pc").await;
    assert_eq!(framed.frame().await.unwrap().0, 105);
    let pings = [&[0, 3, 0, 15], &ping[..]].concat().repeat(10_000);
    soon("the end on TCP", async {
        while framed.0.write_all(&pings).await.is_ok() {}
    })
    .await;

    let (_tablet, _) = n1.login("anna", "tablet").await;
    assert_eq!(pc.frame().await["type"], "offline");
    let mut pc = pc.into_stream();
    let pings = [frame(1, ping), frame(9, ping)].concat().repeat(5000);
    soon("the end on the WebSocket", async {
        while pc.write_all(&pings).await.is_ok() {}
    })
    .await;
    eventually("their end", || async { n1.kick.sessions() == 1 }).await;
    for address in [n1.listen, n1.tcp_listen.unwrap()] {
        assert_eq!(lingering(address.port()), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_does_not_read_loses_its_permit() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.max_pending = 1;
            config.login_timeout = Duration::from_millis(500);
            config.lock_wait = Duration::from_secs(3600);
        })
        .await;
    let mut stranger = TcpStream::connect(n1.listen).await.unwrap();
    let (gone, _) = tokio::sync::watch::channel(false);
    let told = gone.clone();
    let flood = tokio::spawn(async move {
        let requests = b"GET /ws HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
        while stranger.write_all(&requests).await.is_ok() {}
        told.send_replace(true);
    });
    eventually("the stranger's end", || async { *gone.borrow() }).await;
    flood.await.unwrap();
    eventually("a login", || async {
        let url = format!("ws://{}/ws", n1.listen);
        let Ok((mut anna, _)) = tokio_tungstenite::connect_async(url).await else {
            return false;
        };
        let text = Message::text(login("anna", "phone").to_string());
        anna.send(text).await.is_ok() && matches!(anna.next().await, Some(Ok(Message::Text(_))))
    })
    .await;
}
