//! The lists of the admin HTTP, and what it tells of one account.

use distlock_core::{Expect, RecordKey};
use distlock_gateway::GatewayConfig;
use distlock_kickout::UserRecord;
use serde_json::{Value, json};

use crate::net::{Client, Net, Node, eventually, login, login_with, soon, token};

/// The answer to a good request.
async fn listed(node: &Node, path: &str) -> Value {
    let (status, body) = node.admin(&format!("GET {path}"), "").await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn texts(list: &Value, member: &str) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|it| it[member].as_str().unwrap().to_owned())
        .collect()
}

/// Logs in with more members in the login.
async fn log_in(node: &Node, uid: &str, device: &str, more: Value) -> Client {
    let mut frame = login(uid, device);
    let Value::Object(more) = more else {
        unreachable!()
    };
    frame.as_object_mut().unwrap().extend(more);
    let mut client = node.connect().await;
    client.send(&frame).await;
    let ok = client.frame().await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    client
}

fn per_class(config: &mut GatewayConfig) {
    config.set("policy", "one_per_class").unwrap();
}

#[tokio::test]
async fn sessions_are_found_on_all_nodes_by_each_of_their_properties() {
    let net = Net::new();
    let n1 = net.node_with("n1", per_class).await;
    let n2 = net.node_with("n2", per_class).await;
    let web = json!({"class": "web", "version": "web 2.14.0"});
    let _clients = [
        log_in(&n1, "anna", "phone", json!({})).await,
        log_in(&n2, "anna", "laptop", web.clone()).await,
        log_in(&n2, "anton", "phone", json!({})).await,
        log_in(&n1, "berta/7 %", "laptop", web).await,
    ];
    let page = listed(&n1, "/v1/sessions?prefix=anna&class=web").await;
    let [session] = &page["sessions"].as_array().unwrap()[..] else {
        panic!("{page}")
    };
    for (member, expected) in [
        ("uid", "anna"),
        ("device", "laptop"),
        ("class", "web"),
        ("node", "n2"),
        ("address", "127.0.0.1"),
        ("version", "web 2.14.0"),
    ] {
        assert_eq!(session[member], expected, "{session}");
    }
    assert!(session["since_ms"].is_u64(), "{session}");
    for (query, expected) in [
        ("", &["anna", "anna", "anton", "berta/7 %"][..]),
        ("prefix=an", &["anna", "anna", "anton"]),
        ("prefix=anna", &["anna", "anna"]),
        ("prefix=berta%2F7%20%25", &["berta/7 %"]),
        ("prefix=annaa", &[]),
        ("device=phone", &["anna", "anton"]),
        ("class=web", &["anna", "berta/7 %"]),
        ("class=", &["anna", "anton"]),
        ("node=n2", &["anna", "anton"]),
        ("node=n9", &[]),
        ("address=127.0.0.1&device=laptop", &["anna", "berta/7 %"]),
        ("address=%3A%3Affff%3A127.0.0.1&prefix=anton", &["anton"]),
        ("address=127.0.0.2", &[]),
        ("prefix=an&after=anna", &["anton"]),
        ("prefix=b&after=anna", &["berta/7 %"]),
        ("prefix=an&after=b", &[]),
    ] {
        let page = listed(&n1, &format!("/v1/sessions?{query}")).await;
        assert_eq!(texts(&page["sessions"], "uid"), expected, "{query}");
        assert_eq!(page.get("next"), None, "{query}");
    }
    // Who asks for presence, or reads its changes, learns no address.
    let (_, presence) = n1.admin("POST /v1/presence", r#"{"uids":["anna"]}"#).await;
    assert!(presence.contains("laptop") && !presence.contains("127.0.0.1"));
}

#[tokio::test]
async fn pages_of_sessions_miss_none_and_repeat_none_while_others_come_and_go() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let mut clients = Vec::new();
    for number in 0..7 {
        let node = if number % 2 == 0 { &n1 } else { &n2 };
        clients.push(node.login(&format!("u{number}"), "phone").await.0);
    }
    let mut online = Vec::new();
    let mut after = String::new();
    for round in 0.. {
        let page = listed(&n1, &format!("/v1/sessions?limit=2{after}")).await;
        let uids = texts(&page["sessions"], "uid");
        assert!(uids.len() <= 2 && round < 9, "{page}");
        online.extend(uids);
        if round == 0 {
            // One before the place that was reached, one that has been listed, and one behind.
            clients.push(n2.login("u", "phone").await.0);
            let first = clients.remove(0);
            first.leave().await;
            clients.push(n1.login("u55", "phone").await.0);
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let expected = ["u0", "u1", "u2", "u3", "u4", "u5", "u55", "u6"];
    assert_eq!(online, expected);
    let page = listed(&n1, "/v1/sessions?node=n2&limit=2").await;
    assert_eq!(texts(&page["sessions"], "uid"), ["u", "u1"]);
    assert_eq!(page["next"], "u1");
}

#[tokio::test]
async fn a_search_for_something_rare_goes_on_with_the_next_page() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let records = net.memory.records();
    // Accounts that have logged in once. A page reads at most 5,120 of them.
    let left = serde_json::to_vec(&UserRecord::default()).unwrap();
    for number in 0..5500 {
        let key = RecordKey::new(format!("sess/a{number:04}")).unwrap();
        records.put(&key, &left, Expect::Absent).await.unwrap();
    }
    let _client = n1.login("zoe", "phone").await;
    let page = listed(&n1, "/v1/sessions?device=phone").await;
    assert_eq!(page, json!({"sessions": [], "next": "a5119"}));
    let page = listed(&n1, "/v1/sessions?device=phone&after=a5119").await;
    assert_eq!(texts(&page["sessions"], "uid"), ["zoe"]);
    // A search by account reads that part of the directory alone.
    let page = listed(&n1, "/v1/sessions?prefix=zo").await;
    assert_eq!(texts(&page["sessions"], "uid"), ["zoe"]);
}

#[tokio::test]
async fn bans_are_listed_page_by_page() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    assert_eq!(listed(&n1, "/v1/bans").await, json!({"bans": []}));
    for uid in ["u0", "u1", "u2", "u3", "u4", "v"] {
        let ban = json!({"uid": uid, "ttl": "1h", "reason": "spam"});
        let (status, body) = n1.admin("POST /v1/ban", &ban.to_string()).await;
        assert_eq!(status, 200, "{body}");
    }
    n1.admin("POST /v1/ban", r#"{"uid":"u33","ttl":"1ms"}"#)
        .await;
    assert_eq!(n2.admin("DELETE /v1/ban?uid=u3", "").await.0, 200);
    eventually("the end of the short ban", || async {
        let bans = listed(&n2, "/v1/bans?prefix=u3").await;
        bans == json!({"bans": []})
    })
    .await;
    // The record of a ban that has ended stays until somebody removes it.
    let ended = json!({"id": uuid::Uuid::nil(), "ttl_ms": 0, "until_ms": 0}).to_string();
    let key = RecordKey::new("ban/u34").unwrap();
    let records = net.memory.records();
    let put = records.put(&key, ended.as_bytes(), Expect::Absent);
    put.await.unwrap();
    for (query, expected, next) in [
        ("limit=3", &["u0", "u1", "u2"][..], Some("u2")),
        ("limit=3&after=u2", &["u4", "v"], None),
        ("prefix=u&after=u1", &["u2", "u4"], None),
        ("after=v", &[], None),
    ] {
        let bans = listed(&n2, &format!("/v1/bans?{query}")).await;
        assert_eq!(texts(&bans["bans"], "uid"), expected, "{query}");
        assert_eq!(bans["next"].as_str(), next, "{query}");
    }
    let bans = listed(&n2, "/v1/bans?limit=1").await;
    assert_eq!(bans["bans"][0]["reason"], "spam");
    assert!(bans["bans"][0]["until_ms"].is_u64(), "{bans}");
}

#[tokio::test]
async fn orders_of_all_nodes_are_listed_page_by_page_while_more_are_given() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let ban = async |node: &Node, number: u32| {
        let ban = json!({"uid": format!("u{number}")}).to_string();
        assert_eq!(node.admin("POST /v1/ban", &ban).await.0, 200);
    };
    for number in 0..7 {
        ban(if number % 2 == 0 { &n1 } else { &n2 }, number).await;
    }
    let mut about = Vec::new();
    let mut after = String::new();
    for round in 0.. {
        let page = listed(&n1, &format!("/v1/audit?limit=3{after}")).await;
        assert!(round < 9, "{page}");
        assert_eq!(page["total"], 7 + round, "{page}");
        about.extend(texts(&page["entries"], "target"));
        for entry in page["entries"].as_array().unwrap() {
            assert_eq!(entry["by"], "admin_token", "{entry}");
        }
        ban(&n2, 100).await;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    // Orders of the same millisecond stand in any order.
    about.sort_unstable();
    assert_eq!(about, ["u0", "u1", "u2", "u3", "u4", "u5", "u6"]);
}

#[tokio::test]
async fn a_bad_query_names_the_field_the_limit_and_the_value() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let long = "x".repeat(129);
    for (path, says) in [
        ("sessions?limit=0", r#"limit is "0": 1 to 1000 is needed"#),
        ("sessions?limit=1001", r#"limit is "1001": 1 to 1000"#),
        ("sessions?limit=many", r#"limit is "many": 1 to 1000"#),
        ("sessions?limit=-1", r#"limit is "-1""#),
        ("sessions?limit=", r#"limit is """#),
        ("bans?limit=0", r#"limit is "0""#),
        ("revocations?limit=5000", r#"limit is "5000""#),
        ("audit?limit=1e3", r#"limit is "1e3""#),
        (
            &*format!("sessions?prefix={long}"),
            "prefix: uid is 129 bytes long: at most 128 are allowed",
        ),
        (
            "sessions?prefix=a%0A",
            "prefix: uid has a control character at byte 1",
        ),
        ("bans?prefix=", "prefix: uid is empty: 1 to 128 bytes"),
        ("sessions?after=%00", "after: uid has a control character"),
        (
            &*format!("sessions?device={}", &long[..65]),
            "device is 65 bytes long: at most 64 are allowed",
        ),
        (
            &*format!("sessions?class={}", &long[..33]),
            "class is 33 bytes long: at most 32 are allowed",
        ),
        ("sessions?node=n%2F1", "node name has '/'"),
        (
            "sessions?address=127.0.0.1%3A80",
            r#"address is "127.0.0.1:80": an IP address is needed"#,
        ),
        ("sessions?adress=127.0.0.1", "unknown field `adress`"),
        ("bans?node=n1", "unknown field `node`"),
        (
            "audit?after=yesterday",
            r#"after is "yesterday": the `next` of an answer is needed"#,
        ),
        ("audit?after=1.x", r#"after is "1.x""#),
        (
            &*format!("users/{long}"),
            "uid is 129 bytes long: at most 128 are allowed",
        ),
    ] {
        let (status, body) = n1.admin(&format!("GET /v1/{path}"), "").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        let error = body["error"].as_str().unwrap();
        assert_eq!(status, 400, "{path}: {error}");
        assert!(error.contains(says), "{says} is not in: {error}");
    }
}

#[tokio::test]
async fn an_account_shows_its_sessions_and_messages_and_one_session_can_be_ended() {
    let net = Net::new();
    let n1 = net.node_with("n1", per_class).await;
    let n2 = net.node_with("n2", per_class).await;
    let mut phone = log_in(&n1, "anna", "phone", json!({})).await;
    let web = json!({"class": "web", "version": "2"});
    let mut laptop = log_in(&n2, "anna", "laptop", web).await;
    let view = listed(&n1, "/v1/users/anna").await;
    assert_eq!(view["waiting"], 0);
    let slots = view["record"]["slots"].as_object().unwrap();
    let of = |device: &str| slots.values().find(|it| it["device"] == device).unwrap();
    assert_eq!(
        (&of("laptop")["version"], &of("laptop")["address"]),
        (&json!("2"), &json!("127.0.0.1"))
    );
    assert_eq!(of("phone").get("version"), None);

    // A session id of another account ends nothing.
    let session = &of("laptop")["session"];
    let kick = async |uid: &str| {
        let body = json!({"uid": uid, "session": session}).to_string();
        let (status, body) = n1.admin("POST /v1/kick", &body).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["kicked"].clone()
    };
    assert_eq!(kick("otto").await, json!([]));
    assert_eq!(texts(&kick("anna").await, "device"), ["laptop"]);
    assert_eq!(laptop.frame().await["code"], 3);
    laptop.leave().await;

    let send = async |body: Value| {
        let request = "POST /v1/users/anna/message";
        let (status, body) = n2.admin(request, &body.to_string()).await;
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (status, sent) = send(json!({"from": "support", "body": "hello"})).await;
    assert_eq!((status, &sent["outcome"]), (200, &json!("written")));
    let message = phone.frame().await;
    assert_eq!(
        (&message["type"], &message["from"], &message["body"]),
        (&json!("message"), &json!("support"), &json!("hello"))
    );
    phone.leave().await;
    let (_, sent) = send(json!({"from": "support", "body": {"text": "later"}})).await;
    assert_eq!(sent["outcome"], "stored");
    assert_eq!(listed(&n1, "/v1/users/anna").await["waiting"], 1);
    let audit = listed(&n1, "/v1/audit?limit=1").await;
    let order = &audit["entries"][0];
    assert_eq!(
        (&order["action"], &order["target"], &order["result"]),
        (&json!("send"), &json!("anna"), &json!("stored, as support"))
    );
    assert!(!audit.to_string().contains("later"), "{audit}");
    for (body, says) in [
        (json!({"body": 1}), "missing field `from`"),
        (json!({"from": "", "body": 1}), "uid is empty"),
        (json!({"from": "support"}), "missing field `body`"),
        (
            json!({"from": "support", "body": 1, "to": "otto"}),
            "unknown field `to`",
        ),
    ] {
        let (status, body) = send(body).await;
        assert_eq!(status, 422, "{body}");
        assert!(body["error"].as_str().unwrap().contains(says), "{body}");
    }
    let (status, body) = send(json!({"from": "support", "body": "x".repeat(64_000)})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(listed(&n1, "/v1/users/nobody").await["waiting"], 0);
}

#[tokio::test]
async fn a_login_with_a_bad_version_is_refused_and_the_version_is_named() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    for (version, says) in [
        (json!(""), "version is empty: 1 to 64 bytes are allowed"),
        (
            json!("x".repeat(65)),
            "version is 65 bytes long: at most 64 are allowed",
        ),
        (
            json!("1.0\u{1b}[2J"),
            "version has a control character at byte 3",
        ),
    ] {
        let mut client = n1.connect().await;
        let mut frame = login_with(&token("anna"), "phone");
        frame["version"] = version;
        client.send(&frame).await;
        let error = soon("the refusal", client.frame()).await;
        assert_eq!(error["code"], "bad_value", "{error}");
        assert!(error["reason"].as_str().unwrap().contains(says), "{error}");
    }
}
