//! Administrators with names and rights.

use std::{fs, path::Path};

use distlock_core::ErrorKind;
use distlock_gateway::GatewayConfig;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::net::{Net, Node, config, http, soon};

const READS: &str = "what prometheus shows";
const OPERATES: &str = "what anna on call shows";
const SENDS: &str = "what-servers-show-that-send";
const ADMINISTERS: &str = "what the boss shows";

/// A token of a file is one word.
fn word(token: &str) -> String {
    token.replace(' ', "-")
}

fn write(path: &Path, lines: &[(&str, &str, &str)]) {
    let line =
        |(name, right, token): &(&str, &str, &str)| format!("{name} {right} {}\n", word(token));
    fs::write(path, lines.iter().map(line).collect::<String>()).unwrap();
}

const ALL: [(&str, &str, &str); 3] = [
    ("prometheus", "read", READS),
    ("anna", "operate", OPERATES),
    ("boss", "admin", ADMINISTERS),
];

async fn node(net: &Net, path: &Path) -> Node {
    let path = path.to_str().unwrap().to_owned();
    let change = |config: &mut GatewayConfig| {
        config.set("admin_token_file", &path).unwrap();
        config.set("send_token", SENDS).unwrap();
    };
    net.node_with("n1", change).await
}

async fn newest_order(node: &Node) -> Value {
    let (_, body) = node.admin("GET /v1/audit?limit=1", "").await;
    let audit: Value = serde_json::from_str(&body).unwrap();
    audit["entries"][0].clone()
}

#[tokio::test]
async fn each_token_has_its_right_and_its_name_in_the_audit_log() {
    let (folder, net) = (TempDir::new().unwrap(), Net::new());
    let path = folder.path().join("tokens");
    write(&path, &ALL);
    let n1 = node(&net, &path).await;
    let lists = [
        "GET /metrics",
        "GET /v1/users/alice",
        "GET /v1/sessions",
        "GET /v1/bans",
        "GET /v1/revocations",
        "GET /v1/nodes",
        "GET /v1/audit",
        "GET /",
        "GET /page/state",
    ];
    let usual = [
        ("POST /v1/kick", r#"{"uid":"alice"}"#),
        ("POST /v1/kick", r#"{"uid":"alice","dry_run":true}"#),
        ("POST /v1/ban", r#"{"uid":"alice"}"#),
        ("DELETE /v1/ban?uid=alice", ""),
        (
            "POST /v1/users/alice/message",
            r#"{"from":"shop","body":1}"#,
        ),
        ("POST /v1/drain", r#"{"rate":1}"#),
        ("DELETE /v1/drain", ""),
        ("POST /page/token", r#"{"account":"alice"}"#),
    ];
    let by_force = [("POST /v1/force-release", r#"{"name":"a","token":1}"#)];
    let wrong = "what a stranger shows";
    for (token, reads, operates, forces) in [
        (READS, 200, 403, 403),
        (OPERATES, 200, 200, 403),
        (ADMINISTERS, 200, 200, 200),
        (wrong, 401, 401, 401),
    ] {
        let lists = lists.iter().map(|request| (*request, "", reads));
        let usual = usual
            .iter()
            .map(|(request, body)| (*request, *body, operates));
        let by_force = by_force
            .iter()
            .map(|(request, body)| (*request, *body, forces));
        for (request, body, expected) in lists.chain(usual).chain(by_force) {
            // The answer to a wrong token is slow, so it tries one request of each right.
            if token == wrong
                && !["/nodes", "/kick", "/force-"]
                    .iter()
                    .any(|it| request.contains(it))
            {
                continue;
            }
            let (status, answer) = n1.admin_with(&word(token), request, body).await;
            assert_eq!(status, expected, "{request} by {token}: {answer}");
            if status == 403 {
                assert!(answer.contains("this needs the right"), "{answer}");
                assert!(!answer.contains(&word(token)), "{answer}");
            }
        }
    }
    // The token of the setting has every right, and the setting's name.
    let order = r#"{"uid":"otto"}"#;
    assert_eq!(n1.admin("POST /v1/ban", order).await.0, 200);
    assert_eq!(newest_order(&n1).await["by"], "admin_token");
    assert_eq!(
        n1.admin_with(&word(OPERATES), "POST /v1/ban", order)
            .await
            .0,
        200
    );
    assert_eq!(newest_order(&n1).await["by"], "anna");
    // The name that a request gives is not proved.
    let claims = "POST /v1/ban HTTP/1.1\r\nx-distlock-actor: boss\r\nx-rest: ";
    assert_eq!(n1.admin_with(&word(OPERATES), claims, order).await.0, 200);
    assert_eq!(newest_order(&n1).await["by"], "anna (boss)");
}

/// Signs in at the page. Returns the headers of the pass.
async fn sign_in(node: &Node, token: &str) -> String {
    let body = json!({"token": word(token)}).to_string();
    let request = format!(
        "POST /page/sign-in HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(node.admin).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("the pass", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    let part = |from: &str, to: char| {
        let (_, rest) = answer.split_once(from).unwrap();
        rest.split_once(to).unwrap().0.to_owned()
    };
    let (cookie, orders) = (part("distlock_admin_n1=", ';'), part(r#""pass":""#, '"'));
    format!("cookie: distlock_admin_n1={cookie}\r\nx-distlock-pass: {orders}")
}

async fn by_pass(node: &Node, pass: &str, request: &str, body: &str) -> u16 {
    let text = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\n{pass}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    http(node.admin, &text).await.0
}

#[tokio::test]
async fn tokens_and_their_passes_change_when_the_file_is_read_again() {
    let (folder, net) = (TempDir::new().unwrap(), Net::new());
    let path = folder.path().join("tokens");
    write(&path, &ALL);
    let n1 = node(&net, &path).await;
    let (anna, boss) = (
        sign_in(&n1, OPERATES).await,
        sign_in(&n1, ADMINISTERS).await,
    );
    let ban = ("POST /v1/ban", r#"{"uid":"otto"}"#);
    assert_eq!(by_pass(&n1, &anna, ban.0, ban.1).await, 200);
    assert_eq!(newest_order(&n1).await["by"], "anna");
    let release = ("POST /v1/force-release", r#"{"name":"a","token":1}"#);
    assert_eq!(by_pass(&n1, &anna, release.0, release.1).await, 403);
    assert_eq!(by_pass(&n1, &boss, release.0, release.1).await, 200);

    // Anna may only look from now on, and the boss has left.
    write(&path, &[("anna", "read", OPERATES)]);
    n1.reload().await.unwrap();
    assert_eq!(by_pass(&n1, &anna, "GET /v1/nodes", "").await, 200);
    assert_eq!(by_pass(&n1, &anna, ban.0, ban.1).await, 403);
    for request in ["GET /", "GET /v1/nodes"] {
        assert_eq!(by_pass(&n1, &boss, request, "").await, 401, "{request}");
    }
    assert_eq!(
        n1.admin_with(&word(ADMINISTERS), "GET /v1/nodes", "")
            .await
            .0,
        401
    );

    // A file that cannot be used changes nothing.
    for (lines, says) in [
        (vec![("anna", "all", OPERATES)], "gives \"anna\" no right"),
        (vec![("anna", "read", "short")], "at least 16 are needed"),
        (
            vec![("eve", "read", SENDS)],
            "line 1 has the token of send_token",
        ),
        (vec![], "holds 0 tokens"),
    ] {
        write(&path, &lines);
        let error = n1.reload().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.setting(), Some("admin_token_file"));
        let error = error.to_string();
        assert!(
            error.contains("gateway.admin_token_file") && error.contains(says),
            "{error}"
        );
        assert_eq!(by_pass(&n1, &anna, "GET /v1/nodes", "").await, 200);
    }
    fs::remove_file(&path).unwrap();
    n1.reload().await.unwrap_err();
    assert_eq!(by_pass(&n1, &anna, "GET /v1/nodes", "").await, 200);
    assert_eq!(n1.admin("GET /v1/nodes", "").await.0, 200);
}

#[tokio::test]
async fn a_file_of_tokens_stands_for_the_token_of_the_configuration() {
    let (folder, net) = (TempDir::new().unwrap(), Net::new());
    let path = folder.path().join("tokens");
    write(&path, &ALL);
    let mut config = config("n1");
    config.admin_token = None;
    config
        .set("admin_token_file", path.to_str().unwrap())
        .unwrap();
    // Beyond loopback some token is needed.
    let mut beyond = config.clone();
    beyond.set("admin_listen", "0.0.0.0:0").unwrap();
    beyond.set("insecure_listen", "true").unwrap();
    beyond.validate().unwrap();
    let store = distlock_core::Store::new(net.memory.lock(), net.memory.records());
    let gateway = distlock_gateway::Gateway::start(config, store)
        .await
        .unwrap();
    // No token is made that would have every right.
    assert!(gateway.made_admin_token().is_none());
    let n1 = Node::run(gateway);
    assert_eq!(
        n1.admin_with(&word(READS), "GET /v1/nodes", "").await.0,
        200
    );
    assert_eq!(n1.admin("GET /v1/nodes", "").await.0, 401);
}
