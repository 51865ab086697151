//! Nodes that cannot call each other: each cause is told, and no message is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use distlock_core::{Clock, Moment, Sleep, Store, SystemClock};
use distlock_gateway::GatewayConfig;
use distlock_harness::{LogCapture, Pki, free_port};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tracing::Level;

use crate::net::{ADMIN_TOKEN, Client, Net, Node, PATIENCE, eventually, http, pause, soon};

/// The lines in which a node says that it cannot call `node`.
fn lines_about(log: &LogCapture, node: &str) -> Vec<String> {
    let about = format!("node={node} ");
    let mut lines = log.lines();
    lines.retain(|it| it.contains(&about) && it.contains("this node cannot call another one"));
    lines
}

/// A wall clock that is wrong by a time.
#[derive(Clone, Debug, Default)]
struct WrongClock(Arc<AtomicU64>);

impl Clock for WrongClock {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> SystemTime {
        SystemClock.wall() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time)
    }
}

fn between_nodes(config: &mut GatewayConfig, pki: &Pki, auth: &str) {
    for (key, file) in [
        ("peer_tls_ca", "ca.crt"),
        ("peer_tls_cert", "node.crt"),
        ("peer_tls_key", "node.key"),
    ] {
        config.set(key, pki.path(file).to_str().unwrap()).unwrap();
    }
    config.set("peer_tls_auth", auth).unwrap();
}

async fn get(node: &Node, path: &str) -> String {
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    let (status, answer) = http(node.admin, &request).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Why `node` says that it cannot call the other node.
async fn reason(node: &Node, other: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(&get(node, "/v1/nodes").await).unwrap();
    let nodes = answer["nodes"].as_array().unwrap();
    let other = nodes.iter().find(|it| it["node"] == other)?;
    other["unreachable"].as_str().map(str::to_owned)
}

/// Waits until `node` says that it cannot call the other node, for a reason with these words.
async fn wait_for_reason(node: &Node, other: &str, words: &str) {
    let mut last = None;
    let until = SystemClock.now() + PATIENCE;
    while SystemClock.now() < until {
        last = reason(node, other).await;
        if last.as_ref().is_some_and(|why| why.contains(words)) {
            return;
        }
        pause(Duration::from_millis(20)).await;
    }
    panic!("\"{words}\" is not what it says: {last:?}");
}

/// Calls between nodes of this process that failed.
async fn failed_calls(node: &Node) -> u64 {
    let metrics = get(node, "/metrics").await;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("distlock_peer_calls_failed_total "));
    line.expect("the counter is there from the start")
        .parse()
        .unwrap()
}

async fn send(client: &mut Client, to: &str, id: &str) -> Value {
    client
        .send(&json!({"type": "send", "to": to, "body": id, "id": id}))
        .await;
    let sent = client.frame().await;
    assert_eq!((&sent["type"], &sent["id"]), (&json!("sent"), &json!(id)));
    sent["outcome"].clone()
}

/// Anna is online on `callee`, which `caller` cannot call for a reason with these words. The caller
/// says so in its log, its list of nodes, its page and its counter. A message to anna is stored. It
/// reaches her after `repair`, without another login.
async fn check_cause(
    log: &LogCapture,
    callee: &Node,
    caller: &Node,
    words: &str,
    repair: impl AsyncFnOnce(),
) {
    wait_for_reason(caller, "callee", words).await;
    let page = caller.kick.nodes().await.unwrap();
    assert!(
        page.iter()
            .any(|it| it.node.as_str() == "callee" && it.unreachable.is_some())
    );
    assert!(failed_calls(caller).await > 0, "{words}");
    let (mut anna, _) = callee.login("anna", "phone").await;
    let (mut otto, _) = caller.login("otto", "pc").await;
    for id in ["m1", "m2"] {
        assert_eq!(send(&mut otto, "anna", id).await, "stored", "{words}");
    }
    let lines = lines_about(log, "callee");
    assert_eq!(lines.len(), 1, "one line a minute: {lines:#?}");
    assert!(lines[0].contains(words), "{lines:#?}");
    log.clear();
    repair().await;
    for id in ["m1", "m2"] {
        let message = soon(&format!("{words}: {id}"), anna.frame()).await;
        assert_eq!(
            (&message["type"], &message["id"]),
            (&json!("message"), &json!(id))
        );
    }
    eventually("the list of nodes to be calm", || async {
        reason(caller, "callee").await.is_none()
    })
    .await;
    assert_eq!(send(&mut otto, "anna", "m3").await, "written", "{words}");
    assert_eq!(anna.frame().await["id"], "m3");
}

#[tokio::test]
async fn a_node_with_a_wrong_address_is_told_and_its_messages_come_later() {
    let (log, net) = (LogCapture::new(Level::WARN), Net::new());
    let _watched = log.watch();
    let (peer, advertised) = (free_port().unwrap(), free_port().unwrap());
    let callee = net.node_with("callee", |config| {
        let local = |port| format!("127.0.0.1:{port}");
        config.set("peer_listen", &local(peer)).unwrap();
        config.set("peer_advertise", &local(advertised)).unwrap();
    });
    let callee = callee.await;
    let caller = net.node("caller").await;
    let repair = async || {
        let listener = TcpListener::bind(("127.0.0.1", advertised)).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut to = TcpStream::connect(("127.0.0.1", peer)).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut from, &mut to).await });
            }
        });
    };
    let words = "nothing listens at its address";
    check_cause(&log, &callee, &caller, words, repair).await;
}

#[tokio::test]
async fn a_node_with_another_authority_name_or_date_is_told() {
    for (words, auth) in [
        ("not from an authority", "token"),
        ("certificate is not for 127.0.0.1", "token"),
        ("has expired", "token"),
        ("does not accept this node's certificate", "mutual"),
    ] {
        let (log, net) = (LogCapture::new(Level::WARN), Net::new());
        let _watched = log.watch();
        let (pki, other) = (Pki::new().unwrap(), Pki::new().unwrap());
        let good = std::fs::read(pki.path("node.crt")).unwrap();
        match words {
            "has expired" => pki.sign_expired("node").unwrap(),
            "certificate is not for 127.0.0.1" => pki.sign_for("node", "DNS:example.org").unwrap(),
            _ => {}
        }
        let callee = net.node_with("callee", |config| between_nodes(config, &pki, auth));
        let callee = callee.await;
        let strange = auth == "mutual" || words.contains("authority");
        let caller = net.node_with("caller", |config| {
            between_nodes(config, if strange { &other } else { &pki }, auth);
            if auth == "mutual" {
                let ca = pki.path("ca.crt");
                config.set("peer_tls_ca", ca.to_str().unwrap()).unwrap();
            }
        });
        let caller = caller.await;
        let repair = async || {
            std::fs::write(pki.path("node.crt"), &good).unwrap();
            if strange {
                for file in ["ca.crt", "node.crt", "node.key"] {
                    std::fs::copy(pki.path(file), other.path(file)).unwrap();
                }
            }
            callee.reload().await.unwrap();
            caller.reload().await.unwrap();
        };
        check_cause(&log, &callee, &caller, words, repair).await;
    }
}

/// A repair needs a restart, so anna gets the messages with her next login.
#[tokio::test]
async fn tls_on_one_side_alone_is_told_on_both_sides() {
    let (log, net, pki) = (
        LogCapture::new(Level::WARN),
        Net::new(),
        Pki::new().unwrap(),
    );
    let _watched = log.watch();
    let secure = net.node_with("secure", |config| between_nodes(config, &pki, "token"));
    let (secure, plain) = (secure.await, net.node("plain").await);
    for (caller, callee, words) in [
        (&secure, "plain", "it answers without TLS"),
        (&plain, "secure", "it expects TLS"),
    ] {
        wait_for_reason(caller, callee, words).await;
        let lines = lines_about(&log, callee);
        assert_eq!(lines.len(), 1, "one line a minute: {lines:#?}");
        assert!(lines[0].contains(words), "{lines:#?}");
    }
    let (_anna, _) = secure.login("anna", "phone").await;
    let (_bob, _) = plain.login("bob", "phone").await;
    let (mut otto, _) = plain.login("otto", "pc").await;
    let (mut carl, _) = secure.login("carl", "pc").await;
    assert_eq!(send(&mut otto, "anna", "m1").await, "stored");
    assert_eq!(send(&mut carl, "bob", "m2").await, "stored");
}

#[tokio::test]
async fn clocks_that_differ_are_told_and_messages_come_when_they_agree() {
    let (log, net) = (LogCapture::new(Level::WARN), Net::new());
    let _watched = log.watch();
    let callee = net.node("callee").await;
    let clock = WrongClock(Arc::new(AtomicU64::new(31)));
    let (lock, records) = (net.memory.lock(), net.memory.records());
    let store = Store::with_clock(lock, records, Arc::new(clock.clone()));
    let caller = net.node_over("caller", store, |_| {}).await;
    let repair = async || clock.0.store(0, Ordering::Relaxed);
    check_cause(&log, &callee, &caller, "compare the clocks", repair).await;
}
