//! A change of `token_key`, node by node.

use distlock_gateway::{GatewayConfig, Secret};
use serde_json::json;

use crate::net::{Client, KEY, Net, Node, login_with, token_of};

const NEW: &str = "the key that takes the place of the other";
const THIRD: &str = "a key that no node of these has ever had";

/// Settings with which only a kick can end a session of another node. There is enough time for the
/// call, and the other node does not reconcile within the test.
fn keys(token_key: &str, also: Option<&str>) -> impl FnOnce(&mut GatewayConfig) {
    move |config| {
        config.token_key = Some(Secret::new(token_key));
        config.token_key_also = also.map(Secret::new);
        for (key, value) in [
            ("node_lease", "1h"),
            ("sweep", "1h"),
            ("kick_budget", "10s"),
        ] {
            config.set(key, value).unwrap();
        }
    }
}

/// Answers a login only after its kick is confirmed, however many calls the kick takes on a busy
/// machine.
fn strict(change: impl FnOnce(&mut GatewayConfig)) -> impl FnOnce(&mut GatewayConfig) {
    |config| {
        change(config);
        config.set("confirm", "strict").unwrap();
    }
}

/// Logs in with a token of this key. Returns the client, and whether the end of the older session
/// is confirmed.
async fn log_in(node: &Node, key: &str, device: &str) -> (Client, bool) {
    let mut client = node.connect().await;
    let token = token_of(key, "anna");
    client.send(&login_with(&token, device)).await;
    let ok = client.frame().await;
    assert_eq!(ok["type"], "login_ok", "{ok}");
    (client, ok["old_confirmed"] != "nobody")
}

#[tokio::test]
async fn during_a_key_change_nodes_accept_calls_and_logins_of_either_key() {
    let net = Net::new();
    let changed = net.node_with("n1", strict(keys(NEW, Some(KEY)))).await;
    let told = net.node_with("n2", strict(keys(KEY, Some(NEW)))).await;
    let (mut older, _) = log_in(&changed, KEY, "d0").await;
    for (number, (node, key)) in [(&told, NEW), (&changed, NEW), (&told, KEY), (&changed, KEY)]
        .into_iter()
        .enumerate()
    {
        let (newer, heard) = log_in(node, key, &format!("d{}", number + 1)).await;
        assert!(heard, "the kick of d{number}");
        let offline = older.frame().await;
        assert_eq!(
            (&offline["type"], &offline["code"]),
            (&json!("offline"), &json!(1))
        );
        older.leave().await;
        older = newer;
    }
}

#[tokio::test]
async fn during_a_key_change_a_third_key_is_refused() {
    let net = Net::new();
    let stranger = net
        .node_with("n3", |config| {
            keys(THIRD, None)(config);
            config.set("kick_budget", "300ms").unwrap();
        })
        .await;
    for (name, key, also) in [("n1", NEW, KEY), ("n2", KEY, NEW)] {
        let node = net.node_with(name, keys(key, Some(also))).await;
        let mut client = node.connect().await;
        let token = token_of(THIRD, "anna");
        client.send(&login_with(&token, "phone")).await;
        let denied = client.frame().await;
        assert_eq!(
            (&denied["type"], &denied["code"]),
            (&json!("denied"), &json!(5))
        );
        let (_older, _) = log_in(&node, key, "phone").await;
        let (_newer, heard) = log_in(&stranger, THIRD, "pc").await;
        assert!(!heard, "{name}");
        assert_eq!(node.kick.sessions(), 1, "{name}");
    }
}

/// The samples of the protocol's page mint tokens that a node accepts.
#[tokio::test]
async fn the_documented_samples_mint_tokens_for_a_login() {
    let page = include_str!("../../../../proto/README.md");
    let net = Net::new();
    let node = net.node_with("n1", keys(KEY, None)).await;
    for (language, program, flag) in [("python", "python3", "-c"), ("js", "node", "-e")] {
        let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
        let (sample, _) = rest.split_once("```").unwrap();
        let output = tokio::process::Command::new(program)
            .args([flag, sample])
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .output()
            .await
            .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{language}: {problem}");
        let token = String::from_utf8(output.stdout).unwrap();
        let mut client = node.connect().await;
        client.send(&login_with(token.trim(), language)).await;
        let answer = client.frame().await;
        assert_eq!(answer["type"], "login_ok", "{language}: {answer}");
        assert_eq!(answer["uid"], "anna");
    }
}
