//! The live page, as HTTP gives it. A test with a browser is in tests/gateway/page.rs.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::net::{ADMIN_TOKEN, Net, eventually, http, soon};

#[tokio::test]
async fn shows_nodes_and_mints_tokens_only_for_its_playground() {
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
    // The script imports it.
    assert_eq!(n1.admin("GET /page/distlock-gateway.js", "").await.0, 200);
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "nothing comes from elsewhere: {page}"
    );

    let (status, state) = n1.admin("GET /page/state", "").await;
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, &state["nodes"][1]["node"]), (200, &json!("n2")));
    assert_eq!(state["nodes"][0]["front"], json!(n1.listen));

    // The page shows that a node drains, and the playground does not use that node.
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
    let login = json!({
        "type": "login", "token": minted["token"], "device": "phone", "class": "",
        "intent": "login",
    });
    client.send(&login).await;
    assert_eq!(client.frame().await["uid"], "playground-anna");
    let (status, _) = n1
        .admin("POST /page/token", r#"{"account":"\u0007"}"#)
        .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn shows_takeovers_of_all_nodes_and_names_unreachable_ones() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let mut n3 = net.node("n3").await;
    let (_first, _) = n2.login("anna", "phone").await;
    let (_here, _) = n1.login("otto", "phone").await;
    // A node collects takeovers from the first request for them.
    let state = async || {
        let (_, state) = n1.admin("GET /page/state", "").await;
        serde_json::from_str::<Value>(&state).unwrap()
    };
    assert_eq!(state().await["takeovers"], json!([]));
    let (_second, _) = n3.login("anna", "pc").await;
    let (_third, _) = n3.login("anna", "phone").await;
    let takeovers = async || {
        let shown = state().await["takeovers"].as_array().unwrap().clone();
        let part = |it: &Value| {
            let names = [
                "uid",
                "seen_by",
                "from_node",
                "from_device",
                "to_node",
                "to_device",
            ];
            names.map(|name| it[name].as_str().unwrap_or_default().to_owned())
        };
        shown.iter().map(part).collect::<Vec<_>>()
    };
    // Neither takeover happened on the node that renders the page.
    eventually("the takeovers of other nodes", || async {
        takeovers().await
            == [
                ["anna", "n3", "n3", "pc", "n3", "phone"],
                ["anna", "n3", "n2", "phone", "n3", "pc"],
            ]
    })
    .await;
    // A session that must end counts until its client is gone.
    let sessions = json!([
        {"node": "n1", "sessions": 1}, {"node": "n2", "sessions": 0}, {"node": "n3", "sessions": 1},
    ]);
    eventually("the numbers of sessions", || async {
        state().await["sessions"] == sessions
    })
    .await;
    let html = state().await["html"].as_str().unwrap().to_owned();
    assert!(!html.contains("are missing"), "{html}");
    assert!(html.contains("<dt>online here</dt><dd>1</dd>"), "{html}");
    assert!(html.contains("<dt>online in all</dt><dd>2</dd>"), "{html}");

    // A killed node holds its lease for a while, and its takeovers are missing.
    n3.kill().await;
    let html = state().await["html"].as_str().unwrap().to_owned();
    assert!(
        html.contains("Takeovers that only node n3 saw are missing"),
        "{html}"
    );
    assert!(html.contains("<dd>at least 1</dd>"), "{html}");
    drop(n2);
}

#[tokio::test]
async fn the_page_needs_the_admin_token_or_a_pass() {
    let net = Net::new();
    let (secret, n1) = (ADMIN_TOKEN, net.node("n1").await);
    for path in ["GET /", "GET /page/state"] {
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
        "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {secret}\r\n\r\n"
    );
    assert_eq!(http(n1.admin, &bearer).await.0, 200);

    let body = sign_in(secret);
    let request = format!(
        "POST /page/sign-in HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(n1.admin).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    soon("the pass", read).await.unwrap();
    let cookie = answer.split_once("distlock_admin_n1=").unwrap().1;
    let cookie = cookie.split_once(';').unwrap().0;
    let orders = answer.split_once(r#""pass":""#).unwrap().1;
    let orders = orders.split_once('"').unwrap().0;
    assert!(answer.contains("; Max-Age=43200"), "{answer}");
    // Every port of the host gets the cookie, so the cookie alone must open this page and nothing
    // else.
    let both = format!("cookie: a=b; distlock_admin_n1={cookie}\r\nx-distlock-pass: {orders}");
    let asked = async |path: &str, header: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n\r\n"
        );
        http(n1.admin, &request).await.0
    };
    for (path, header, expected) in [
        (
            "/",
            &*format!("cookie: a=b; distlock_admin_n1={cookie}"),
            200,
        ),
        ("/", &format!("cookie: distlock_admin_n2={cookie}"), 401),
        ("/", &format!("cookie: distlock_admin_n1={secret}"), 401),
        ("/", &format!("authorization: Bearer {cookie}"), 401),
        ("/v1/nodes", &format!("authorization: Bearer {cookie}"), 401),
        ("/v1/nodes", &format!("authorization: Bearer {orders}"), 401),
        (
            "/v1/nodes",
            &format!("cookie: distlock_admin_n1={cookie}"),
            401,
        ),
        ("/v1/nodes", &format!("x-distlock-pass: {orders}"), 401),
        ("/v1/nodes", &both, 200),
        ("/v1/nodes", &format!("authorization: Bearer {secret}"), 200),
    ] {
        assert_eq!(asked(path, header).await, expected, "{path} {header}");
    }
    // The cookie alone, or half a pass and the cookie of another pass, ends nothing.
    let sign_out = async |header: &str| {
        let request = format!(
            "POST /page/sign-out HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: 0\r\n{header}\r\n\r\n"
        );
        http(n1.admin, &request).await.0
    };
    for header in [
        format!("cookie: distlock_admin_n1={cookie}"),
        format!("cookie: distlock_admin_n1={cookie}\r\nx-distlock-pass: {cookie}"),
        format!("x-distlock-pass: {orders}"),
    ] {
        assert_eq!(sign_out(&header).await, 401, "{header}");
        assert_eq!(asked("/v1/nodes", &both).await, 200, "{header}");
    }
    // A sign-out also ends all copies of the pass.
    assert_eq!(sign_out(&both).await, 204);
    for path in ["/", "/page/state", "/v1/nodes"] {
        assert_eq!(asked(path, &both).await, 401, "{path}");
    }
}

#[tokio::test]
async fn long_bodies_of_strangers_are_refused() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let long = format!("{{\"token\": \"{}\"}}", "x".repeat(10_000));
    let (status, _) = n1.admin("POST /page/sign-in", &long).await;
    assert_eq!(status, 413);
    let long = format!("{{\"uid\": \"{}\"}}", "x".repeat(100_000));
    assert_eq!(n1.admin("POST /v1/kick", &long).await.0, 413);
    // Without the token, no part of the body is read.
    let head = "POST /v1/kick HTTP/1.1\r\nhost: n1\r\ncontent-type: application/json\r\n\
                connection: close\r\ncontent-length: 1000000\r\n\r\n";
    assert_eq!(http(n1.admin, head).await.0, 401);
}
