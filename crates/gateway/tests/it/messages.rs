//! Messages between accounts.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock as _, ErrorKind, Store, SystemClock, sync::Mutex};
use distlock_gateway::{Gateway, OfflineStore, Uid};
use distlock_kickout::{Allowed, Code, Denied, Login, Message, Profiles};
use distlock_memory::Memory;
use serde_json::{Value, json};

use crate::net::{Client, Net, Node, config, eventually, http, login};

async fn send(client: &mut Client, to: &str, body: Value, id: &str) -> Value {
    client
        .send(&json!({"type": "send", "to": to, "body": body, "id": id}))
        .await;
    let sent = client.frame().await;
    assert_eq!((&sent["type"], &sent["id"]), (&json!("sent"), &json!(id)));
    sent["outcome"].clone()
}

/// Logs the account in and out, so that messages for the account are stored from now on.
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
async fn messages_reach_the_current_session_on_any_node() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut otto, _) = n1.login("otto", "pc").await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    assert_eq!(send(&mut otto, "anna", json!("one"), "m1").await, "written");
    assert_eq!(
        phone.frame().await,
        json!({"type": "message", "from": "otto", "body": "one", "id": "m1"})
    );
    let (mut pc, _) = n2.login("anna", "pc").await;
    assert_eq!(phone.frame().await["type"], "offline");
    let body = json!({"text": "two", "n": [1, 2.5, null]});
    assert_eq!(send(&mut otto, "anna", body.clone(), "m2").await, "written");
    assert_eq!(
        pc.frame().await,
        json!({"type": "message", "from": "otto", "body": body, "id": "m2"})
    );
    // The phone has not left yet, but gets none of these messages.
    let (frames, _) = phone.rest().await;
    assert!(frames.is_empty(), "{frames:?}");
}

#[tokio::test]
async fn messages_for_an_account_without_a_session_are_delivered_at_its_login() {
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

/// A phone that acknowledges nothing delays nobody: not the sender's other frames, and not its next
/// messages to the same phone.
#[tokio::test]
async fn a_receiver_that_does_not_acknowledge_does_not_delay_its_sender() {
    // The wait for one acknowledgement is 300 to 600 ms. Twenty such waits are far longer than
    // this.
    const LIMIT: Duration = Duration::from_secs(2);
    for acks in [false, true] {
        let net = Net::new();
        let (n1, n2) = (net.node("n1").await, net.node("n2").await);
        let mut silent = Vec::new();
        for (node, name) in [(&n1, "here"), (&n2, "elsewhere")] {
            let mut phone = node.connect().await;
            let mut hello = login(name, "phone");
            hello["acks"] = json!(true);
            phone.send(&hello).await;
            assert_eq!(phone.frame().await["type"], "login_ok");
            silent.push(phone);
        }
        let (mut bob, _) = n2.login("bob", "pc").await;
        let mut otto = n1.connect().await;
        let mut hello = login("otto", "pc");
        hello["acks"] = json!(acks);
        otto.send(&hello).await;
        assert_eq!(otto.frame().await["type"], "login_ok");
        let started = SystemClock.now();
        for number in 0..20 {
            for to in ["here", "elsewhere"] {
                let id = format!("{to} {number}");
                otto.send(&json!({"type": "send", "to": to, "body": number, "id": id}))
                    .await;
            }
        }
        otto.send(&json!({"type": "send", "to": "bob", "body": 1, "id": "bob"}))
            .await;
        otto.send(&json!({"type": "ping"})).await;
        let (mut answers, mut outcomes) = (Vec::new(), 0);
        while answers.len() < 2 || outcomes < 40 {
            let frame = otto.frame().await;
            if frame["outcome"] == "stored" {
                outcomes += 1;
                continue;
            }
            let took = SystemClock.now().since(started);
            assert!(
                outcomes < 40,
                "behind all the others, after {took:?}: {frame}"
            );
            answers.push(frame);
        }
        let took = SystemClock.now().since(started);
        assert!(took < LIMIT, "acks {acks}: all outcomes after {took:?}");
        assert!(answers.iter().any(|it| it["type"] == "pong"), "{answers:?}");
        assert!(
            answers
                .iter()
                .any(|it| it["id"] == "bob" && it["outcome"] == "written"),
            "{answers:?}"
        );
        assert_eq!(bob.frame().await["id"], "bob");
        for phone in &mut silent {
            for number in 0..20 {
                assert_eq!(phone.frame().await["body"], number, "in their order");
            }
        }
    }
}

/// A client that leaves right after its messages has sent them all.
#[tokio::test]
async fn a_logout_right_after_messages_waits_for_their_outcomes() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut anna, _) = n2.login("anna", "phone").await;
    make_known(&n1, "bob").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    for number in 0..9 {
        let to = ["anna", "bob"][number % 2];
        otto.send(&json!({"type": "send", "to": to, "body": number, "id": format!("m{number}")}))
            .await;
    }
    otto.send(&json!({"type": "logout"})).await;
    let (frames, _) = otto.rest().await;
    let sent: Vec<_> = frames.iter().filter(|it| it["type"] == "sent").collect();
    assert_eq!(sent.len(), 9, "{frames:?}");
    for number in [0, 2, 4, 6, 8] {
        assert_eq!(anna.frame().await["body"], number);
    }
    let (mut bob, _) = n1.login("bob", "phone").await;
    for number in [1, 3, 5, 7] {
        assert_eq!(bob.frame().await["body"], number);
    }
}

#[tokio::test]
async fn only_the_last_hundred_messages_are_stored() {
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
async fn no_message_is_stored_for_an_account_that_never_logged_in() {
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

#[tokio::test]
async fn a_sender_of_too_many_messages_gets_a_retry_time() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.set("send_rate", "1").unwrap();
            config.set("send_burst", "5").unwrap();
            config.set("pair_rate", "1").unwrap();
            config.set("pair_burst", "3").unwrap();
        })
        .await;
    make_known(&n1, "anna").await;
    make_known(&n1, "bob").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    let mut throttled = Vec::new();
    for (number, to) in ["anna", "anna", "anna", "anna", "bob", "bob", "bob"]
        .into_iter()
        .enumerate()
    {
        let id = format!("m{number}");
        otto.send(&json!({"type": "send", "to": to, "body": 1, "id": id}))
            .await;
        let said = otto.frame().await;
        assert_eq!(said["id"], *id);
        if said["type"] == "error" {
            assert_eq!(said["code"], "throttled");
            assert!(said["retry_after_ms"].as_u64().unwrap() >= 200, "{said}");
            throttled.push(number);
        } else {
            assert_eq!(said["outcome"], "stored");
        }
    }
    // The fourth message exceeds the rate of its pair. The sixth and seventh exceed the rate of the
    // sender, which also counted the fourth.
    assert_eq!(throttled, [3, 5, 6]);
}

/// A server of the operator sends a message without a session.
#[tokio::test]
async fn a_server_sends_messages_with_the_send_token() {
    let net = Net::new();
    let token = "only for sending messages";
    let (n1, n2) = (
        net.node_with("n1", |config| config.set("send_token", token).unwrap())
            .await,
        net.node("n2").await,
    );
    let (mut anna, _) = n2.login("anna", "phone").await;
    let post = async |node: &Node, token: &str, body: Value| {
        let body = body.to_string();
        let request = format!(
            "POST /v1/send HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\nauthorization: Bearer {token}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, answer) = http(node.admin, &request).await;
        (status, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let hello = json!({"from": "shop", "to": "anna", "body": {"order": 7}, "id": "o7"});
    let (status, answer) = post(&n1, token, hello.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let devices = json!([{"device": "phone", "class": "", "outcome": "written"}]);
    assert_eq!(
        answer,
        json!({"id": "o7", "outcome": "written", "devices": devices})
    );
    let message = anna.frame().await;
    assert_eq!(
        (&message["from"], &message["body"]),
        (&json!("shop"), &json!({"order": 7}))
    );
    anna.leave().await;
    let uid = Uid::new("anna").unwrap();
    eventually("the logout", || async {
        n1.kick.route(&uid).await.unwrap().is_none()
    })
    .await;
    let (_, answer) = post(&n1, token, json!({"from": "shop", "to": "anna", "body": 8})).await;
    assert_eq!(answer["outcome"], "stored");
    let (status, answer) = post(&n1, "something else", hello.clone()).await;
    assert_eq!(status, 401, "{answer}");
    let (status, answer) = post(&n2, token, hello).await;
    assert_eq!(status, 403, "nobody may on this node: {answer}");
    let (status, answer) = post(&n1, token, json!({"to": "anna", "body": 8})).await;
    assert_eq!(status, 422, "{answer}");
}

/// Stores nothing, and notes the messages that it should store.
#[derive(Debug, Default)]
struct NotedMessages(Mutex<Vec<String>>);

#[async_trait]
impl OfflineStore for NotedMessages {
    async fn keep(&self, uid: &Uid, message: &Message) -> distlock_core::Result<()> {
        let mut kept = self.0.lock();
        kept.push(format!("{} for {uid}", message.id));
        Ok(())
    }

    async fn claim(&self, _: &Uid) -> distlock_core::Result<Vec<Message>> {
        Ok(Vec::new())
    }

    async fn forget(&self, _: &Uid, _: &[Message]) -> distlock_core::Result<()> {
        Ok(())
    }

    async fn withdraw(&self, _: &Uid, _: &Message) -> distlock_core::Result<bool> {
        Ok(false)
    }

    async fn waiting(&self, _: &Uid) -> distlock_core::Result<usize> {
        Ok(0)
    }
}

#[derive(Debug)]
struct OnlyPhones;

#[async_trait]
impl Profiles for OnlyPhones {
    async fn load(&self, login: &Login) -> distlock_core::Result<Allowed> {
        Ok(if login.device.as_str() == "phone" {
            Allowed::Yes
        } else {
            Allowed::No(Denied::new(Code::Denied))
        })
    }
}

#[tokio::test]
async fn an_embedder_can_replace_the_message_store_and_profiles() {
    let memory = Memory::default();
    let kept = Arc::new(NotedMessages::default());
    let builder = || {
        let store = Store::new(memory.lock(), memory.records());
        Gateway::builder(config("n1"), store)
            .offline_store(Arc::clone(&kept) as Arc<dyn OfflineStore>)
            .profiles(Arc::new(OnlyPhones))
    };
    let n1 = Node::run(builder().start().await.unwrap());
    make_known(&n1, "anna").await;
    let (mut otto, _) = n1.login("otto", "phone").await;
    assert_eq!(send(&mut otto, "anna", json!("one"), "m1").await, "stored");
    assert_eq!(*kept.0.lock(), ["m1 for anna"]);
    let mut pc = n1.connect().await;
    pc.send(&login("anna", "pc")).await;
    assert_eq!(pc.frame().await["code"], json!(4));

    let mut asks_twice = config("n2");
    asks_twice
        .set("profile_url", "http://127.0.0.1:1/")
        .unwrap();
    let store = Store::new(memory.lock(), memory.records());
    let builder = Gateway::builder(asks_twice, store).profiles(Arc::new(OnlyPhones));
    let error = builder.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("profile_url"), "{error}");
}
