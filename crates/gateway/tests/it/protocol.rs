//! Wrong frames, wrong tokens, and clients that send nothing.

use std::{io, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock_gateway::{TokenKey, mint, mint_for_class};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::Message;

use crate::net::{KEY, Net, eventually, lingering, login, soon, token, token_of};

#[tokio::test]
async fn nobody_gets_in_without_a_good_token() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let good = token("anna");
    let parts: Vec<_> = good.split('.').collect();
    let header = |header: Value| URL_SAFE_NO_PAD.encode(header.to_string());
    let unsigned = header(json!({"alg": "none", "typ": "JWT"}));
    let other = header(json!({"alg": "HS512", "typ": "JWT"}));
    let foreign = token_of("another key of at least thirty-two bytes", "anna");
    for bad in [
        String::new(),
        "garbage".into(),
        "a.b.c".into(),
        foreign,
        format!("{unsigned}.{}.", parts[1]),
        format!("{unsigned}.{}.{}", parts[1], parts[2]),
        format!("{other}.{}.{}", parts[1], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{good}{}", "x".repeat(5000)),
    ] {
        let mut client = n1.connect().await;
        let frame = json!({"type": "login", "token": bad, "device": "phone"});
        client.send(&frame).await;
        let denied = client.frame().await;
        assert_eq!(
            (&denied["type"], &denied["code"]),
            (&json!("denied"), &json!(5)),
            "{bad}"
        );
        let close = client.close_frame().await;
        assert_eq!(close, Some((4505, "the token was refused".into())));
    }
    let mut page = net.memory.records().scan("", None, 10).await.unwrap();
    page.retain(|(key, _)| key.as_str() != "nodes");
    assert!(page.is_empty(), "nothing was written: {page:?}");
}

#[tokio::test]
async fn garbage_ends_the_session_and_its_record() {
    let net = Net::new();
    let n1 = net.node_with("n1", |config| config.max_frame = 4096).await;
    let anna = distlock_gateway::Uid::new("anna").unwrap();
    for (bad, error, code) in [
        (Message::text("garbage"), "bad_frame", 1008),
        (Message::text("[]"), "bad_frame", 1008),
        (Message::text(r#"{"type":"nonsense"}"#), "bad_frame", 1008),
        (Message::binary(vec![1, 2, 3]), "bad_frame", 1008),
        (Message::text("x".repeat(5000)), "too_long", 1009),
    ] {
        let (mut client, _) = n1.login("anna", "phone").await;
        client.send_raw(bad).await;
        let (frames, close) = client.rest().await;
        assert_eq!(frames.len(), 1, "{frames:?}");
        assert_eq!(
            (&frames[0]["type"], &frames[0]["code"]),
            (&json!("error"), &json!(error))
        );
        assert_eq!(close, Some(code));
        eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
        assert_eq!(n1.kick.route(&anna).await.unwrap(), None);
    }
}

#[tokio::test]
async fn bytes_that_are_no_websocket_frame_end_the_session_with_an_error() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    for bad in [
        // The first frame is not masked. The second frame has a reserved opcode. The text of the
        // third frame is not UTF-8.
        &[0x81, 1, b'x'][..],
        &[0x83, 0x80, 0, 0, 0, 0],
        &[0x81, 0x81, 0, 0, 0, 0, 0xff],
    ] {
        let (client, _) = n1.login("anna", "phone").await;
        let mut stream = client.into_stream();
        stream.write_all(bad).await.unwrap();
        let mut answer = Vec::new();
        let end = soon("the end", stream.read_to_end(&mut answer)).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains(r#""code":"bad_frame""#), "{bad:?}: {text}");
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(lingering(n1.listen.port()), 0);
    }
}

#[tokio::test]
async fn a_wrong_value_gets_an_error_and_the_session_continues() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let (mut client, _) = n1.login("anna", "phone").await;
    for (wrong, error) in [
        (
            json!({"type": "send", "to": "", "body": 1, "id": "m"}),
            "bad_value",
        ),
        (
            json!({"type": "send", "to": "x".repeat(129), "body": 1, "id": "m"}),
            "bad_value",
        ),
        (
            json!({"type": "send", "to": "otto", "body": 1, "id": "m".repeat(200)}),
            "bad_value",
        ),
        (
            json!({"type": "send", "to": "otto", "body": 1}),
            "bad_value",
        ),
        (
            json!({"type": "send", "to": "otto", "body": "x".repeat(65_488), "id": "m"}),
            "too_long",
        ),
        (login("anna", "phone"), "logged_in"),
    ] {
        client.send(&wrong).await;
        let answer = client.frame().await;
        assert_eq!(
            (&answer["type"], &answer["code"]),
            (&json!("error"), &json!(error))
        );
    }
    client.send(&json!({"type": "ping"})).await;
    assert_eq!(client.frame().await["type"], "pong");
}

#[tokio::test]
async fn a_first_frame_that_is_no_valid_login_is_refused() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    for (bad, error) in [
        (
            json!({"type": "send", "to": "otto", "body": 1, "id": "m"}),
            "not_logged_in",
        ),
        (json!({"type": "bye"}), "not_logged_in"),
        (
            json!({"type": "login", "token": "x", "device": ""}),
            "bad_value",
        ),
        (
            json!({"type": "login", "token": "x", "device": "a\u{1b}[2J"}),
            "bad_value",
        ),
        (json!({"type": "login", "device": "phone"}), "bad_value"),
        (json!({"hello": "world"}), "bad_frame"),
    ] {
        let mut client = n1.connect().await;
        client.send(&bad).await;
        let answer = client.frame().await;
        assert_eq!(
            (&answer["type"], &answer["code"]),
            (&json!("error"), &json!(error))
        );
        assert_eq!(client.rest().await.1, Some(1008));
    }
}

#[tokio::test]
async fn a_client_that_sends_no_login_is_disconnected() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.login_timeout = Duration::from_secs(2);
            // A client that sends no login must not get the extra time for a slow login.
            config.lock_wait = Duration::from_secs(3600);
        })
        .await;
    // This client connects, but does not begin a WebSocket.
    let mut mute = TcpStream::connect(n1.listen).await.unwrap();
    let mut silent = n1.connect().await;
    let answer = silent.frame().await;
    assert_eq!(
        (&answer["type"], &answer["code"]),
        (&json!("error"), &json!("too_slow"))
    );
    assert_eq!(silent.rest().await.1, Some(1008));

    let mut buffer = [0; 16];
    match soon("the end of the mute connection", mute.read(&mut buffer)).await {
        Ok(0) | Err(_) => {}
        Ok(read) => panic!("{read} bytes from a server that was asked nothing"),
    }
    eventually("nothing to linger", || async {
        lingering(n1.listen.port()) == 0
    })
    .await;
}

#[tokio::test]
async fn a_session_without_a_heartbeat_ends() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.heartbeat = Duration::from_millis(400);
        })
        .await;
    let (mut quiet, _) = n1.login("anna", "phone").await;
    let offline = quiet.frame().await;
    assert_eq!(
        (&offline["type"], &offline["code"]),
        (&json!("offline"), &json!(7))
    );
    assert_eq!(offline["retry"], "now");
    quiet.leave().await;
    eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
    eventually("nothing to linger", || async {
        lingering(n1.listen.port()) == 0
    })
    .await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| config.max_connections = 2)
        .await;
    let first = n1.login("anna", "phone").await;
    let _second = n1.login("otto", "phone").await;
    let mut third = TcpStream::connect(n1.listen).await.unwrap();
    let mut buffer = [0; 16];
    let refused = soon("the refusal", third.read(&mut buffer)).await;
    assert!(matches!(refused, Ok(0) | Err(_)));
    first.0.leave().await;
    eventually("a free place", || async {
        let url = format!("ws://{}/ws", n1.listen);
        tokio_tungstenite::connect_async(url).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_ping_is_answered_while_the_login_is_in_progress() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let store = distlock_core::Store::new(net.memory.lock(), net.memory.records());
    let in_the_way = store.locker().lock("user/anna").acquire().await.unwrap();
    let mut client = n1.connect().await;
    client.send(&login("anna", "phone")).await;
    client.send(&json!({"type": "ping"})).await;
    assert_eq!(client.frame().await["type"], "pong");
    drop(in_the_way.release().await);
    assert_eq!(client.frame().await["type"], "login_ok");
}

#[tokio::test]
async fn frames_after_a_login_wait_for_its_outcome() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let store = distlock_core::Store::new(net.memory.lock(), net.memory.records());
    let in_the_way = store.locker().lock("user/anna").acquire().await.unwrap();
    let mut client = n1.connect().await;
    client.send(&login("anna", "phone")).await;
    let wrong = json!({"type": "send", "to": "", "body": 1, "id": "wrong"});
    client.send(&wrong).await;
    // These are more frames than the node reads before the outcome is known.
    for number in 0..40 {
        let id = format!("m{number}");
        let send = json!({"type": "send", "to": "anna", "body": number, "id": id});
        client.send(&send).await;
    }
    drop(in_the_way.release().await);
    assert_eq!(client.frame().await["type"], "login_ok");
    let refusal = client.frame().await;
    assert_eq!(
        (&refusal["code"], &refusal["id"]),
        (&json!("bad_value"), &json!("wrong"))
    );
    let (mut sent, mut came) = (0, 0);
    while sent < 40 || came < 40 {
        let frame = client.frame().await;
        match frame["type"].as_str().unwrap() {
            "sent" => {
                assert_eq!(frame["id"], format!("m{sent}"));
                sent += 1;
            }
            "message" => {
                assert_eq!(frame["body"], came);
                came += 1;
            }
            _ => panic!("{frame}"),
        }
    }
    client.send(&json!({"type": "logout"})).await;
    eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
}

/// If any class were allowed, a client could invent classes and get any number of sessions.
#[tokio::test]
async fn classes_come_from_the_token_or_from_a_list() {
    let net = Net::new();
    let n1 = net
        .node_with("n1", |config| {
            config.set("policy", "one_per_class").unwrap();
            config.set("classes", "phone,car").unwrap();
        })
        .await;
    let key = TokenKey::new(KEY.as_bytes()).unwrap();
    let anna = distlock_gateway::Uid::new("anna").unwrap();
    let minute = Duration::from_secs(60);
    let plain = mint(&key, &anna, minute).unwrap();
    let boat = distlock_kickout::Class::new("boat").unwrap();
    let classed = mint_for_class(&key, &anna, &boat, minute).unwrap();
    let mut clients = Vec::new();
    for (token, class, slot) in [
        (&plain, "phone", Some("class:phone")),
        (&plain, "car", Some("class:car")),
        (&plain, "", Some("class:")),
        (&plain, "boat", None),
        (&plain, "Phone", None),
        (&classed, "phone", Some("class:boat")),
    ] {
        let mut client = n1.connect().await;
        let device = format!("d{}", clients.len());
        let login = json!({"type": "login", "token": token, "device": device, "class": class});
        client.send(&login).await;
        let said = client.frame().await;
        let Some(slot) = slot else {
            assert_eq!(said["code"], "bad_value", "{said}");
            let why = said["reason"].as_str().unwrap();
            assert!(why.contains(class) && why.contains("\"car\""), "{why}");
            continue;
        };
        assert_eq!(said["type"], "login_ok", "{class}: {said}");
        let (_, body) = n1.admin("GET /v1/users/anna", "").await;
        assert!(body.contains(&format!("\"{slot}\"")), "{body}");
        clients.push(client);
    }
}

#[tokio::test]
async fn an_unknown_version_is_refused_with_its_number() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    for (more, says) in [
        (json!({"v": 2}), "v is 2: this node speaks version 1"),
        (json!({"v": 0}), "v is 0"),
    ] {
        let mut frame = login("anna", "phone");
        frame
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let mut client = n1.connect().await;
        client.send(&frame).await;
        let said = client.frame().await;
        assert_eq!(
            (&said["type"], &said["code"]),
            (&json!("error"), &json!("bad_value"))
        );
        assert!(said["reason"].as_str().unwrap().contains(says), "{said}");
    }
    for (more, acks) in [
        (json!({}), false),
        (json!({"v": 1}), false),
        (json!({"v": 1, "acks": true}), true),
        (json!({"acks": true}), true),
    ] {
        let mut frame = login("anna", "phone");
        frame
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let mut client = n1.connect().await;
        client.send(&frame).await;
        let said = client.frame().await;
        assert_eq!(
            (&said["type"], &said["v"], &said["acks"]),
            (&json!("login_ok"), &json!(1), &json!(acks)),
            "{more}"
        );
        assert_eq!(said["heartbeat_ms"], 30_000, "as configured");
        client.leave().await;
    }
}
