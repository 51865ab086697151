//! Strangers cost the store nothing.

use std::time::Duration;

use distlock_core::Store;
use distlock_report::CountingStore;
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::net::{Net, login};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_ask_nothing_of_the_store() {
    let net = Net::new();
    // Scans are not counted: those are the sweeper's.
    let counting = CountingStore::new(&Store::new(net.memory.lock(), net.memory.records()));
    let n1 = net
        .node_over("n1", counting.store(), |config| {
            // Nothing of the node's own falls into the time of the test.
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
            // It may have been refused by now.
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
