//! The live page, as HTTP gives it. What a browser makes of it is tested with a browser (tests/gateway/page.rs).

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::net::{ADMIN_TOKEN, Net, http, soon};

#[tokio::test]
async fn shows_nodes_and_mints_tokens_for_its_playground_alone() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (_phone, _) = n1.login("<i>anna</i>", "phone").await;
    let (status, page) = n1.admin("GET /", "").await;
    assert_eq!(status, 200);
    for expected in [
        "<b>n1</b> (this one)",
        "<b>n2</b>",
        "<dt>online here</dt><dd>1</dd>",
        &n2.listen.to_string(),
    ] {
        assert!(page.contains(expected), "{expected} is not in {page}");
    }
    assert!(!page.contains("<i>anna"), "{page}");
    for asset in ["/page/style.css", "/page/script.js"] {
        assert_eq!(n1.admin(&format!("GET {asset}"), "").await.0, 200);
        assert!(page.contains(asset));
    }
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "nothing comes from elsewhere: {page}"
    );

    let (status, state) = n1.admin("GET /page/state", "").await;
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, &state["nodes"][1]["node"]), (200, &json!("n2")));
    assert_eq!(state["nodes"][0]["front"], json!(n1.listen));

    // A node that drains is shown as such, and the playground does not log in there.
    assert_eq!(n2.admin("POST /v1/drain", r#"{"rate":1}"#).await.0, 200);
    let (_, state) = n1.admin("GET /page/state", "").await;
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["nodes"].as_array().map(Vec::len), Some(1), "{state}");
    let html = state["html"].as_str().unwrap();
    assert!(html.contains(r#"data-state="draining""#), "{html}");
    let (_, page) = n2.admin("GET /", "").await;
    assert!(page.contains("<dt>state</dt><dd>draining</dd>"), "{page}");

    let (status, minted) = n1.admin("POST /page/token", r#"{"account":"anna"}"#).await;
    let minted: Value = serde_json::from_str(&minted).unwrap();
    assert_eq!((status, &minted["uid"]), (200, &json!("playground-anna")));
    let mut client = n1.connect().await;
    let login = json!({"type": "login", "token": minted["token"], "device": "phone", "class": "", "intent": "login"});
    client.send(&login).await;
    assert_eq!(client.frame().await["uid"], "playground-anna");
    let (status, _) = n1
        .admin("POST /page/token", r#"{"account":"\u0007"}"#)
        .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn follows_takeovers_across_nodes_and_ends_with_the_node() {
    let net = Net::new();
    let (mut n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (_old, _) = n2.login("anna", "phone").await;
    let mut stream = TcpStream::connect(n1.admin).await.unwrap();
    let request = format!(
        "GET /page/takeovers HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut heard = String::new();
    let mut block = [0; 4096];
    let read = soon("the head", stream.read(&mut block)).await.unwrap();
    heard.push_str(&String::from_utf8_lossy(&block[..read]));
    let (_new, _) = n1.login("anna", "pc").await;
    while !heard.contains("took_us") {
        let read = soon("a takeover", stream.read(&mut block)).await.unwrap();
        assert!(read > 0, "{heard}");
        heard.push_str(&String::from_utf8_lossy(&block[..read]));
    }
    for expected in [
        r#""uid":"anna""#,
        r#""from_node":"n2""#,
        r#""to_node":"n1""#,
        r#""to_device":"pc""#,
    ] {
        assert!(heard.contains(expected), "{expected} is not in {heard}");
    }
    n1.shut_down().await;
    soon("the end", stream.read_to_string(&mut heard))
        .await
        .unwrap();
}

#[tokio::test]
async fn is_guarded_as_the_admin_http_is() {
    let net = Net::new();
    let (secret, n1) = (ADMIN_TOKEN, net.node("n1").await);
    for path in ["GET /", "GET /page/state", "GET /page/takeovers"] {
        let (status, body) = n1.admin_with("a guess", path, "").await;
        assert_eq!(status, 401, "{path}");
        assert!(
            body.contains("Sign in") && !body.contains("lease"),
            "{body}"
        );
    }
    assert_eq!(
        n1.admin_with("a guess", "POST /page/token", r#"{"account":"a"}"#)
            .await
            .0,
        401
    );
    let sign_in = |token: &str| json!({"token": token}).to_string();
    assert_eq!(
        n1.admin("POST /page/sign-in", &sign_in("a wrong one, just as long"))
            .await
            .0,
        401
    );
    let bearer = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n\r\n"
    );
    assert_eq!(http(n1.admin, &bearer).await.0, 200);

    let body = sign_in(secret);
    let request = format!(
        "POST /page/sign-in HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(n1.admin).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    soon("the pass", read).await.unwrap();
    let pass = answer.split_once("distlock_admin=").unwrap().1;
    let pass = pass.split_once(';').unwrap().0;
    assert!(answer.contains("; Max-Age=43200"), "{answer}");
    // Every port of the host gets it: it must open this page and nothing else.
    assert_ne!(pass, secret);
    for (path, header, expected) in [
        ("/", format!("cookie: a=b; distlock_admin={pass}"), 200),
        ("/", format!("cookie: distlock_admin={secret}"), 401),
        ("/", format!("authorization: Bearer {pass}"), 401),
        ("/v1/nodes", format!("authorization: Bearer {pass}"), 401),
        ("/v1/nodes", format!("cookie: distlock_admin={pass}"), 401),
        ("/v1/nodes", format!("authorization: Bearer {secret}"), 200),
    ] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n\r\n"
        );
        assert_eq!(
            http(n1.admin, &request).await.0,
            expected,
            "{path} {header}"
        );
    }
}

#[tokio::test]
async fn what_strangers_send_is_not_read_for_long() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let long = format!("{{\"token\": \"{}\"}}", "x".repeat(10_000));
    let (status, _) = n1.admin("POST /page/sign-in", &long).await;
    assert_eq!(status, 413);
    let long = format!("{{\"uid\": \"{}\"}}", "x".repeat(100_000));
    assert_eq!(n1.admin("POST /v1/kick", &long).await.0, 413);
    // Nor is any of it, without the token.
    let head = "POST /v1/kick HTTP/1.1\r\nhost: n1\r\ncontent-type: application/json\r\n\
                connection: close\r\ncontent-length: 1000000\r\n\r\n";
    assert_eq!(http(n1.admin, head).await.0, 401);
}
