//! The warnings, metrics and health of `distlock gateway run` when something around the node is
//! wrong: its certificates, the disk of its events, its store, or another node.

use std::{
    fmt::Debug,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    str::FromStr,
};

use distlock_harness::{Pki, Process, Signal, eventually, servers::redis::RedisServer};
use serde_json::Value;

use crate::{
    gateway::{KEY, NODE, log_in, log_in_and_stay, mint_token, start_node},
    home::ADMIN_TOKEN,
    support::{Home, SOON, run_through},
};

/// Sends a `GET` to the admin HTTP, and returns the whole answer.
fn get(ready: &Value, path: &str) -> String {
    let mut stream = TcpStream::connect(ready["admin_listen"].as_str().unwrap()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\
         authorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a metric, which is given with its labels.
fn metric<T: FromStr<Err: Debug>>(ready: &Value, name: &str) -> T {
    let answer = get(ready, "/metrics");
    let mut lines = answer.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("{name} is not in {answer}"));
    value.parse().unwrap()
}

/// Signs the certificate of `node` again, with these dates.
fn sign(pki: &Pki, from: &str, until: &str) {
    let write = |name: &str, text: &str| fs::write(pki.path(name), text).unwrap();
    write("index.txt", "");
    write("serial", "01");
    write(
        "dates.cnf",
        "[ca]\ndefault_ca=dates\n[dates]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\n\
         default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n",
    );
    let line = format!(
        "ca -batch -config dates.cnf -cert ca.crt -keyfile ca.key -in node.csr -notext \
         -extfile extensions -startdate {from} -enddate {until} -out node.crt"
    );
    let mut openssl = Command::new("openssl");
    openssl.args(line.split(' ')).current_dir(pki.folder());
    let done = openssl.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn certificates_that_are_not_valid_now_are_told_at_the_start_and_at_hup() {
    let (home, pki) = (Home::new(), Pki::new().unwrap());
    sign(&pki, "20200101000000Z", "20210203040506Z");
    let mut command = home.distlock(NODE);
    command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY);
    for (key, file) in [
        ("peer-tls-ca", "ca.crt"),
        ("peer-tls-cert", "node.crt"),
        ("peer-tls-key", "node.key"),
    ] {
        command.arg(format!("--{key}")).arg(pki.path(file));
    }
    let (node, ready) = start_node(&mut command);
    let told = |says: &str| {
        let line = node.wait_for_line(SOON, |line| line.contains(says));
        line.unwrap()
    };
    let expired = told("a certificate has expired");
    for says in ["WARN", "peer_tls_cert", "node.crt", "2021-02-03T04:05:06Z"] {
        assert!(expired.contains(says), "{expired}");
    }
    let left = |key: &str| -> f64 {
        metric(
            &ready,
            &format!("distlock_tls_expiry_seconds{{key=\"{key}\"}}"),
        )
    };
    assert!(left("peer_tls_cert") < -1e8, "{}", left("peer_tls_cert"));
    // The authority of these tests is made for two days.
    let authority = left("peer_tls_ca");
    assert!((86_400.0..172_800.0).contains(&authority), "{authority}");

    sign(&pki, "20600101000000Z", "20610101000000Z");
    node.signal(Signal::HUP).unwrap();
    let early = told("a certificate is not valid yet");
    assert!(early.contains("2060-01-01T00:00:00Z"), "{early}");
    told("certificates, keys, secrets and tokens were read again");
    assert!(left("peer_tls_cert") > 1e8);
}

/// How the receiver of the documentation serves by TLS.
const BY_TLS: &str = "\
import ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.crt', 'server.key')
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

#[test]
fn a_web_hook_is_told_by_tls_to_a_receiver_of_a_trusted_authority_alone() {
    const SERVE: &str = "server.serve_forever()\n";
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (home, pki, foreign) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let page = include_str!("../../docs/gateway.md");
    let (_, sample) = page.split_once("```python\n# receiver.py\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    assert!(sample.contains(SERVE));
    let mut python = Command::new("python3");
    python
        .args(["-u", "-c", &sample.replace(SERVE, BY_TLS)])
        .envs([("HOOK_SECRETS", SECRET), ("HOOK_PORT", "0")])
        .current_dir(pki.folder());
    let receiver = Process::spawn(&mut python).unwrap();
    let told = |who: &Process, says: &str| {
        let line = who.wait_for_line(SOON, |line| line.contains(says));
        line.unwrap()
    };
    let listening = told(&receiver, "listening on port ");
    let (_, port) = listening.rsplit_once(' ').unwrap();
    home.write("secret", SECRET);
    home.write(
        "distlock.toml",
        &format!(
            "[[gateway.hooks]]\nname = \"push\"\nurl = \"https://localhost:{port}/hunter2\"\n\
             secret_file = \"secret\"\nevents = [\"session.login\"]\nallow_private = true\n"
        ),
    );
    let start = |trusted: &Pki| {
        let mut command = home.distlock(NODE);
        command
            .args(["--config", "distlock.toml"])
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
            .env("SSL_CERT_FILE", trusted.path("ca.crt"));
        start_node(&mut command)
    };
    let attempts = |ready: &Value, result: &str| -> u64 {
        let labels = format!("hook=\"push\",result=\"{result}\"");
        metric(ready, &format!("distlock_hook_attempts_total{{{labels}}}"))
    };
    let log_in = |ready: &Value| log_in(ready, &mint_token(&home, KEY))["session"].clone();

    let (mut node, ready) = start(&pki);
    let session = log_in(&ready);
    let event = told(&receiver, "session.login");
    assert!(event.contains(session.as_str().unwrap()), "{event}");
    eventually("the delivery", SOON, || attempts(&ready, "delivered") == 1).unwrap();
    assert_eq!(attempts(&ready, "failed"), 0);
    node.signal(Signal::TERM).unwrap();
    node.wait(SOON).unwrap();

    let (node, ready) = start(&foreign);
    log_in(&ready);
    eventually("the attempts", SOON, || attempts(&ready, "failed") >= 3).unwrap();
    assert_eq!(attempts(&ready, "delivered"), 0);
    let said = node.output();
    let lines = said.lines().filter(|line| line.contains("web hook"));
    let [line] = lines.collect::<Vec<_>>()[..] else {
        panic!("the log does not say it once: {said}");
    };
    for says in ["WARN", "push", "localhost", "certificate"] {
        assert!(line.contains(says), "{line}");
    }
    assert!(!said.contains("hunter2"), "{said}");
    let events = receiver.output().matches("session.login").count();
    assert_eq!(events, 1, "nothing is told to a stranger");
}

#[test]
fn a_refused_call_between_nodes_is_logged_with_its_caller() {
    let home = Home::new();
    let others = "another key that is long enough for it";
    let start = |name, key: &str, more: &[&str]| {
        let words = NODE.map(|word| if word == "n1" { name } else { word });
        let mut command = home.distlock([&words[..], more].concat());
        start_node(command.env("DISTLOCK_GATEWAY_TOKEN_KEY", key))
    };
    let (n1, at_n1) = start("n1", KEY, &[]);
    let (_n2, at_n2) = start("n2", others, &[]);
    let _client = log_in_and_stay(&at_n1, &mint_token(&home, KEY));
    let answer = log_in(&at_n2, &mint_token(&home, others));
    assert_eq!(answer["old_confirmed"], "nobody", "{answer}");
    let line = n1.wait_for_line(SOON, |line| {
        line.contains("a call of another node was refused")
    });
    let line = line.unwrap();
    for says in ["WARN", "caller=\"n2\"", "address=127.0.0.1:", "signature"] {
        assert!(line.contains(says), "{line}");
    }
    assert!(metric::<u64>(&at_n1, "distlock_peer_calls_refused_total") >= 1);

    // The third node calls by TLS, and the fourth one trusts another authority.
    let (pki, foreign) = (Pki::new().unwrap(), Pki::new().unwrap());
    let with_tls = |pki: &Pki| {
        let file = |name: &str| pki.path(name).to_str().unwrap().to_owned();
        [
            ["--peer-tls-ca", &file("ca.crt"), "--peer-tls-cert"]
                .map(str::to_owned)
                .to_vec(),
            vec![
                file("node.crt"),
                "--peer-tls-key".to_owned(),
                file("node.key"),
            ],
        ]
        .concat()
    };
    let (n3, at_n3) = {
        let files = with_tls(&pki);
        start(
            "n3",
            KEY,
            &files.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    let (_n4, at_n4) = {
        let files = with_tls(&foreign);
        start(
            "n4",
            KEY,
            &files.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    let _client = log_in_and_stay(&at_n3, &mint_token(&home, KEY));
    let answer = log_in(&at_n4, &mint_token(&home, KEY));
    assert_eq!(answer["old_confirmed"], "nobody", "{answer}");
    let line = n3.wait_for_line(SOON, |line| line.contains("refused in its TLS handshake"));
    let line = line.unwrap();
    assert!(line.contains("address=127.0.0.1:"), "{line}");
    assert!(metric::<u64>(&at_n3, "distlock_peer_calls_refused_total") >= 1);
}

/// The limit of the file size stands for a full disk.
#[test]
fn events_that_do_not_fit_on_the_disk_are_told_and_counted() {
    let home = Home::new();
    let printed = home.path("events.json");
    let command = [&NODE[..], &["--events", "--backend", "memory:"]].concat();
    let script = "ulimit -S -f 1; file=$1; shift; exec \"$@\" >> \"$file\"";
    let mut command = run_through(
        "sh",
        ["-c", script, "sh", printed.to_str().unwrap()],
        &home.distlock(command),
    );
    let mut node = Process::spawn(command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)).unwrap();
    // The first event that does not fit may be cut off. The empty line after it separates it.
    let lines = || {
        let text = fs::read_to_string(&printed).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines.collect::<Vec<Value>>()
    };
    let mut ready = Value::Null;
    eventually("the node is ready", SOON, || {
        ready = lines().first().cloned().unwrap_or_default();
        ready["event"] == "ready"
    })
    .unwrap();
    let token = mint_token(&home, KEY);
    let lost = "distlock_events_lost_total";
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    node.wait_for_line(SOON, |line| {
        line.contains("WARN") && line.contains("events are lost") && line.contains("large")
    })
    .unwrap();
    assert!(metric::<u64>(&ready, lost) >= 1);

    let process = node.id().to_string();
    let mut more = Command::new("prlimit");
    more.args(["--pid", &process, "--fsize=unlimited"]);
    assert!(more.status().unwrap().success());
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    node.wait_for_line(SOON, |line| line.contains("events are printed again"))
        .unwrap();
    let before: u64 = metric(&ready, lost);
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    node.signal(Signal::TERM).unwrap();
    assert_eq!(
        node.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        node.output()
    );
    let events = &lines()[1..];
    let last = events.last().unwrap();
    let missing = last["seq"].as_u64().unwrap() - events.len() as u64;
    assert_eq!(missing, before);
    assert_eq!(node.output().matches("events are lost").count(), 1);
}

#[test]
fn a_node_is_degraded_while_its_store_refuses_writes() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let line = [&NODE[..], &["--backend", &url, "--node-lease", "3s"]].concat();
    let mut command = home.distlock(line);
    let (_node, ready) = start_node(command.env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY));
    let is = |code: &str, status: &str| {
        let answer = get(&ready, "/healthz");
        let status = format!("\"status\":\"{status}\"");
        answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains(&status)
    };
    let token = mint_token(&home, KEY);
    assert_eq!(log_in(&ready, &token)["type"], "login_ok");
    assert!(is("200", "up"));
    let limit = |bytes: &str| {
        let set = ["CONFIG", "SET", "maxmemory", bytes];
        assert_eq!(server.command(&set).unwrap(), "OK");
    };
    limit("1");
    assert_eq!(log_in(&ready, &token)["type"], "error");
    assert!(is("200", "degraded"));
    // Nobody logs in from now on.
    limit("0");
    eventually("the node is up", SOON, || is("200", "up")).unwrap();
}
