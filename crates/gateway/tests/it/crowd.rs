//! Many strangers connect. Each stranger keeps its connection, and other clients still find room.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::net::{ADMIN_TOKEN, Net, Node, eventually, http, http_over, soon};

async fn from(source: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let source: IpAddr = source.parse().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Whether the node ends the connection. If the node does not end it, the test fails at its
/// time-out.
async fn is_ended(stream: &mut TcpStream) -> bool {
    matches!(soon("its end", stream.read(&mut [0])).await, Ok(0) | Err(_))
}

async fn crowded(net: &Net, proxy: &str) -> Node {
    let node = net.node_with("n1", |config| {
        config.set("max_pending_per_address", "8").unwrap();
        config.set("tcp_listen", "127.0.0.1:0").unwrap();
        config.set("login_timeout", "1h").unwrap();
        config.set("client_address", proxy).unwrap();
    });
    node.await
}

#[tokio::test]
async fn hanging_strangers_of_one_address_leave_room_for_others() {
    let net = Net::new();
    let n1 = crowded(&net, "connection").await;
    let mut strangers = Vec::new();
    for _ in 0..8 {
        strangers.push(from("127.0.0.2", n1.tcp_listen.unwrap()).await);
    }
    for to in [n1.listen, n1.tcp_listen.unwrap()] {
        assert!(is_ended(&mut from("127.0.0.2", to).await).await);
    }
    // Clients of other addresses can log in, even more clients than may wait for a login, because a
    // client that has logged in no longer counts.
    let mut clients = Vec::new();
    for account in 0..9 {
        clients.push(n1.login(&format!("u{account}"), "phone").await);
    }
    // A stranger that leaves makes room for the next stranger of its address.
    drop(strangers.pop());
    eventually("a place", || async {
        let mut next = from("127.0.0.2", n1.listen).await;
        let ask = "GET /healthz HTTP/1.1\r\nhost: n1\r\n\r\n";
        next.write_all(ask.as_bytes()).await.is_ok()
            && matches!(next.read(&mut [0; 64]).await, Ok(read) if read > 0)
    })
    .await;
}

/// The strangers that the listeners for nodes and administrators allow one address.
const GUARDED_STRANGERS: usize = 64;
/// The node closes a silent stranger after 10 s. Others must find room long before that.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Connects one stranger more than the listener allows, in waves, and runs `asks` after each wave.
async fn in_waves_of_silent_strangers(to: SocketAddr, mut asks: impl AsyncFnMut()) {
    for wave in 0..3 {
        let mut strangers = Vec::new();
        for _ in 0..=GUARDED_STRANGERS {
            strangers.push(from("127.0.0.1", to).await);
        }
        // The first stranger is the oldest one, so it has given up its place.
        let oldest = &mut strangers[0];
        let _reset = soon("its end", oldest.read_to_end(&mut Vec::new())).await;
        let asked = tokio::time::timeout(AT_ONCE, asks()).await;
        assert!(asked.is_ok(), "nothing within {AT_ONCE:?} in wave {wave}");
        // Each newcomer took the place of one stranger. The others are still there.
        let mut newest = strangers.pop().unwrap();
        let mut rest = Vec::new();
        let ended = newest.read_to_end(&mut rest);
        let ended = tokio::time::timeout(Duration::from_millis(100), ended).await;
        assert!(ended.is_err(), "the newest one stays");
    }
}

#[tokio::test]
async fn silent_strangers_of_one_address_keep_no_administrator_out() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    in_waves_of_silent_strangers(n1.admin, async || {
        for ask in ["GET /metrics", "GET /v1/nodes", "GET /healthz", "GET /"] {
            assert_eq!(n1.admin(ask, "").await.0, 200, "{ask}");
        }
        let (status, _) = n1.admin("POST /v1/kick", r#"{"uid":"anna"}"#).await;
        assert_eq!(status, 200);
    })
    .await;
}

#[tokio::test]
async fn silent_strangers_of_one_address_keep_no_node_out() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let mut sessions = Vec::new();
    in_waves_of_silent_strangers(n1.peer, async || {
        sessions.push(n1.login("anna", "phone").await);
        let (client, ok) = n2.login("anna", "pc").await;
        assert_eq!(ok["old_confirmed"], "node", "n1 was asked: {ok}");
        sessions.push((client, ok));
    })
    .await;
}

/// A caller with the right token keeps its connection, also among many strangers.
#[tokio::test]
async fn strangers_never_take_the_place_of_a_caller_with_a_token() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let ask = format!(
        "GET /v1/nodes HTTP/1.1\r\nhost: n1\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    let mut scraper = from("127.0.0.1", n1.admin).await;
    let mut scrape = async || {
        scraper.write_all(ask.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let read = soon("an answer", scraper.read(&mut answer)).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    };
    scrape().await;
    in_waves_of_silent_strangers(n1.admin, scrape).await;
}

/// The header that a proxy sends before the client's bytes.
fn proxied(source: &str) -> String {
    format!("PROXY TCP4 {source} 127.0.0.1 40000 7430\r\n")
}

#[tokio::test]
async fn behind_a_proxy_each_client_has_its_own_address() {
    let net = Net::new();
    let n1 = crowded(&net, "proxy_protocol").await;
    let connect = async |source: &str, to: SocketAddr| {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(proxied(source).as_bytes()).await.unwrap();
        stream
    };
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut stranger = connect("192.0.2.1", n1.tcp_listen.unwrap()).await;
        // The answer to a ping shows that this connection has its permit.
        stranger
            .write_all(b"\0\x03\0\x0f{\"type\":\"ping\"}")
            .await
            .unwrap();
        soon("a pong", stranger.read(&mut [0; 64])).await.unwrap();
        strangers.push(stranger);
    }
    let ask = "GET /healthz HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\r\n";
    let mut refused = connect("192.0.2.1", n1.listen).await;
    let _ = refused.write_all(ask.as_bytes()).await;
    assert!(is_ended(&mut refused).await);
    let other = connect("192.0.2.2", n1.listen).await;
    assert_eq!(http_over(other, ask).await.0, 200);
    // A connection without the header is refused.
    let mut plain = TcpStream::connect(n1.listen).await.unwrap();
    let _ = plain.write_all(ask.as_bytes()).await;
    assert!(is_ended(&mut plain).await);
}

#[tokio::test]
async fn a_web_proxy_names_the_client_of_its_request() {
    let net = Net::new();
    let n1 = crowded(&net, "forwarded_for").await;
    let upgrade = |source: &str| {
        format!(
            "GET /ws HTTP/1.1\r\nhost: n1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             x-forwarded-for: 203.0.113.9, {source}\r\n\r\n"
        )
    };
    let status = async |source: &str| {
        // All requests come from the address of the proxy, which takes no permits of its own.
        let mut stream = TcpStream::connect(n1.listen).await.unwrap();
        stream.write_all(upgrade(source).as_bytes()).await.unwrap();
        let mut head = [0; 12];
        soon("an answer", stream.read_exact(&mut head))
            .await
            .unwrap();
        (String::from_utf8_lossy(&head[9..]).into_owned(), stream)
    };
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let (status, stream) = status("192.0.2.1").await;
        assert_eq!(status, "101");
        strangers.push(stream);
    }
    assert_eq!(status("192.0.2.1").await.0, "429");
    assert_eq!(status("192.0.2.2").await.0, "101");
}

#[tokio::test]
async fn heads_and_bodies_of_strangers_are_short() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    for to in [n1.listen, n1.admin] {
        let long = "x".repeat(20_000);
        let ask = format!("GET /healthz HTTP/1.1\r\nhost: n1\r\nx-long: {long}\r\n\r\n");
        assert_eq!(http(to, &ask).await.0, 431);
    }
}
