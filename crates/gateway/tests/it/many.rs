//! Requests about many accounts: a message to many, and who is online.

use std::time::Duration;

use distlock_core::{Clock as _, Expect, RecordKey, SystemClock};
use distlock_gateway::{GatewayConfig, Secret, Uid};
use serde_json::{Value, json};

use crate::net::{ADMIN_TOKEN, Net, Node, eventually, http};

/// The longest body of a request about many accounts.
const MAX_BODY: usize = 2 * 1024 * 1024;
const SEND_TOKEN: &str = "what servers show that send";

fn may_send(config: &mut GatewayConfig) {
    config.send_token = Some(Secret::new(SEND_TOKEN));
}

/// Posts with a token. Returns the status and the answer.
async fn post(node: &Node, token: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = format!("POST {path}");
    let (status, answer) = node.admin_with(token, &request, &body.to_string()).await;
    (status, serde_json::from_str(&answer).unwrap())
}

/// Logs the account in and out.
async fn make_known(node: &Node, uid: &str) {
    node.login(uid, "phone").await.0.leave().await;
    let uid = Uid::new(uid).unwrap();
    eventually("the logout", || async {
        node.kick.route(&uid).await.unwrap().is_none()
    })
    .await;
}

/// Puts something in the account's record that no version of the program has written.
async fn spoil_record(net: &Net, uid: &str) {
    let key = RecordKey::new(format!("sess/{uid}")).unwrap();
    let records = net.memory.records();
    let put = records.put(&key, b"no record", Expect::Absent).await;
    put.unwrap();
}

fn outcomes(answer: &Value) -> Vec<(&str, &str)> {
    let accounts = answer["accounts"].as_array().unwrap().iter();
    accounts
        .map(|it| (it["uid"].as_str().unwrap(), it["outcome"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn one_message_reaches_many_accounts_and_each_has_its_outcome() {
    let net = Net::new();
    let (n1, n2) = (net.node_with("n1", may_send).await, net.node("n2").await);
    make_known(&n1, "bob").await;
    spoil_record(&net, "carl").await;
    let (mut anna, _) = n2.login("anna", "phone").await;
    let (mut dora, _) = n1.login("dora", "pc").await;
    let to = ["anna", "bob", "carl", "dora", "nobody", "anna"];
    let sent = json!({"from": "shop", "to": to, "body": {"sale": 7}, "id": "s7"});
    let (status, answer) = post(&n1, SEND_TOKEN, "/v1/send", &sent).await;
    assert_eq!((status, &answer["id"]), (200, &json!("s7")), "{answer}");
    let expected = [
        ("anna", "written"),
        ("bob", "stored"),
        ("carl", "failed"),
        ("dora", "written"),
        ("nobody", "failed"),
    ];
    assert_eq!(outcomes(&answer), expected);
    let devices = json!([{"device": "phone", "class": "", "outcome": "written"}]);
    assert_eq!(answer["accounts"][0]["devices"], devices);
    let why = answer["accounts"][2]["error"].as_str().unwrap();
    assert!(why.contains("carl"), "{why}");
    assert!(answer["accounts"][4].get("error").is_none(), "{answer}");
    let (mut bob, _) = n2.login("bob", "phone").await;
    let expected = json!({"type": "message", "from": "shop", "body": {"sale": 7}, "id": "s7"});
    for client in [&mut anna, &mut bob, &mut dora] {
        assert_eq!(client.frame().await, expected);
        client.send(&json!({"type": "ping"})).await;
        assert_eq!(client.frame().await["type"], "pong", "it comes once");
    }
    let (status, answer) = post(
        &n1,
        SEND_TOKEN,
        "/v1/send",
        &json!({"from": "shop", "to": [], "body": 1, "id": "s8"}),
    )
    .await;
    assert_eq!((status, answer), (200, json!({"id": "s8", "accounts": []})));
}

#[tokio::test]
async fn a_list_of_accounts_that_is_wrong_is_refused_whole() {
    let net = Net::new();
    let n1 = net.node_with("n1", may_send).await;
    let (mut anna, _) = n1.login("anna", "phone").await;
    let many = |number: usize| (0..number).map(|it| format!("u{it}")).collect::<Vec<_>>();
    let mut too_many = many(1000);
    too_many.insert(0, "anna".into());
    let long = "x".repeat(129);
    for (list, says) in [
        (json!(too_many), "more than 1000 accounts"),
        (json!(["anna", ""]), "uid is empty"),
        (json!(["anna", long]), "uid"),
        (json!(["anna", null]), "expected a string"),
        (json!({"anna": 1}), "account"),
    ] {
        for (path, token, body) in [
            (
                "/v1/send",
                SEND_TOKEN,
                json!({"from": "shop", "to": &list, "body": 1}),
            ),
            ("/v1/presence", ADMIN_TOKEN, json!({"uids": &list})),
        ] {
            let (status, answer) = post(&n1, token, path, &body).await;
            assert_eq!(status, 422, "{path}: {answer}");
            let error = answer["error"].as_str().unwrap();
            assert!(error.contains(says), "{path} {says}: {error}");
        }
    }
    for (path, token) in [("/v1/send", SEND_TOKEN), ("/v1/presence", ADMIN_TOKEN)] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             connection: close\r\ncontent-type: application/json\r\n\
             content-length: 10000000\r\n\r\n"
        );
        let body = "[".repeat(MAX_BODY + 1);
        // The node refuses the body at the first byte beyond the limit. The rest is not sent,
        // because unread bytes would make the node's end of the connection a reset.
        let (status, answer) = http(n1.admin, &(head + &body)).await;
        assert_eq!(status, 413, "{path}: {answer}");
    }
    let (status, answer) = post(
        &n1,
        SEND_TOKEN,
        "/v1/send",
        &json!({"from": "shop", "to": many(1000), "body": 1}),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(outcomes(&answer).len(), 1000);
    anna.send(&json!({"type": "ping"})).await;
    assert_eq!(anna.frame().await["type"], "pong", "nothing was sent");
}

/// A node that accepts calls and answers none costs a message to many a bounded time, and the other
/// accounts nothing.
#[tokio::test]
async fn a_silent_node_delays_a_message_to_many_a_bounded_time() {
    /// Far more than the few calls that time out before the circuit to the node opens.
    const LIMIT: Duration = Duration::from_secs(10);
    const ACCOUNTS: usize = 200;
    let net = Net::new();
    let n1 = net.node_with("n1", may_send).await;
    let deaf = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let n2 = net
        .node_with("n2", |config| config.peer_advertise = Some(address))
        .await;
    let (mut clients, mut to) = (Vec::new(), Vec::new());
    for number in 0..ACCOUNTS {
        let uid = format!("u{number}");
        let node = if number % 4 == 0 { &n1 } else { &n2 };
        clients.push(node.login(&uid, "phone").await.0);
        to.push(uid);
    }
    let started = SystemClock.now();
    let sent = json!({"from": "shop", "to": to, "body": 1, "id": "s1"});
    let (status, answer) = post(&n1, SEND_TOKEN, "/v1/send", &sent).await;
    let took = SystemClock.now().since(started);
    assert_eq!(status, 200, "{answer}");
    assert!(took < LIMIT, "{took:?}");
    for (number, (_, outcome)) in outcomes(&answer).into_iter().enumerate() {
        let expected: &[_] = if number % 4 == 0 {
            &["written"]
        } else {
            &["stored", "failed"]
        };
        assert!(expected.contains(&outcome), "{number}: {outcome}");
    }
    drop((clients, deaf));
}

#[tokio::test]
async fn presence_says_who_is_online_and_nothing_to_strangers() {
    let net = Net::new();
    let (n1, n2) = (
        net.node_with("n1", may_send).await,
        net.node_with("n2", |config| config.set("policy", "unlimited").unwrap())
            .await,
    );
    make_known(&n1, "bob").await;
    spoil_record(&net, "carl").await;
    let (_phone, first) = n1.login("anna", "phone").await;
    let (_pc, second) = n2.login("anna", "pc").await;
    let asked = json!({"uids": ["bob", "anna", "carl", "nobody", "bob"]});
    let (status, answer) = post(&n2, ADMIN_TOKEN, "/v1/presence", &asked).await;
    assert_eq!(status, 200, "{answer}");
    let accounts = answer["accounts"].as_array().unwrap();
    let online: Vec<_> = accounts
        .iter()
        .map(|it| (&it["uid"], &it["online"]))
        .collect();
    let expected = [
        ("bob", json!(false)),
        ("anna", json!(true)),
        ("carl", Value::Null),
        ("nobody", json!(false)),
    ];
    assert_eq!(online.len(), expected.len());
    for ((uid, online), (expected_uid, expected)) in online.into_iter().zip(&expected) {
        assert_eq!((uid, online), (&json!(expected_uid), expected));
    }
    let sessions = accounts[1]["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2, "{answer}");
    for (session, login, node, device) in [
        (&sessions[0], &second, "n2", "pc"),
        (&sessions[1], &first, "n1", "phone"),
    ] {
        assert_eq!(session["session"], login["session"]);
        assert_eq!(session["gen"], login["gen"]);
        assert_eq!(
            (&session["node"], &session["device"]),
            (&json!(node), &json!(device))
        );
        assert!(session["since_ms"].as_u64().unwrap() > 0);
    }
    assert!(accounts[2]["error"].as_str().unwrap().contains("carl"));
    assert!(!answer.to_string().contains("127.0.0.1"), "{answer}");
    for token in ["a guess", SEND_TOKEN] {
        let (status, answer) = post(&n1, token, "/v1/presence", &asked).await;
        assert_eq!(status, 401, "{answer}");
        assert!(!answer.to_string().contains("anna"), "{answer}");
    }
    let before = net
        .memory
        .records()
        .get(&RecordKey::new("audit/n2").unwrap())
        .await;
    assert_eq!(before.unwrap(), None, "a question is no order");
}
