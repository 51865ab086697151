//! `distlock gateway`: the settings of a node, its tokens, its start and end, and orders to a node.

use std::{
    ffi::OsStr,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::ffi::OsStrExt as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use distlock::backend::sync::Mutex;
use distlock_harness::{Pki, Process, Signal};
use futures_util::{SinkExt as _, StreamExt as _};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

use crate::support::{Home, SOON, UnreadPipe, finish, run_through, wait_until_blocked_on};

pub(crate) const KEY: &str = "a key that is long enough for HS256";
pub(crate) const NODE: [&str; 10] = [
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

fn start_default_node(home: &Home) -> (Process, Value) {
    start_node(home.distlock(NODE).env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY))
}

/// Starts a node, and returns it with its ready line.
pub(crate) fn start_node(command: &mut Command) -> (Process, Value) {
    let node = Process::spawn(command).unwrap();
    let line = node
        .wait_for_line(SOON, |line| line.starts_with('{'))
        .unwrap();
    (node, serde_json::from_str(&line).unwrap())
}

pub(crate) fn mint_token(home: &Home, key: &str) -> String {
    mint_token_for("alice", home, key)
}

fn mint_token_for(uid: &str, home: &Home, key: &str) -> String {
    let mint = ["gateway", "token", "--uid", uid];
    let done = finish(
        home.distlock(mint).env("DISTLOCK_GATEWAY_TOKEN_KEY", key),
        "",
    );
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.trim().to_owned()
}

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Logs a client in. The client stays logged in until both values are dropped.
pub(crate) fn log_in_and_stay(ready: &Value, token: &str) -> (Socket, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let socket = runtime.block_on(async {
        let url = format!("ws://{}/ws", ready["listen"].as_str().unwrap());
        let (mut socket, _) = connect_async(url).await.unwrap();
        let login = json!({"type": "login", "token": token, "device": "phone"});
        socket.send(Message::text(login.to_string())).await.unwrap();
        let answer = tokio::time::timeout(SOON, socket.next()).await.unwrap();
        let answer = answer.unwrap().unwrap().into_text().unwrap();
        assert!(answer.as_str().contains("login_ok"), "{answer}");
        socket
    });
    (socket, runtime)
}

/// Sends one login, and returns the first answer of the node.
pub(crate) fn log_in(ready: &Value, token: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let url = format!("ws://{}/ws", ready["listen"].as_str().unwrap());
        let connected = tokio::time::timeout(SOON, connect_async(url)).await;
        let (mut socket, _) = connected.unwrap().unwrap();
        let login = json!({
            "type": "login",
            "token": token,
            "device": "phone",
            "class": "",
            "intent": "login",
        });
        socket.send(Message::text(login.to_string())).await.unwrap();
        loop {
            let message = tokio::time::timeout(SOON, socket.next()).await;
            let message = message.unwrap().unwrap().unwrap();
            if let Message::Text(text) = message {
                return serde_json::from_str(text.as_str()).unwrap();
            }
        }
    })
}

#[test]
fn a_node_says_when_it_is_ready_and_ends_on_term() {
    let home = Home::new();
    let (mut node, ready) = start_default_node(&home);
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
    let answer = log_in(&ready, &mint_token(&home, KEY));
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

/// A signal whose default action would end the process at once must not leave the name leased and
/// the clients without a notice. Each of these nodes has one client.
#[test]
fn a_node_ends_in_an_orderly_way_on_every_signal_that_would_end_it() {
    let home = Home::new();
    let token = mint_token(&home, KEY);
    for signal in [
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::QUIT,
        Signal::IO,
        Signal::XCPU,
    ] {
        // The client does not leave by itself, so the node waits for the grace.
        let mut command = home.distlock([&NODE[..], &["--grace", "100ms"]].concat());
        let (mut node, ready) = start_node(command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY));
        let (mut client, runtime) = log_in_and_stay(&ready, &token);
        node.signal(signal).unwrap();
        let notice = runtime.block_on(async {
            let frame = tokio::time::timeout(SOON, client.next()).await.unwrap();
            frame.map(|frame| frame.map(|frame| frame.to_string()))
        });
        let ended = node.wait(SOON).unwrap();
        assert_eq!(ended.code(), Some(0), "{signal:?}: {}", node.output());
        let notice: Value = serde_json::from_str(&notice.unwrap().unwrap()).unwrap();
        assert_eq!(
            (&notice["type"], &notice["code"]),
            (&json!("offline"), &json!(6))
        );
        assert_eq!(home.inspect("node/n1")["state"], "free", "{signal:?}");
    }
}

#[test]
fn a_node_without_certificates_says_so_at_hup_and_goes_on() {
    let home = Home::new();
    let (mut node, ready) = start_default_node(&home);
    for _ in 0..2 {
        node.signal(Signal::HUP).unwrap();
    }
    node.wait_for_line(SOON, |line| {
        line.contains("HUP: no certificate, login key or token file is configured")
    })
    .unwrap();
    let answer = log_in(&ready, &mint_token(&home, KEY));
    assert_eq!(answer["type"], "login_ok", "{answer}");
    node.signal(Signal::TERM).unwrap();
    assert_eq!(
        node.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        node.output()
    );
}

#[test]
fn a_node_whose_ready_line_cannot_be_printed_ends() {
    let home = Home::new();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let mut node = home.distlock(NODE);
    let node = node.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY).stdout(closed);
    let done = node.stderr(Stdio::piped()).spawn().unwrap();
    let done = done.wait_with_output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(69), "{told}");
    assert!(told.contains("nobody reads standard output"), "{told}");
    assert_eq!(home.inspect("node/n1")["state"], "free");
}

#[test]
fn a_node_goes_on_when_nobody_reads_its_events() {
    let home = Home::new();
    let token = mint_token(&home, KEY);
    let mut unread = UnreadPipe::new();
    let mut node = home.distlock([&NODE[..], &["--events"]].concat());
    // With a single worker thread, one blocking call would block the whole node.
    node.env("TOKIO_WORKER_THREADS", "1")
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY);
    let mut node = Process::spawn(&mut unread.redirect(1, &node)).unwrap();
    let ready = serde_json::from_str(&unread.read_line()).unwrap();
    unread.fill();
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    wait_until_blocked_on(node.id(), 1);
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    node.signal(Signal::TERM).unwrap();
    let ended = node.wait(SOON).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", node.output());
}

const ADMIN: &str = "what administrators show";

/// `DISTLOCK_LOG` is not set here.
#[test]
fn orders_and_wrong_admin_tokens_are_logged_by_default() {
    let home = Home::new();
    let (mut node, ready) = start_node_with_token(&home, ADMIN);
    let url = format!("http://{}", ready["admin_listen"].as_str().unwrap());
    for (token, code) in [(ADMIN, 0), ("a guess, as long as it", 77)] {
        let mut ban = home.distlock(["gateway", "ban", "mallory", "--admin", &url]);
        let done = finish(ban.env("DISTLOCK_GATEWAY_ADMIN_TOKEN", token), "");
        assert_eq!(done.code, code, "{done:?}");
    }
    node.signal(Signal::TERM).unwrap();
    node.wait(SOON).unwrap();
    let log = node.output();
    for (text, also) in [
        ("action=\"ban\"", "mallory"),
        ("a wrong admin token was shown", "from=127.0.0.1"),
    ] {
        let line = log.lines().find(|line| line.contains(text));
        assert!(
            line.is_some_and(|line| line.contains(also)),
            "{text} in {log}"
        );
    }
}

/// The command by which the image checks its health, for a container whose first process has this
/// command line.
fn health_check(home: &Home, first_process: &str) -> Command {
    let (_, check) = include_str!("../../docker/Dockerfile")
        .split_once("HEALTHCHECK ")
        .unwrap();
    let (_, check) = check.split_once(" CMD ").unwrap();
    let (check, _) = check.split_once("\n#").unwrap();
    let line = home.write("cmdline", &first_process.replace(' ', "\0"));
    let script = check
        .replace("/proc/1/cmdline", line.to_str().unwrap())
        .replace("distlock gateway health", r#""$0" "$@""#);
    assert!(script.contains("$0"), "{check}");
    run_through("sh", ["-c", &script], &home.distlock(["gateway", "health"]))
}

#[test]
fn the_health_of_a_node_is_an_exit_code_and_needs_no_token() {
    let home = Home::new();
    let (mut node, ready) = start_node_with_token(&home, ADMIN);
    let address = ready["admin_listen"].as_str().unwrap().to_owned();
    // In a container the variables of the node are also those of the health check.
    let ask = |mut command: Command| {
        command.env("DISTLOCK_GATEWAY_ADMIN_LISTEN", &address);
        finish(&mut command, "")
    };
    let health = || home.distlock(["gateway", "health"]);
    let asked = ask(health());
    assert_eq!(
        (asked.code, asked.stdout.as_str()),
        (0, "node n1 is up, 0 sessions\n"),
        "{asked:?}"
    );
    let image = |first: &str| ask(health_check(&home, first)).code;
    for node in [
        "distlock gateway run ",
        "/sbin/docker-init -- distlock --json gateway --config x run --node n1 ",
    ] {
        assert_eq!(image(node), 0, "{node}");
    }

    let mut drain = home.distlock(["gateway", "drain"]);
    drain.env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN);
    assert_eq!(ask(drain).code, 0);
    let asked = ask(home.distlock(["gateway", "health", "--json"]));
    assert_eq!(
        (asked.code, &asked.json()["status"]),
        (1, &"draining".into()),
        "{asked:?}"
    );
    for (first, code) in [
        ("distlock gateway run ", 1),
        ("docker-init -- distlock gateway run ", 1),
        ("distlock run gateway -- true ", 0),
        ("distlock demo ", 0),
    ] {
        assert_eq!(image(first), code, "{first}");
    }

    node.signal(Signal::TERM).unwrap();
    node.wait(SOON).unwrap();
    ask(health()).assert_failed(1, &address);
    assert_eq!(image("distlock gateway run "), 1);
}

fn start_node_with_token(home: &Home, token: &str) -> (Process, Value) {
    let mut node = home.distlock(NODE);
    node.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", token)
        .env_remove("DISTLOCK_LOG");
    start_node(&mut node)
}

#[test]
fn no_log_shows_a_credential_or_a_message_of_a_client() {
    let home = Home::new();
    let admin = "canary of the administrator";
    let start = |name| {
        let words = NODE.map(|word| if word == "n1" { name } else { word });
        let mut node = home.distlock([&words[..], &["--events"]].concat());
        node.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", admin)
            .env("DISTLOCK_LOG", "trace,tungstenite::protocol=trace");
        start_node(&mut node)
    };
    let (mut nodes, ready): (Vec<_>, Vec<_>) = ["n1", "n2"].map(start).into_iter().unzip();
    let token = mint_token(&home, KEY);
    let _superseded = log_in_and_stay(&ready[0], &token);
    let (mut socket, runtime) = log_in_and_stay(&ready[1], &token);
    let message = "canary of a message";
    runtime.block_on(async {
        let send = json!({"type": "send", "to": "alice", "body": message, "id": "1"});
        socket.send(Message::text(send.to_string())).await.unwrap();
        let told = async {
            while let Some(frame) = socket.next().await {
                if frame.unwrap().to_string().contains(message) {
                    return;
                }
            }
        };
        tokio::time::timeout(SOON, told).await.unwrap();
    });
    let mut lookup = home.distlock(["gateway", "lookup", "alice", "--admin"]);
    let url = format!("http://{}", ready[1]["admin_listen"].as_str().unwrap());
    lookup
        .arg(url)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", admin)
        .env("DISTLOCK_LOG", "trace");
    let looked = finish(&mut lookup, "");
    assert_eq!(looked.code, 0, "{looked:?}");
    let mut shown = looked.stdout + &looked.stderr;
    for node in &mut nodes {
        shown += &std::fs::read_to_string(format!("/proc/{}/cmdline", node.id())).unwrap();
        node.signal(Signal::TERM).unwrap();
        node.wait(SOON).unwrap();
        shown += &node.output();
    }
    for there in ["TRACE", "a client connected by WebSocket", "\"kick_sent\""] {
        assert!(shown.contains(there), "{there:?} is not in {shown}");
    }
    // The test looks for absent text, so the log must be complete.
    assert!(!shown.contains("lines left out here"), "{shown}");
    let (_, signature) = token.rsplit_once('.').unwrap();
    for secret in [signature, message, admin, KEY] {
        let seen = shown.lines().find(|line| line.contains(secret));
        assert_eq!(seen, None, "{secret:?}");
    }
}

#[test]
fn a_node_that_waits_for_its_name_ends_on_term() {
    let home = Home::new();
    let (_first, _) = start_default_node(&home);
    let line = [&NODE[..], &["--node-lease", "10m"]].concat();
    let mut second =
        Process::spawn(home.distlock(line).env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)).unwrap();
    second
        .wait_for_line(SOON, |line| line.contains("waits for its lease"))
        .unwrap();
    second.signal(Signal::TERM).unwrap();
    let ended = second.wait(SOON).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", second.output());
    assert_eq!(home.inspect("node/n1")["state"], "held", "by the first");
}

#[test]
fn a_forged_token_is_refused_and_changes_nothing() {
    let home = Home::new();
    let (_node, ready) = start_default_node(&home);
    let forged = mint_token(&home, "another key, just as long as the real one");
    let good = mint_token(&home, KEY);
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
fn during_a_change_of_keys_both_keys_are_accepted_and_the_first_one_mints() {
    let home = Home::new();
    let old = "the key that was used until now, as long";
    let changing = |args: &[&str]| {
        let mut command = home.distlock(args);
        command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY);
        command.env("DISTLOCK_GATEWAY_TOKEN_KEY_ALSO", old);
        command
    };
    let minted = finish(&mut changing(&["gateway", "token", "--uid", "alice"]), "");
    let (_changed, alone) = start_default_node(&home);
    let answer = log_in(&alone, minted.stdout.trim());
    assert_eq!(answer["type"], "login_ok", "{answer}");

    let mut line = NODE;
    line[3] = "n2";
    let node = Process::spawn(&mut changing(&line)).unwrap();
    let ready = node.wait_for_line(SOON, |line| line.starts_with('{'));
    let ready = serde_json::from_str(&ready.unwrap()).unwrap();
    for (key, answered) in [
        (KEY, "login_ok"),
        (old, "login_ok"),
        ("a key that nobody here has ever heard of", "denied"),
    ] {
        let answer = log_in(&ready, &mint_token(&home, key));
        assert_eq!(answer["type"], answered, "{answer}");
    }
    assert!(!node.output().contains("as long"), "{}", node.output());
}

#[test]
fn a_flag_overrides_a_variable_and_a_variable_overrides_the_file() {
    for (variable, flag, expected) in [
        (None, None, "file"),
        (Some(""), None, "file"),
        (Some("var"), None, "var"),
        (Some("var"), Some("flag"), "flag"),
    ] {
        let home = Home::new();
        let config = home.write(
            "distlock.toml",
            &format!(
                "[gateway]\nnode = \"file\"\ntoken_key \
        = \"{KEY}\"\nlisten = \"127.0.0.1:0\"\npeer_listen = \"127.0.0.1:0\"\nadmin_listen = \
        \"127.0.0.1:0\"\n"
            ),
        );
        let mut command = home.distlock(["gateway", "run", "--config", config.to_str().unwrap()]);
        if let Some(variable) = variable {
            command.env("DISTLOCK_GATEWAY_NODE", variable);
        }
        if let Some(flag) = flag {
            command.args(["--node", flag]);
        }
        let (_node, ready) = start_node(&mut command);
        assert_eq!(ready["node"], expected);
        let admin = format!("[gateway]\nadmin_listen = {}\n", ready["admin_listen"]);
        let admin = home.write("admin.toml", &admin);
        let line = ["gateway", "nodes", "--config", admin.to_str().unwrap()];
        let mut nodes = home.distlock(line);
        let done = finish(nodes.env("DISTLOCK_GATEWAY_ADMIN", ""), "");
        assert!(done.stdout.starts_with(expected), "{done:?}");
    }
    let home = Home::new();
    let mut nodes = home.distlock(["gateway", "nodes", "--admin", ""]);
    finish(&mut nodes, "").assert_failed(64, "http://HOST:PORT");
}

#[test]
fn errors_of_settings_name_the_key_and_never_show_a_secret() {
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
    run(&[], "hunter2").assert_failed(78, "token_key is 7 bytes long: at least 32");
    // A value that is not UTF-8 must not count as absent.
    let mut command = home.distlock(NODE);
    command.env("DISTLOCK_GATEWAY_TOKEN_KEY", OsStr::from_bytes(&[0xff; 32]));
    finish(&mut command, "").assert_failed(78, "DISTLOCK_GATEWAY_TOKEN_KEY is not UTF-8");
    finish(&mut home.distlock(NODE), "").assert_failed(78, "DISTLOCK_GATEWAY_TOKEN_KEY");
    run(&["--grace", "5"], KEY).assert_failed(78, "grace");
    run(&["--node-lease", "25h"], KEY).assert_failed(78, "node_lease");
    run(&["--tcp-listen", "nowhere"], KEY).assert_failed(78, "tcp_listen");
    let said = |args: &[&str], config: &str, place: &str| {
        let file = home.write("distlock.toml", config);
        let line = [&NODE, args, &["--config", file.to_str().unwrap()]].concat();
        let mut command = home.distlock(line);
        command.env("DISTLOCK_GATEWAY_MAX_FRAME", "1");
        command.env_remove("DISTLOCK_GATEWAY_ADMIN_TOKEN");
        let done = finish(&mut command, "");
        done.assert_failed(78, "gateway.");
        assert!(done.stderr.contains(place), "{place:?} is not in {done:?}");
        for secret in ["hunter2", KEY] {
            assert!(!done.stderr.contains(secret), "{done:?}");
        }
    };
    let table = |line: &str| format!("[gateway]\ntoken_key = \"{KEY}\"\n{line}\n");
    for (line, key) in [
        (
            "node_lease = \"1ms\"",
            "distlock.toml:3:14: gateway.node_lease is 1ms",
        ),
        (
            "tcp_listen = \"x\"",
            "distlock.toml:3:14: gateway.tcp_listen is \"x\"",
        ),
        (
            "admin_token = \"hunter2\"",
            "distlock.toml:3:15: gateway.admin_token is 7",
        ),
        (
            "admin_token = \"a token of both kinds\"\nsend_token = \"a token of both kinds\"",
            "distlock.toml:4:14: gateway.send_token is the same as admin_token",
        ),
        (
            "confirm = \"always\"",
            "distlock.toml:3:11: unknown value `always` of `gateway.confirm`: known are",
        ),
        ("", " DISTLOCK_GATEWAY_MAX_FRAME: gateway.max_frame is 1"),
    ] {
        said(&[], &table(line), key);
    }
    let short = "[gateway]\n  token_key = \"hunter2\"";
    said(&[], short, "distlock.toml:2:15: gateway.token_key is 7");
    for (also, place) in [
        (
            "hunter2",
            "distlock.toml:3:18: gateway.token_key_also is 7 bytes long: at least 32",
        ),
        (
            KEY,
            "distlock.toml:3:18: gateway.token_key_also is the same",
        ),
    ] {
        said(&[], &table(&format!("token_key_also = \"{also}\"")), place);
    }
    let mut also = home.distlock(NODE);
    also.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY);
    let done = finish(also.env("DISTLOCK_GATEWAY_TOKEN_KEY_ALSO", "hunter2"), "");
    done.assert_failed(
        78,
        "DISTLOCK_GATEWAY_TOKEN_KEY_ALSO: gateway.token_key_also is 7",
    );
    assert!(!done.stderr.contains("hunter2"), "{done:?}");
    also.env_remove("DISTLOCK_GATEWAY_TOKEN_KEY");
    let done = finish(&mut also, "");
    done.assert_failed(78, "gateway.token_key is not set");
    assert!(!done.stderr.contains("hunter2"), "{done:?}");
    said(
        &["--grace", "1ms"],
        &table("grace = \"2ms\""),
        " --grace: gateway.grace is 1ms",
    );
    run(&["--policy", "triple"], KEY).assert_failed(78, "policy");
    run(&["--token-key", "hunter2"], KEY).assert_failed(64, "--token-key");
    run(&["--token-key-also", "hunter2"], KEY).assert_failed(64, "--token-key-also");
    run(&["--frobnicate", "1"], KEY).assert_failed(64, "--frobnicate");
    let mint = |args: &[&str]| {
        finish(
            home.distlock([&["gateway", "token"], args].concat())
                .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY),
            "",
        )
    };
    mint(&[]).assert_failed(64, "--uid");
    mint(&["--uid", ""]).assert_failed(64, "uid is empty");
    mint(&["--uid", "alice", "--ttl", "25h"]).assert_failed(64, "token ttl");
    assert_eq!(home.files(), ["distlock.toml"], "nothing was created");
}

#[test]
fn a_node_ends_with_its_standard_input_if_the_flag_asks_for_it() {
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

#[test]
fn an_administrator_looks_up_kicks_bans_drains_and_lists() {
    let home = Home::new();
    let (_node, ready) = start_default_node(&home);
    let url = format!("http://{}", ready["admin_listen"].as_str().unwrap());
    let ask = |args: &[&str]| {
        let line = [&["gateway"], args, &["--admin", &url]].concat();
        finish(&mut home.distlock(line), "")
    };
    let done = ask(&["nodes", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let nodes = done.json();
    assert_eq!(
        (&nodes["node"], &nodes["state"]),
        (&"n1".into(), &"up".into())
    );
    assert!(ask(&["nodes"]).stdout.starts_with("n1 up boot "));

    let done = ask(&["lookup", "alice"]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "alice is not logged in\n")
    );
    let token = mint_token(&home, KEY);
    let (socket, runtime) = log_in_and_stay(&ready, &token);
    let done = ask(&["lookup", "alice"]);
    assert!(done.stdout.contains("device phone"), "{done:?}");

    let done = ask(&["kick", "--uid", "alice", "--dry-run"]);
    assert!(done.stdout.contains("would end"), "{done:?}");
    let done = ask(&["kick", "--uid", "alice", "--reason", "out", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.json()["kicked"][0]["gone"], true);
    let done = ask(&["kick", "--all"]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "no session matches\n")
    );
    drop((socket, runtime));

    assert_eq!(
        ask(&["ban", "alice", "--ttl", "1h", "--reason", "spam"]).code,
        0
    );
    assert_eq!(log_in(&ready, &token)["code"], 5);
    assert!(
        ask(&["lookup", "alice"])
            .stdout
            .starts_with("alice is banned: spam (until 20")
    );
    assert_eq!(ask(&["ban", "alice", "--lift"]).code, 0);
    assert_eq!(ask(&["ban", "alice", "--lift"]).code, 76);
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");

    let done = ask(&["drain", "--rate", "50"]);
    assert!(done.stdout.starts_with("node n1 is draining, "), "{done:?}");
    assert_eq!(log_in(&ready, &token)["code"], 6);
    assert!(
        ask(&["drain", "--undo"])
            .stdout
            .starts_with("node n1 is up, ")
    );
}

#[test]
fn wrong_orders_to_a_node_end_with_documented_codes() {
    let home = Home::new();
    let mut command = home.distlock(NODE);
    command
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", "hunter2 hunter2 hunter2");
    let (_node, ready) = start_node(&mut command);
    let url = format!("http://{}", ready["admin_listen"].as_str().unwrap());
    let ask = |args: &[&str], token: &str| {
        let line = [&["gateway"], args].concat();
        let mut command = home.distlock(line);
        command
            .env("DISTLOCK_GATEWAY_ADMIN", &url)
            .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", token);
        let done = finish(&mut command, "");
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
        done
    };
    let good = "hunter2 hunter2 hunter2";
    assert_eq!(ask(&["nodes"], good).code, 0);
    // `--backend` is refused here, because the node uses its own store.
    let other = ["nodes", "--backend", "memory:"];
    ask(&other, good).assert_failed(64, "'--backend <URL>' says nothing here");
    ask(&["nodes"], "").assert_failed(77, "a bearer token is needed");
    // This token has a line end, as a secret that was read from a file may have.
    let line = format!("{good}\n");
    ask(&["nodes"], &line).assert_failed(
        78,
        "DISTLOCK_GATEWAY_ADMIN_TOKEN: gateway.admin_token cannot",
    );
    ask(&["nodes"], "hunter2 hunter2").assert_failed(77, "a bearer token is needed");
    ask(&["kick"], good).assert_failed(64, "--uid");
    ask(&["kick", "--uid", "a", "--all"], good).assert_failed(64, "--all");
    ask(&["kick", "--uid", ""], good).assert_failed(64, "uid is empty");
    ask(&["kick", "--session", "x"], good).assert_failed(64, "a session is a UUID");
    ask(&["lookup", ""], good).assert_failed(64, "uid is empty");
    ask(&["drain", "--rate", "abc"], good).assert_failed(64, "a rate is a whole number");
    ask(&["kick", "--uid", "a", "--reason", "\u{7}"], good).assert_failed(64, "control character");
    ask(&["ban", "a", "--ttl", "0s"], good).assert_failed(64, "ban ttl");
    ask(&["drain", "--rate", "0"], good).assert_failed(64, "drain rate is 0");
    ask(&["nodes", "--admin", "ftp://x:1"], good).assert_failed(64, "http://HOST:PORT");
    ask(&["nodes", "--admin", "http://127.0.0.1:1"], good).assert_failed(69, "127.0.0.1:1");
}

/// The token and the address of the page are printed on standard error, for the person who started
/// the node. They must not be in the results.
#[test]
fn without_an_admin_token_a_node_generates_and_prints_one() {
    let home = Home::new();
    let mut command = home.distlock(NODE);
    command
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env_remove("DISTLOCK_GATEWAY_ADMIN_TOKEN");
    let node = Process::spawn(&mut command).unwrap();
    let line = |starts: &str| node.wait_for_line(SOON, |line| line.starts_with(starts));
    let line = |starts: &str| line(starts).unwrap();
    let ready: Value = serde_json::from_str(&line("{")).unwrap();
    let page = ready["page"].as_str().unwrap();
    assert_eq!(
        page,
        format!("http://{}/", ready["admin_listen"].as_str().unwrap())
    );
    let commands = line("  commands: export DISTLOCK_GATEWAY_ADMIN_TOKEN=");
    let token = commands.split_once('=').unwrap().1;
    assert!(token.len() >= 32, "{commands}");
    assert!(line("  page:").ends_with(&format!("{page}#token={token}")));
    assert!(!ready.to_string().contains(token));
    let ask = |token: &str| {
        let mut command = home.distlock(["gateway", "nodes", "--admin", page]);
        command.env("DISTLOCK_GATEWAY_ADMIN_TOKEN", token);
        finish(&mut command, "").code
    };
    assert_eq!((ask(token), ask("a guess of some length")), (0, 77));
}

#[test]
fn the_admin_http_uses_tls_and_certificates_are_reloaded_at_hup() {
    let (home, pki, later) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let path = |name: &str| pki.path(name).to_str().unwrap().to_owned();
    let mut command = home.distlock(NODE);
    command
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_TLS_KEY", path("server.key"))
        .args(["--tls-cert", &path("server.crt")]);
    let (node, ready) = start_node(&mut command);
    let page = ready["page"].as_str().unwrap().to_owned();
    assert!(page.starts_with("https://127.0.0.1:"), "{page}");
    let ask = |pki: &Pki, url: &str| {
        let mut command = home.distlock(["gateway", "nodes", "--admin", url]);
        command.env("SSL_CERT_FILE", pki.path("ca.crt"));
        finish(&mut command, "")
    };
    assert_eq!(ask(&pki, &page).code, 0, "{:?}", ask(&pki, &page));
    ask(&later, &page).assert_failed(69, "certificate");
    ask(&pki, &page.replace("https", "http")).assert_failed(69, "127.0.0.1");

    for name in ["server.crt", "server.key"] {
        std::fs::copy(later.path(name), pki.path(name)).unwrap();
    }
    node.signal(Signal::HUP).unwrap();
    node.wait_for_line(SOON, |line| {
        line.contains("certificates, keys, secrets and tokens were read again")
    })
    .unwrap();
    assert_eq!(ask(&later, &page).code, 0);
    std::fs::write(pki.path("server.key"), "no key").unwrap();
    node.signal(Signal::HUP).unwrap();
    node.wait_for_line(SOON, |line| line.contains("the node keeps the old ones"))
        .unwrap();
    assert_eq!(ask(&later, &page).code, 0);
}

/// The open of a FIFO waits for a writer. With a single worker thread, one such wait would stop the
/// whole node.
#[test]
fn a_certificate_file_that_blocks_does_not_stop_a_node() {
    let (home, pki) = (Home::new(), Pki::new().unwrap());
    let path = |name: &str| pki.path(name).to_str().unwrap().to_owned();
    let mut command = home.distlock(NODE);
    command
        .env("TOKIO_WORKER_THREADS", "1")
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_TLS_KEY", path("server.key"))
        .env("SSL_CERT_FILE", path("ca.crt"))
        .args(["--tls-cert", &path("server.crt")]);
    let (node, ready) = start_node(&mut command);
    std::fs::remove_file(pki.path("server.crt")).unwrap();
    let made = Command::new("mkfifo").arg(pki.path("server.crt")).status();
    assert!(made.unwrap().success());
    node.signal(Signal::HUP).unwrap();
    let told = node.wait_for_line(SOON, |line| line.contains("the node keeps the old ones"));
    let told = told.unwrap();
    assert!(told.contains("it is no regular file"), "{told}");
    let url = ready["page"].as_str().unwrap();
    let mut ask = home.distlock(["gateway", "nodes", "--admin", url]);
    let done = finish(ask.env("SSL_CERT_FILE", pki.path("ca.crt")), "");
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn a_certificate_file_that_is_endless_or_too_long_is_refused() {
    let (home, pki) = (Home::new(), Pki::new().unwrap());
    let long = pki.path("long.crt");
    let mut text = std::fs::read(pki.path("server.crt")).unwrap();
    text.resize(1 + (1 << 20), b'\n');
    std::fs::write(&long, text).unwrap();
    for (file, says) in [
        (long.to_str().unwrap(), "it has more than 1048576 bytes"),
        ("/dev/zero", "it is no regular file"),
    ] {
        let mut command = home.distlock(NODE);
        command
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("DISTLOCK_GATEWAY_TLS_KEY", pki.path("server.key"))
            .args(["--tls-cert", file]);
        let done = finish(&mut command, "");
        done.assert_failed(78, "gateway.tls_cert");
        assert!(done.stderr.contains(says), "{done:?}");
    }
}

/// Starts an HTTPS service that answers every question with "yes" and counts the questions.
fn https_service(pki: &Pki) -> (SocketAddr, Arc<AtomicU32>) {
    let yes = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
    // The body of a request is a JSON object, and its head contains no brace. So the request is
    // complete when it ends with a brace.
    https_server(pki, b"}", Arc::new(Mutex::new(yes.to_owned())))
}

/// Starts an HTTPS server that gives this answer to each request that ends with `end`, and counts
/// the requests.
fn https_server(
    pki: &Pki,
    end: &'static [u8],
    answer: Arc<Mutex<String>>,
) -> (SocketAddr, Arc<AtomicU32>) {
    let chain = CertificateDer::from_pem_file(pki.path("server.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.path("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
    let counts = Arc::clone(&asked);
    thread::spawn(move || {
        let config = Arc::new(config);
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut question = Vec::new();
            let mut part = [0; 4096];
            while !question.ends_with(end) {
                match stream.read(&mut part) {
                    Ok(length @ 1..) => question.extend_from_slice(&part[..length]),
                    // A node that does not trust this certificate closes the connection.
                    _ => break,
                }
            }
            if question.ends_with(end) {
                counts.fetch_add(1, Ordering::SeqCst);
                let answer = answer.lock().clone();
                stream.write_all(answer.as_bytes()).unwrap();
                stream.flush().unwrap();
            }
        }
    });
    (at, asked)
}

/// A login service: the answers of its server of keys, before and after it took another key, and a
/// token of each key.
const LOGIN_SERVICE: &str = r#"
import json, time
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

def answer(jwk):
    body = json.dumps({"keys": [jwk]})
    head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head + body

signed = []
for kid in ["one", "two"]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    jwk["kid"] = kid
    now = int(time.time())
    claims = {"sub": "alice", "iss": "distlock", "aud": "distlock-gateway",
              "iat": now, "exp": now + 600}
    token = jwt.encode(claims, key, algorithm="RS256", headers={"kid": kid})
    signed.append([answer(jwk), token])
print(json.dumps(signed))
"#;

#[test]
fn login_keys_come_by_https_and_again_at_hup() {
    // Debian's Python, which has the libraries of Debian.
    let mut python = Command::new("/usr/bin/python3");
    let python = python.args(["-c", LOGIN_SERVICE]).output().unwrap();
    let missing = "python3-jwt and python3-cryptography are needed (Debian: apt-get install)";
    assert!(python.status.success(), "{missing}: {python:?}");
    let [(one, by_one), (two, by_two)]: [(String, String); 2] =
        serde_json::from_slice(&python.stdout).unwrap();
    let (home, pki, foreign) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let answer = Arc::new(Mutex::new(one));
    let (server, asked) = https_server(&pki, b"\r\n\r\n", Arc::clone(&answer));
    let start = |trusted: &Pki| {
        let mut command = home.distlock(NODE);
        command
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("SSL_CERT_FILE", trusted.path("ca.crt"))
            .env(
                "DISTLOCK_GATEWAY_LOGIN_JWKS_URL",
                format!("https://localhost:{}/hunter2", server.port()),
            );
        start_node(&mut command)
    };
    let (mut node, ready) = start(&pki);
    assert_eq!(
        log_in(&ready, &by_one)["type"],
        "login_ok",
        "{}",
        node.output()
    );
    assert_eq!(log_in(&ready, &by_two)["type"], "busy", "{}", node.output());
    *answer.lock() = two;
    node.signal(Signal::HUP).unwrap();
    let told = |node: &Process, says: &str| {
        node.wait_for_line(SOON, |line| line.contains(says))
            .unwrap();
    };
    told(
        &node,
        "certificates, keys, secrets and tokens were read again",
    );
    assert_eq!(
        log_in(&ready, &by_two)["type"],
        "login_ok",
        "{}",
        node.output()
    );
    // The old key is withdrawn, but its token is young: another node may have read later.
    assert_eq!(log_in(&ready, &by_one)["type"], "busy", "{}", node.output());
    "HTTP/1.1 302 Found\r\nlocation: /\r\n\r\n".clone_into(&mut answer.lock());
    node.signal(Signal::HUP).unwrap();
    told(&node, "no redirect is followed");
    assert_eq!(
        log_in(&ready, &by_two)["type"],
        "login_ok",
        "{}",
        node.output()
    );
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    node.signal(Signal::TERM).unwrap();
    assert_eq!(node.wait(SOON).unwrap().code(), Some(0));
    let said = node.output();
    assert!(
        !said.contains("hunter2") && !said.contains(&by_two),
        "{said}"
    );

    // The node starts without its keys, and serves logins by its own.
    let (node, ready) = start(&foreign);
    told(&node, "no login key is known yet");
    assert!(node.output().contains("certificate"), "{}", node.output());
    assert_eq!(log_in(&ready, &by_two)["type"], "busy");
    assert_eq!(log_in(&ready, &mint_token(&home, KEY))["type"], "login_ok");
    assert_eq!(
        asked.load(Ordering::SeqCst),
        3,
        "nothing is asked of a stranger"
    );
}

#[test]
fn a_profile_service_is_asked_by_https_if_its_authority_is_trusted() {
    let (home, pki, foreign) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let (service, asked) = https_service(&pki);
    let asks = |trusted: &Pki, host: &str| {
        let mut command = home.distlock(NODE);
        command
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("SSL_CERT_FILE", trusted.path("ca.crt"))
            .env(
                "DISTLOCK_GATEWAY_PROFILE_URL",
                format!("https://{host}:{}/may-log-in", service.port()),
            );
        let (mut node, ready) = start_node(&mut command);
        let answer = log_in(&ready, &mint_token(&home, KEY));
        node.signal(Signal::TERM).unwrap();
        node.wait(SOON).unwrap();
        (answer, node.output(), asked.swap(0, Ordering::SeqCst))
    };
    for host in ["127.0.0.1", "localhost"] {
        let (answer, said, times) = asks(&pki, host);
        assert_eq!(answer["type"], "login_ok", "{answer}: {said}");
        assert_eq!(times, 1);
    }
    let (answer, said, times) = asks(&foreign, "127.0.0.1");
    assert_eq!(answer["code"], "unavailable", "{answer}: {said}");
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(times, 0, "nothing is told to a stranger");
}

#[test]
fn a_node_listens_beyond_loopback_only_with_tls_or_an_explicit_flag() {
    let home = Home::new();
    let run = |args: &[&str]| {
        let line = [&NODE[..], &["--tcp-listen", "0.0.0.0:0"], args].concat();
        let mut command = home.distlock(line);
        command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY);
        command
    };
    finish(&mut run(&[]), "").assert_failed(78, "--insecure-listen");
    let (_node, ready) = start_node(&mut run(&["--insecure-listen"]));
    let listens = ready["tcp_listen"].as_str().unwrap();
    assert!(listens.starts_with("0.0.0.0:"), "{ready}");
}

/// The exit code must be the same when the reader of the output has closed the pipe.
#[test]
fn the_code_of_a_kick_does_not_depend_on_the_reader_of_its_output() {
    let home = Home::new();
    let gone =
        json!({"uid": "alice", "session": "s", "node": "n1", "device": "phone", "gone": true});
    let mut pending = gone.clone();
    pending["gone"] = false.into();
    let mut failed = pending.clone();
    failed["error"] = "the store is away".into();
    let kick: &[&str] = &["kick", "--all"];
    for (line, answer, code) in [
        (kick, json!({"kicked": [gone, gone]}), 0),
        (kick, json!({"kicked": [gone, pending]}), 75),
        (kick, json!({"kicked": [gone, pending, failed]}), 69),
        (&["ban", "alice", "--lift"], json!({"lifted": false}), 76),
    ] {
        for json in [None, Some("--json")] {
            let line = ["gateway"].iter().chain(line).copied().chain(json);
            let (reader, closed) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = home.distlock(line);
            command.env("DISTLOCK_GATEWAY_ADMIN", serve_one_answer(&answer));
            let done = command.stdout(closed).output().unwrap();
            assert_eq!(done.status.code(), Some(code), "{answer}: {done:?}");
        }
    }
}

#[test]
fn a_kick_reports_accounts_that_could_not_be_changed_and_ends_the_others() {
    let home = Home::new();
    let (_node, ready) = start_default_node(&home);
    let _alice = log_in_and_stay(&ready, &mint_token(&home, KEY));
    let _bob = log_in_and_stay(&ready, &mint_token_for("bob", &home, KEY));
    home.sql(
        "CREATE TRIGGER stuck BEFORE UPDATE ON distributed_record WHEN OLD.record_key LIKE '%bob%'
         BEGIN SELECT RAISE(ABORT, 'bob is stuck'); END",
    );
    let url = format!("http://{}", ready["admin_listen"].as_str().unwrap());
    let kick = || {
        finish(
            &mut home.distlock(["gateway", "kick", "--all", "--admin", &url]),
            "",
        )
    };
    let done = kick();
    assert_eq!(done.code, 69, "{done:?}");
    let says = "not every session could be ended; kicking again is safe";
    assert!(done.stderr.contains(says), "{done:?}");
    let told = |starts: &str, says: &str| {
        let mut lines = done.stdout.lines();
        lines.any(|line| line.starts_with(starts) && line.contains(says))
    };
    assert!(told("alice session ", " gone"), "{done:?}");
    assert!(told("bob session ", " not ended: "), "{done:?}");
    home.sql("DROP TRIGGER stuck");
    let done = kick();
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("bob session "), "{done:?}");
}

#[test]
fn a_ban_counts_each_session_once() {
    let home = Home::new();
    let (gone, pending) = (json!({"gone": true}), json!({"gone": false}));
    for (kicked, says) in [
        (json!([]), "0 sessions ended"),
        (json!([gone]), "1 session ended"),
        (json!([gone, gone]), "2 sessions ended"),
        (
            json!([gone, pending, gone]),
            "2 sessions ended, 1 not confirmed yet",
        ),
    ] {
        let mut ban = home.distlock(["gateway", "ban", "alice"]);
        ban.env(
            "DISTLOCK_GATEWAY_ADMIN",
            serve_one_answer(&json!({"kicked": kicked})),
        );
        let done = finish(&mut ban, "");
        assert_eq!(done.stdout, format!("alice is banned, {says}\n"));
        assert_eq!(done.code, 0, "{done:?}");
    }
}

/// Serves one answer as the admin HTTP of a node, and returns the address.
fn serve_one_answer(answer: &Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{answer}");
    thread::spawn(move || {
        let (mut asker, _) = listener.accept().unwrap();
        // The request must be read to its end. Otherwise the connection is reset before the client
        // has read the answer.
        let mut asked = String::new();
        while !asked.contains("\r\n\r\n") || !(asked.ends_with('}') || asked.starts_with("DELETE"))
        {
            let mut some = [0; 4096];
            let read = asker.read(&mut some).unwrap();
            assert!(read > 0, "{asked}");
            asked += std::str::from_utf8(&some[..read]).unwrap();
        }
        asker.write_all(answer.as_bytes()).unwrap();
    });
    url
}

#[test]
fn the_address_of_the_admin_http_is_never_shown() {
    let home = Home::new();
    for url in [
        "http://u:canary@127.0.0.1:1",
        "http://canary",
        "http://h:canary",
        "http://h:1?token=canary",
        "https://canary@h:1",
    ] {
        let by_flag = home.run(["gateway", "nodes", "--admin", url]);
        let mut by_variable = home.distlock(["gateway", "nodes"]);
        let by_variable = finish(by_variable.env("DISTLOCK_GATEWAY_ADMIN", url), "");
        for done in [by_flag, by_variable] {
            done.assert_failed(64, "http://HOST:PORT");
            assert!(!done.stderr.contains("canary"), "{done:?}");
        }
    }
    let mut help = home.distlock(["gateway", "nodes", "--help"]);
    let done = finish(help.env("DISTLOCK_GATEWAY_ADMIN", "canary"), "");
    assert!(done.stdout.contains("DISTLOCK_GATEWAY_ADMIN"), "{done:?}");
    assert!(!done.stdout.contains("canary"), "{done:?}");
}
