//! `distlock gateway`: a node's settings, its tokens, its end.

use std::{
    io::{Read as _, Write as _},
    process::Stdio,
};

use distlock_harness::{Process, Signal};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::{connect_async, tungstenite::Message};

use crate::support::{Home, SOON, finish};

const KEY: &str = "a key that is long enough for HS256";
const NODE: [&str; 10] = [
    "gateway",
    "run",
    "--node",
    "n1",
    "--listen",
    "127.0.0.1:0",
    "--peer-listen",
    "127.0.0.1:0",
    "--admin-listen",
    "127.0.0.1:0",
];

fn node(home: &Home) -> (Process, Value) {
    let node = Process::spawn(home.distlock(NODE).env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)).unwrap();
    let line = node
        .wait_for_line(SOON, |line| line.starts_with('{'))
        .unwrap();
    (node, serde_json::from_str(&line).unwrap())
}

fn token(home: &Home, key: &str) -> String {
    let mint = ["gateway", "token", "--uid", "alice"];
    let done = finish(
        home.distlock(mint).env("DISTLOCK_GATEWAY_TOKEN_KEY", key),
        "",
    );
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.trim().to_owned()
}

/// Sends one login and gives the first answer.
fn log_in(ready: &Value, token: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let url = format!("ws://{}/ws", ready["listen"].as_str().unwrap());
        let (mut socket, _) = connect_async(url).await.unwrap();
        let login = json!({"type": "login", "token": token, "device": "phone", "class": "", "intent": "login"});
        socket.send(Message::text(login.to_string())).await.unwrap();
        loop {
            let message = tokio::time::timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap();
            if let Message::Text(text) = message {
                return serde_json::from_str(text.as_str()).unwrap();
            }
        }
    })
}

#[test]
fn a_node_says_when_it_is_ready_and_ends_on_term() {
    let home = Home::new();
    let (mut node, ready) = node(&home);
    assert_eq!(
        (&ready["event"], &ready["node"]),
        (&"ready".into(), &"n1".into())
    );
    for address in ["listen", "peer_listen", "admin_listen"] {
        let address = ready[address].as_str().unwrap();
        assert!(
            address.starts_with("127.0.0.1:") && !address.ends_with(":0"),
            "{ready}"
        );
    }
    let answer = log_in(&ready, &token(&home, KEY));
    assert_eq!(
        (&answer["type"], &answer["uid"]),
        (&"login_ok".into(), &"alice".into()),
        "{answer}"
    );
    node.signal(Signal::TERM).unwrap();
    assert_eq!(
        node.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        node.output()
    );
    assert_eq!(home.inspect("node/n1")["state"], "free");
}

#[test]
fn a_forged_token_is_refused_and_changes_nothing() {
    let home = Home::new();
    let (_node, ready) = node(&home);
    let forged = token(&home, "another key, just as long as the real one");
    let good = token(&home, KEY);
    let (head, signature) = good.rsplit_once('.').unwrap();
    let swapped: String = signature.chars().rev().collect();
    for bad in [
        forged.as_str(),
        &format!("{head}.{swapped}"),
        head,
        "",
        "garbage",
    ] {
        let answer = log_in(&ready, bad);
        assert!(
            ["denied", "error"].contains(&answer["type"].as_str().unwrap()),
            "{answer}"
        );
        assert!(!answer.to_string().contains(signature), "{answer}");
    }
    assert_eq!(
        home.sql("delete from distributed_record where record_key like 'sess/%'"),
        0,
        "no record was written"
    );
}

#[test]
fn settings_come_from_file_variable_and_flag_in_this_order() {
    let home = Home::new();
    let config = home.write("distlock.toml", &format!("[gateway]\nnode = \"file\"\ntoken_key = \"{KEY}\"\nlisten = \"127.0.0.1:0\"\npeer_listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n"));
    for (variable, flag, expected) in [
        (None, None, "file"),
        (Some("var"), None, "var"),
        (Some("var"), Some("flag"), "flag"),
    ] {
        let mut command = home.distlock(["gateway", "run", "--config", config.to_str().unwrap()]);
        if let Some(variable) = variable {
            command.env("DISTLOCK_GATEWAY_NODE", variable);
        }
        if let Some(flag) = flag {
            command.args(["--node", flag]);
        }
        let node = Process::spawn(&mut command).unwrap();
        let line = node
            .wait_for_line(SOON, |line| line.starts_with('{'))
            .unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&line).unwrap()["node"],
            expected
        );
    }
}

#[test]
fn wrong_settings_are_told_by_key_and_never_show_the_secret() {
    let home = Home::new();
    let run = |args: &[&str], key: &str| {
        let line = [&NODE, args].concat();
        let done = finish(
            home.distlock(line).env("DISTLOCK_GATEWAY_TOKEN_KEY", key),
            "",
        );
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        done
    };
    run(&[], "hunter2").failed_with(78, "token_key is 7 bytes long: at least 32");
    finish(&mut home.distlock(NODE), "").failed_with(78, "DISTLOCK_GATEWAY_TOKEN_KEY");
    run(&["--grace", "5"], KEY).failed_with(78, "grace");
    run(&["--node-lease", "25h"], KEY).failed_with(78, "node_lease");
    run(&["--tcp-listen", "nowhere"], KEY).failed_with(78, "tcp_listen");
    run(&["--policy", "triple"], KEY).failed_with(78, "policy");
    run(&["--token-key", "hunter2"], KEY).failed_with(64, "--token-key");
    run(&["--frobnicate", "1"], KEY).failed_with(64, "--frobnicate");
    let mint = |args: &[&str]| {
        finish(
            home.distlock([&["gateway", "token"], args].concat())
                .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY),
            "",
        )
    };
    mint(&[]).failed_with(64, "--uid");
    mint(&["--uid", ""]).failed_with(64, "uid is empty");
    mint(&["--uid", "alice", "--ttl", "25h"]).failed_with(64, "token ttl");
    assert_eq!(home.files(), [""; 0], "nothing was created");
}

#[test]
fn a_node_ends_with_its_standard_input_when_told_to() {
    let home = Home::new();
    let mut child = home
        .distlock([&NODE[..], &["--exit-with-stdin"]].concat())
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut byte = [0];
    output.read_exact(&mut byte).unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"still here\n").unwrap();
    assert!(child.try_wait().unwrap().is_none());
    drop(input);
    distlock_harness::eventually("the node ends", SOON, || {
        child.try_wait().unwrap().is_some()
    })
    .unwrap();
    assert!(child.wait().unwrap().success());
}
