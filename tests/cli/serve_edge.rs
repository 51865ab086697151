//! `distlock serve` at its edge: TLS, tokens, sockets, limits, metrics, checks, and systemd.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use distlock_harness::{Pki, Process, Signal, eventually, free_port, servers::redis::RedisServer};
use serde_json::Value;

use crate::support::{Finished, Home, NotifySocket, SOON, finish};

/// A call of the tool that serves locks in memory, at a free port unless `args` say otherwise.
fn serve(home: &Home, args: &[&str]) -> Command {
    let mut line = vec!["serve", "--backend", "memory:", "--init", "--state"];
    let state = home.path("server.state");
    line.push(state.to_str().unwrap());
    if !args.iter().any(|it| ["--listen", "--unix"].contains(it)) {
        line.extend(["--listen", "127.0.0.1:0"]);
    }
    line.extend(args);
    home.bare(line)
}

/// Starts a server, and returns it with its ready line.
fn start(command: &mut Command) -> (Process, Value) {
    let server = Process::spawn(command).unwrap();
    let line = server.wait_for_line(SOON, |line| line.contains(r#""event":"ready""#));
    (server, serde_json::from_str(&line.unwrap()).unwrap())
}

fn stop(mut server: Process) -> String {
    server.signal(Signal::TERM).unwrap();
    let status = server.wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0), "{}", server.output());
    server.output()
}

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

/// Takes and frees a lock at this server.
fn take(home: &Home, url: &str, name: &str) -> Finished {
    run(home, url, &["run", name, "-n", "--", "true"])
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The answer to a request for the metrics of a server.
fn metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn clients_come_by_tls_and_certificates_change_at_hup() {
    let (home, pki, other) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    for name in ["server.crt", "server.key"] {
        fs::copy(pki.path(name), home.path(name)).unwrap();
    }
    let (cert, key) = (home.path("server.crt"), home.path("server.key"));
    let files = ["--tls-cert", path(&cert), "--tls-key", path(&key)];
    // With TLS it may listen beyond loopback.
    let beyond = [&files[..], &["--listen", "0.0.0.0:0"]].concat();
    let (server, ready) = start(&mut serve(&home, &beyond));
    let at = ready["listen"].as_str().unwrap();
    let port = at.rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(ready["url"], format!("distlocks://{at}"));
    let url = |pki: &Pki| {
        format!(
            "distlocks://127.0.0.1:{port}?tls_ca={}",
            pki.path("ca.crt").display()
        )
    };
    assert_eq!(take(&home, &url(&pki), "a").code, 0);
    take(&home, &url(&other), "a").assert_failed(69, "certificate");
    take(&home, &format!("distlock://127.0.0.1:{port}"), "a").assert_failed(69, "");
    // Files that cannot be used change nothing, and good ones are used from then on.
    fs::write(&cert, "none").unwrap();
    server.signal(Signal::HUP).unwrap();
    server
        .wait_for_line(SOON, |line| line.contains("keeps the old ones"))
        .unwrap();
    assert_eq!(take(&home, &url(&pki), "a").code, 0);
    for name in ["server.crt", "server.key"] {
        fs::copy(other.path(name), home.path(name)).unwrap();
    }
    server.signal(Signal::HUP).unwrap();
    server
        .wait_for_line(SOON, |line| line.contains("were read again"))
        .unwrap();
    assert_eq!(take(&home, &url(&other), "a").code, 0);
    take(&home, &url(&pki), "a").assert_failed(69, "certificate");
    stop(server);
}

#[test]
fn with_mutual_tls_a_client_needs_a_certificate() {
    let (home, pki, other) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let file = |name: &str| pki.path(name).display().to_string();
    let (cert, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let files = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let (server, ready) = start(&mut serve(&home, &files));
    let url = format!("{}?tls_ca={ca}", ready["url"].as_str().unwrap());
    take(&home, &url, "a").assert_failed(69, "");
    let with = |pki: &Pki| {
        let (cert, key) = (pki.path("client.crt"), pki.path("client.key"));
        format!(
            "{url}&tls_cert={}&tls_key={}",
            cert.display(),
            key.display()
        )
    };
    assert_eq!(take(&home, &with(&pki), "a").code, 0);
    take(&home, &with(&other), "a").assert_failed(69, "");
    stop(server);
}

#[test]
fn beyond_loopback_a_server_needs_tls_or_the_word_of_its_user() {
    let home = Home::new();
    let beyond = ["--listen", "0.0.0.0:0"];
    let refused = finish(&mut serve(&home, &beyond), "");
    refused.assert_failed(78, "--insecure-listen");
    let trusted = [&beyond[..], &["--insecure-listen"]].concat();
    let (server, ready) = start(&mut serve(&home, &trusted));
    assert!(ready["listen"].as_str().unwrap().starts_with("0.0.0.0:"));
    stop(server);
}

#[test]
fn a_token_says_what_its_client_may_do() {
    let home = Home::new();
    let keys = home.path("keys");
    fs::write(&keys, "k".repeat(32)).unwrap();
    let mint = |args: &[&str]| {
        let line = [&["serve", "token", "--token-key", path(&keys)], args].concat();
        finish(&mut home.bare(line), "")
    };
    let good = mint(&["--prefix", "app/", "--subject", "the app"]);
    assert_eq!(good.code, 0, "{good:?}");
    let token = good.stdout.trim().to_owned();
    let file = home.path("token");
    fs::write(&file, &good.stdout).unwrap();
    let operator = "acquire,release,inspect,force-release";
    let operator = mint(&["--prefix", "", "--operations", operator]).stdout;
    mint(&["--prefix", "a", "--operations", "fly"]).assert_failed(64, "acquire, release");
    mint(&["--prefix", "a", "--ttl", "400d"]).assert_failed(64, "366 days");
    mint(&[]).assert_failed(64, "--prefix");

    let (server, ready) = start(&mut serve(&home, &["--token-key", path(&keys)]));
    let bare = ready["url"].as_str().unwrap().to_owned();
    let url = format!("{bare}?token_file={}", file.display());
    assert_eq!(take(&home, &url, "app/a").code, 0);
    take(&home, &url, "other").assert_failed(77, "begin with app/");
    take(&home, &bare, "app/a").assert_failed(77, "asks for one");
    run(&home, &url, &["inspect", "app/a"]).assert_failed(77, "does not allow inspect");
    // A token that would cross a network in clear is not sent.
    take(&home, "distlock://192.0.2.1?token=secret", "a").assert_failed(78, "distlocks://");

    // An order of an operator is in the log, with who gave it.
    let held = ["run", "app/job", "--", "sh", "-c", "echo begun; sleep 60"];
    let mut job = Process::spawn(home.bare(held).env("DISTLOCK_BACKEND", &url)).unwrap();
    job.wait_for_line(SOON, |line| line == "begun").unwrap();
    let all = format!("{bare}?token={}", operator.trim());
    let shown = run(&home, &all, &["inspect", "app/job", "--json"]).json();
    let number = shown["token"].to_string();
    let forced = run(
        &home,
        &all,
        &["force-release", "app/job", "--token", &number],
    );
    assert_eq!(forced.code, 0, "{forced:?} {shown}");
    server
        .wait_for_line(SOON, |line| {
            line.contains("force-released") && line.contains("app/job") && line.contains("client")
        })
        .unwrap();
    job.wait(SOON).unwrap();

    // Another key takes the place of this one, and its tokens with it.
    fs::write(&keys, "n".repeat(32)).unwrap();
    server.signal(Signal::HUP).unwrap();
    server
        .wait_for_line(SOON, |line| line.contains("were read again"))
        .unwrap();
    take(&home, &url, "app/a").assert_failed(77, "another key");
    fs::write(&file, mint(&["--prefix", "app/"]).stdout).unwrap();
    assert_eq!(take(&home, &url, "app/a").code, 0);
    let output = stop(server);
    assert!(!output.contains(&token), "{output}");
}

#[test]
fn a_unix_socket_is_for_its_group_and_goes_with_its_server() {
    let home = Home::new();
    let socket = home.path("locks.sock");
    let (server, ready) = start(&mut serve(&home, &["--unix", path(&socket)]));
    assert_eq!(ready["listen"], Value::Null);
    let url = ready["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("distlock://localhost?socket="), "{url}");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert_eq!(take(&home, &url, "a").code, 0);
    let second = ["serve", "--backend", "memory:", "--state", "second.state"];
    let second = [&second[..], &["--unix", path(&socket)]].concat();
    finish(&mut home.bare(second), "").assert_failed(78, "another server serves there");
    stop(server);
    assert!(!socket.exists());
    take(&home, &url, "a").assert_failed(69, "locks.sock");
}

#[test]
fn limits_are_refusals_and_metrics_count_them() {
    let home = Home::new();
    let port = free_port().unwrap();
    let at = format!("127.0.0.1:{port}");
    let args = ["--metrics-listen", &at, "--max-names", "1"];
    let limits = [
        "--max-waiters-per-name",
        "1",
        "--max-names-per-session",
        "1",
    ];
    let (server, ready) = start(&mut serve(&home, &[&args[..], &limits].concat()));
    let url = ready["url"].as_str().unwrap().to_owned();
    let held = [
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "echo begun; while ! [ -e go ]; do sleep 0.05; done",
    ];
    let mut job = Process::spawn(home.bare(held).env("DISTLOCK_BACKEND", &url)).unwrap();
    job.wait_for_line(SOON, |line| line == "begun").unwrap();
    take(&home, &url, "b").assert_failed(69, "no more are allowed");
    let waits = ["run", "a", "--", "true"];
    let mut waiter = Process::spawn(home.bare(waits).env("DISTLOCK_BACKEND", &url)).unwrap();
    let shows = |what: &str| {
        let shown = eventually(what, SOON, || metrics(port).contains(what));
        shown.unwrap_or_else(|error| panic!("{error}: {}", metrics(port)));
    };
    shows("distlock_server_waiting 1");
    let third = run(&home, &url, &["run", "a", "--wait", "1s", "--", "true"]);
    assert_ne!(third.code, 0, "{third:?}");
    for what in [
        "distlock_server_held 1",
        "distlock_server_granted_total 1",
        "distlock_server_refused_total{reason=\"names\"} 1",
        "distlock_server_refused_total{reason=\"token\"} 0",
        "distlock_server_recovery_seconds 0",
        "distlock_server_backpressure_total 0",
        "distlock_server_expired_total 0",
        "distlock_build_info{",
    ] {
        shows(what);
    }
    let refused = "distlock_server_refused_total{reason=\"waiters_of_name\"} 0";
    assert!(!metrics(port).contains(refused), "{}", metrics(port));
    home.write("go", "");
    for process in [&mut job, &mut waiter] {
        assert_eq!(process.wait(SOON).unwrap().code(), Some(0));
    }
    stop(server);
    for (limit, value, says) in [
        ("--max-names", "0", "max_names is 0"),
        (
            "--max-names-per-session",
            "100000001",
            "max_names_per_session is 1",
        ),
        ("--max-frame", "1", "max_frame is 1"),
        ("--login-timeout", "1ms", "login_timeout is 1ms"),
        ("--slow-reader", "2h", "slow_reader is 7200s"),
    ] {
        finish(&mut serve(&home, &[limit, value]), "").assert_failed(78, says);
    }
}

#[test]
fn a_check_tells_of_every_mistake_and_changes_nothing() {
    let (home, pki) = (Home::new(), Pki::new().unwrap());
    let check = |args: &[&str]| finish(&mut serve(&home, &[args, &["--check"]].concat()), "");
    let good = check(&[]);
    assert_eq!(good.code, 0, "{good:?}");
    assert_eq!(good.json()["event"], "checked");
    assert!(!home.path("server.state").exists(), "{:?}", home.files());
    let (cert, none) = (pki.path("server.crt"), home.path("none"));
    let (key, wrong_key) = (pki.path("server.key"), pki.path("client.key"));
    fs::write(&none, "nothing").unwrap();
    for (args, says) in [
        (vec!["--tls-cert", path(&cert)], "tls_key"),
        (
            vec!["--tls-cert", path(&none), "--tls-key", path(&key)],
            "no certificate",
        ),
        (
            vec!["--tls-cert", path(&cert), "--tls-key", path(&wrong_key)],
            "server.crt",
        ),
        (vec!["--tls-client-ca", path(&cert)], "tls_cert"),
        (vec!["--token-key", path(&none)], "32 bytes"),
        (vec!["--listen", "0.0.0.0:1"], "--insecure-listen"),
        (vec!["--metrics-listen", "0.0.0.0:1"], "metrics_listen"),
    ] {
        check(&args).assert_failed(78, says);
    }
    fs::write(home.path("server.state"), "notes").unwrap();
    check(&[]).assert_failed(78, "no state file");
    let line = ["serve", "--backend", "redis://127.0.0.1:1", "--check"];
    finish(&mut home.bare(line), "").assert_failed(69, "127.0.0.1:1");
}

/// The socket is bound before the server starts, so a client of the first moment only waits.
#[test]
fn a_socket_of_systemd_is_served() {
    let home = Home::new();
    let at = format!("127.0.0.1:{}", free_port().unwrap());
    let serve = serve(&home, &["--unix", path(&home.path("own.sock"))]);
    let mut activate = Command::new("systemd-socket-activate");
    activate.args(["--listen", &at]).arg(serve.get_program());
    activate.args(serve.get_args()).current_dir(home.path("."));
    let listener = Process::spawn(&mut activate).unwrap();
    listener
        .wait_for_line(SOON, |line| line.contains("Listening"))
        .unwrap();
    let url = format!("distlock://{at}");
    let taken = take(&home, &url, "a");
    assert_eq!(taken.code, 0, "{taken:?} {}", listener.output());
    let ready = listener.wait_for_line(SOON, |line| line.contains("ready"));
    let ready: Value = serde_json::from_str(&ready.unwrap()).unwrap();
    assert_eq!((&ready["listen"], &ready["url"]), (&at.into(), &url.into()));
    // The tool has taken the place of the program that started it.
    stop(listener);
}

#[test]
fn systemd_is_told_of_readiness_and_of_the_end() {
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let (server, _) = start(serve(&home, &[]).env("NOTIFY_SOCKET", &told.path));
    assert_eq!(told.next(), "READY=1\n");
    stop(server);
    assert_eq!(told.next(), "STOPPING=1\n");
}

/// Two agents are replaced one after the other, while many callers take locks over both.
#[test]
fn agents_are_replaced_under_load_without_one_failed_acquire() {
    let (home, redis) = (Home::new(), RedisServer::start().unwrap());
    let listen = [free_port().unwrap(), free_port().unwrap()];
    let agent = |port: u16| {
        let at = format!("127.0.0.1:{port}");
        let mut command = home.bare(["serve", "--listen", &at]);
        start(command.env("DISTLOCK_BACKEND", redis.url())).0
    };
    let mut agents = listen.map(agent).map(Some);
    let url = format!("distlock://127.0.0.1:{},127.0.0.1:{}", listen[0], listen[1]);
    let load = crate::load::Load::start(&url);
    for at in [0, 1, 0, 1] {
        load.goes_on();
        stop(agents[at].take().unwrap());
        load.goes_on();
        agents[at] = Some(agent(listen[at]));
    }
    load.end();
    agents
        .into_iter()
        .flatten()
        .for_each(|agent| drop(stop(agent)));
}
