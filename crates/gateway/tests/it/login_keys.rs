//! Logins by keys that the node does not have: from a file, and from a URL.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, extract::State, routing::get};
use distlock_core::{SystemClock, sync::Mutex, unix_time};
use distlock_gateway::{GatewayConfig, Secret};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::{
    net::{Client, Net, Node, login_with},
    signers::{Signer, claims},
};

fn now() -> u64 {
    unix_time(&SystemClock).as_secs()
}

fn with_file(path: &Path) -> impl FnOnce(&mut GatewayConfig) {
    let path = path.to_str().unwrap().to_owned();
    move |config| config.set("login_key_file", &path).unwrap()
}

/// Logs in with a token. Returns the client and the answer.
async fn log_in(node: &Node, token: &str, device: &str) -> (Client, Value) {
    let mut client = node.connect().await;
    client.send(&login_with(token, device)).await;
    let answer = client.frame().await;
    (client, answer)
}

async fn has_metric(node: &Node, line: &str) {
    let (_, metrics) = node.admin("GET /metrics", "").await;
    assert!(metrics.contains(line), "{line}: {metrics}");
}

#[tokio::test]
async fn a_file_of_keys_logs_clients_in_and_is_read_again() {
    let (folder, net) = (TempDir::new().unwrap(), Net::new());
    let path = folder.path().join("login.pub.pem");
    let [old, new] = [Signer::es256(), Signer::rs256()];
    fs::write(&path, old.pem()).unwrap();
    let node = net.node_with("n1", with_file(&path)).await;
    let token = |signer: &Signer| signer.token(Some("any"), &claims("anna", now()));
    let (mut first, ok) = log_in(&node, &token(&old), "d1").await;
    assert_eq!(
        (&ok["type"], &ok["uid"]),
        (&json!("login_ok"), &json!("anna"))
    );
    has_metric(&node, "distlock_login_keys 1").await;
    let (mut denied, answer) = log_in(&node, &token(&new), "d2").await;
    assert_eq!(
        (&answer["type"], &answer["code"]),
        (&json!("denied"), &json!(5)),
        "{answer}"
    );
    assert_eq!(denied.rest().await.1, Some(4505));

    fs::write(&path, [old.pem(), new.pem()].concat()).unwrap();
    node.reload().await.unwrap();
    has_metric(&node, "distlock_login_keys 2").await;
    let (_second, ok) = log_in(&node, &token(&new), "d3").await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    assert_eq!(first.frame().await["type"], "offline");
    // The node's own secret goes on to be accepted.
    let (_third, ok) = log_in(&node, &crate::net::token("anna"), "d4").await;
    assert_eq!(ok["type"], "login_ok", "{ok}");

    for wrong in [
        "",
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ] {
        fs::write(&path, wrong).unwrap();
        let error = node.reload().await.unwrap_err();
        assert_eq!(error.setting(), Some("login_key_file"), "{error}");
        assert!(
            error.to_string().contains("gateway.login_key_file is"),
            "{error}"
        );
        let (_, ok) = log_in(&node, &token(&new), "d5").await;
        assert_eq!(ok["type"], "login_ok", "{ok}");
    }
    has_metric(&node, "distlock_login_key_reads_total{result=\"failed\"} 2").await;
}

#[tokio::test]
async fn a_node_with_an_unusable_file_does_not_start() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("login.pub.pem");
    let net = Net::new();
    let store = distlock_core::Store::new(net.memory.lock(), net.memory.records());
    let mut config = crate::net::config("n1");
    with_file(&path)(&mut config);
    let error = distlock_gateway::Gateway::start(config, store)
        .await
        .unwrap_err();
    assert_eq!(error.setting(), Some("login_key_file"), "{error}");
}

type Keys = (Arc<Mutex<String>>, Arc<AtomicUsize>);

/// A server of keys: its address, its document, and the number of its requests.
async fn key_server(keys: &Value) -> (SocketAddr, Keys) {
    async fn serve(State((document, asked)): State<Keys>) -> String {
        asked.fetch_add(1, Ordering::SeqCst);
        document.lock().clone()
    }
    let state: Keys = (
        Arc::new(Mutex::new(json!({"keys": keys}).to_string())),
        Arc::default(),
    );
    let router = Router::new()
        .route("/keys", get(serve))
        .with_state(state.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (at, state)
}

#[tokio::test]
async fn a_login_with_an_unknown_key_gets_busy_and_its_session_after_a_read() {
    let [old, new] = [Signer::eddsa(), Signer::es256()];
    let (at, (document, asked)) = key_server(&json!([old.jwk("old")])).await;
    let net = Net::new();
    let node = net
        .node_with("n1", |config| {
            config.login_jwks_url = Some(Secret::new(format!("http://{at}/keys")));
            config.set("login_issuer", "https://login.example").unwrap();
            config.set("login_audience", "the game").unwrap();
        })
        .await;
    let token = |signer: &Signer, kid: &str| {
        let mut claims = claims("anna", now());
        claims["iss"] = json!("https://login.example");
        claims["aud"] = json!(["the game", "the shop"]);
        signer.token(Some(kid), &claims)
    };
    let (_session, ok) = log_in(&node, &token(&old, "old"), "d1").await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    // The issuer of the node's own tokens is not that of these keys.
    let foreign = old.token(Some("old"), &claims("anna", now()));
    let (_, answer) = log_in(&node, &foreign, "d1").await;
    assert_eq!(answer["type"], "denied", "{answer}");

    for number in 0..50 {
        let unknown = token(&new, &format!("new {number}"));
        let (mut client, busy) = log_in(&node, &unknown, "d2").await;
        assert_eq!(busy["type"], "busy", "{busy}");
        let wait = busy["retry_after_ms"].as_u64().unwrap();
        assert!((1000..=33_000).contains(&wait), "{busy}");
        assert_eq!(client.rest().await.1, Some(4004));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(node.kick.sessions(), 1);
    has_metric(&node, "distlock_login_key_unknown_total 50").await;

    *document.lock() = json!({"keys": [old.jwk("old"), new.jwk("new")]}).to_string();
    node.reload().await.unwrap();
    has_metric(&node, "distlock_login_keys 2").await;
    let (_session, ok) = log_in(&node, &token(&new, "new"), "d3").await;
    assert_eq!(ok["type"], "login_ok", "{ok}");

    "<html>".clone_into(&mut document.lock());
    let error = node.reload().await.unwrap_err().to_string();
    assert!(error.contains("is not a JWK set in JSON"), "{error}");
    assert!(!error.contains("/keys"), "{error}");
    let (_session, ok) = log_in(&node, &token(&new, "new"), "d4").await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
}

/// The folder of the library jose, which `scripts/test --install` fetches.
fn jose() -> String {
    let description = std::env::var("DISTLOCK_JOSE").unwrap_or_else(|_| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/get-server");
        let output = Command::new(script).args(["--where", "jose"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    });
    let description = Path::new(description.trim());
    assert!(
        description.exists(),
        "the library jose is needed for this test: scripts/get-server jose"
    );
    description.parent().unwrap().display().to_string()
}

/// Runs a program in a folder, and returns its output.
fn output_of(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(folder).output();
    let output =
        output.unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {problem}");
    String::from_utf8(output.stdout).unwrap()
}

/// The samples of the protocol's page make a key pair, and sign tokens that a node accepts.
#[tokio::test]
async fn the_documented_samples_sign_tokens_with_a_key_that_the_node_does_not_have() {
    let page = include_str!("../../../../proto/README.md");
    let (_, section) = page.split_once("### Signed with a private key\n").unwrap();
    let sample = |language: &str| {
        let (_, rest) = section.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let folder = TempDir::new().unwrap();
    output_of(folder.path(), "sh", &["-ec", sample("sh")]);
    fs::create_dir(folder.path().join("node_modules")).unwrap();
    std::os::unix::fs::symlink(jose(), folder.path().join("node_modules/jose")).unwrap();
    fs::write(folder.path().join("sign.mjs"), sample("js")).unwrap();
    let net = Net::new();
    let node = net
        .node_with("n1", with_file(&folder.path().join("login.pub.pem")))
        .await;
    for (program, arguments) in [
        // The libraries are Debian's.
        ("/usr/bin/python3", ["-c", sample("python")].as_slice()),
        ("node", &["sign.mjs"]),
    ] {
        let token = output_of(folder.path(), program, arguments);
        let (_client, answer) = log_in(&node, token.trim(), "phone").await;
        assert_eq!(answer["type"], "login_ok", "{program}: {answer}");
        assert_eq!(answer["uid"], "anna");
    }
}
