//! Messages between accounts.

use serde_json::{Value, json};

use distlock_gateway::Uid;

use crate::net::{Client, Net, Node, eventually};

async fn send(client: &mut Client, to: &str, body: Value, id: &str) -> Value {
    client
        .send(&json!({"type": "send", "to": to, "body": body, "id": id}))
        .await;
    let sent = client.frame().await;
    assert_eq!((&sent["type"], &sent["id"]), (&json!("sent"), &json!(id)));
    sent["outcome"].clone()
}

/// From now on messages for the account are kept.
async fn make_known(node: &Node, uid: &str) {
    let (client, _) = node.login(uid, "phone").await;
    client.leave().await;
    let uid = Uid::new(uid).unwrap();
    eventually("the logout", || async {
        node.kick.route(&uid).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn reach_the_survivor_on_whichever_node() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut otto, _) = n1.login("otto", "pc").await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    assert_eq!(
        send(&mut otto, "anna", json!("one"), "m1").await,
        "delivered"
    );
    assert_eq!(
        phone.frame().await,
        json!({"type": "message", "from": "otto", "body": "one", "id": "m1"})
    );
    let (mut pc, _) = n2.login("anna", "pc").await;
    assert_eq!(phone.frame().await["type"], "offline");
    let body = json!({"text": "two", "n": [1, 2.5, null]});
    assert_eq!(
        send(&mut otto, "anna", body.clone(), "m2").await,
        "delivered"
    );
    assert_eq!(
        pc.frame().await,
        json!({"type": "message", "from": "otto", "body": body, "id": "m2"})
    );
    // The phone, which has not left yet, hears nothing of it.
    let (frames, _) = phone.rest().await;
    assert!(frames.is_empty(), "{frames:?}");
}

#[tokio::test]
async fn wait_for_an_account_that_is_not_logged_in() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    make_known(&n2, "anna").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    for number in 0..3 {
        let id = format!("m{number}");
        assert_eq!(send(&mut otto, "anna", json!(number), &id).await, "stored");
    }
    let (mut anna, _) = n2.login("anna", "phone").await;
    for number in 0..3 {
        assert_eq!(
            anna.frame().await,
            json!({"type": "message", "from": "otto", "body": number, "id": format!("m{number}")})
        );
    }
    let records = net.memory.records();
    let key = distlock_core::RecordKey::new("inbox/anna").unwrap();
    eventually("the inbox to be empty", || async {
        let entry = records.get(&key).await.unwrap().unwrap();
        entry.value == br#"{"messages":[]}"#
    })
    .await;
    anna.leave().await;
    eventually("the logout", || async { n2.kick.sessions() == 0 }).await;
    let (mut anna, _) = n1.login("anna", "phone").await;
    anna.send(&json!({"type": "ping"})).await;
    assert_eq!(anna.frame().await["type"], "pong", "nothing comes twice");
}

#[tokio::test]
async fn only_the_last_hundred_are_kept() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    make_known(&n1, "anna").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    for number in 0..105 {
        send(&mut otto, "anna", json!(number), "m").await;
    }
    let (mut anna, _) = n1.login("anna", "phone").await;
    for number in 5..105 {
        assert_eq!(anna.frame().await["body"], number);
    }
}

#[tokio::test]
async fn nothing_is_kept_for_an_account_that_never_logged_in() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    for number in 0..3 {
        let to = format!("nobody-{number}");
        assert_eq!(send(&mut otto, &to, json!("hello"), "m").await, "failed");
    }
    let inboxes = net.memory.records().scan("inbox/", None, 9).await.unwrap();
    assert!(inboxes.is_empty(), "{inboxes:?}");
}
