//! `distlock serve`: the demo and a command's lock through a server, a stop and a crash, and what a
//! server does not start with.

use std::{fs, path::Path};

use distlock_harness::{Process, Signal, eventually, free_port, servers::redis::RedisServer};
use serde_json::Value;

use crate::support::{Finished, Home, SOON, finish};

/// Starts a server in memory at this address, and waits until it serves.
fn start(home: &Home, listen: &str, args: &[&str]) -> (Process, String) {
    let state = home.path("server.state");
    let state = state.to_str().unwrap();
    let line = [
        "serve",
        "--listen",
        listen,
        "--backend",
        "memory:",
        "--state",
        state,
    ];
    let mut command = home.bare([&line[..], args].concat());
    ready(Process::spawn(&mut command).unwrap())
}

/// Waits until a server tells its URL.
fn ready(server: Process) -> (Process, String) {
    let line = server.wait_for_line(SOON, |line| line.contains(r#""event":"ready""#));
    let ready: Value = serde_json::from_str(&line.unwrap()).unwrap();
    let url = ready["url"].as_str().unwrap().to_owned();
    (server, url)
}

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

#[test]
fn the_demo_passes_on_a_server() {
    let home = Home::new();
    let (mut server, url) = start(&home, "127.0.0.1:0", &["--init"]);
    let mut demo = Process::spawn(&mut home.bare(["demo", "--backend", &url])).unwrap();
    let status = demo.wait(SOON * 6).unwrap();
    let output = demo.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    let held = run(&home, &url, &["list", "--json"]);
    assert_eq!((held.code, held.stdout.as_str()), (0, ""), "{held:?}");
    server.signal(Signal::TERM).unwrap();
    assert_eq!(server.wait(SOON).unwrap().code(), Some(0));
}

#[test]
fn a_stop_and_a_crash_of_the_server_end_no_command_and_no_wait() {
    let home = Home::new();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let lease = ["--max-lease", "12s"];
    let (mut server, url) = start(&home, &listen, &["--init", lease[0], lease[1]]);
    let script = "echo begun; while ! [ -e go ]; do sleep 0.05; done";
    let line = ["run", "job", "--ttl", "10s", "--", "sh", "-c", script];
    let mut job = Process::spawn(home.bare(line).env("DISTLOCK_BACKEND", &url)).unwrap();
    job.wait_for_line(SOON, |line| line == "begun").unwrap();
    let other = || run(&home, &url, &["run", "job", "-n", "--", "true"]);
    other().assert_failed(75, "job");
    let next = ["run", "job", "--", "sh", "-c", "test -e go"];
    let mut next = Process::spawn(home.bare(next).env("DISTLOCK_BACKEND", &url)).unwrap();
    eventually("the next one waits", SOON, || {
        let shown = run(&home, &url, &["inspect", "job", "--json"]);
        shown.json()["waiters"] == 1
    })
    .unwrap();

    // A stop in order: the next start has the lock.
    server.signal(Signal::TERM).unwrap();
    assert_eq!(server.wait(SOON).unwrap().code(), Some(0));
    let (mut server, _) = start(&home, &listen, &lease);
    other().assert_failed(75, "job");

    // A crash: nobody new has a lock, and the holder renews.
    server.signal(Signal::KILL).unwrap();
    server.wait(SOON).unwrap();
    let (_server, _) = start(&home, &listen, &lease);
    other().assert_failed(69, "try again in");
    // Until the holder has shown its proof, the server does not know who has the lock.
    eventually("the holder has its lock again", SOON, || {
        let shown = run(&home, &url, &["inspect", "job", "--json"]);
        shown.code == 0 && shown.json()["state"] == "held"
    })
    .unwrap();
    home.write("go", "");
    let status = job.wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0), "{}", job.output());
    // It has waited through both, and is granted the lock after the recovery.
    let status = next.wait(SOON * 2).unwrap();
    assert_eq!(status.code(), Some(0), "{}", next.output());
}

#[test]
fn agents_of_one_store_exclude_each_other_and_one_may_go() {
    let (home, redis) = (Home::new(), RedisServer::start().unwrap());
    let agent = || {
        let line = ["serve", "--listen", "127.0.0.1:0"];
        let mut command = home.bare(line);
        command.env("DISTLOCK_BACKEND", redis.url());
        ready(Process::spawn(&mut command).unwrap())
    };
    let ((mut first, one), (_second, other)) = (agent(), agent());
    let both = format!("{one},{}", other.strip_prefix("distlock://").unwrap());
    // Twice as long as the lease that the first agent has got for it.
    let line = [
        "run",
        "job",
        "--ttl",
        "4s",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 8",
    ];
    let mut job = Process::spawn(home.bare(line).env("DISTLOCK_BACKEND", &both)).unwrap();
    job.wait_for_line(SOON, |line| line == "begun").unwrap();
    run(&home, &other, &["run", "job", "-n", "--", "true"]).assert_failed(75, "job");
    first.signal(Signal::KILL).unwrap();
    first.wait(SOON).unwrap();
    run(&home, &both, &["run", "job", "-n", "--", "true"]).assert_failed(75, "job");
    let status = job.wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0), "{}", job.output());
    let shown = run(&home, &other, &["list", "--json"]);
    assert_eq!((shown.code, shown.stdout.as_str()), (0, ""), "{shown:?}");
    assert!(
        !first.output().contains(redis.password()),
        "{}",
        first.output()
    );
}

#[test]
fn a_server_does_not_start_with_what_it_cannot_use() {
    let home = Home::new();
    let (_server, url) = start(&home, "127.0.0.1:0", &["--init"]);
    let state = home.path("server.state");
    let damaged = home.path("damaged.state");
    let text = fs::read(&state).unwrap();
    fs::write(&damaged, &text[..text.len() / 2]).unwrap();
    let foreign = home.path("foreign.state");
    fs::write(&foreign, "[backend]\n").unwrap();
    let folder = home.path("folder.state");
    fs::create_dir(&folder).unwrap();
    let taken = url.strip_prefix("distlock://").unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (none, nowhere) = (home.path("none.db"), home.path("missing/server.state"));
    let unmigrated = format!("sqlite:{}?migrate=false", none.display());
    for (args, code, says) in [
        (
            ["memory:", "--state", &path(&state)],
            78,
            "another lock server",
        ),
        (["memory:", "--state", &path(&damaged)], 78, "damaged"),
        (["memory:", "--state", &path(&foreign)], 78, "no state file"),
        (["memory:", "--state", &path(&folder)], 78, "cannot be read"),
        (
            ["memory:", "--state", &path(&nowhere)],
            78,
            "cannot be used",
        ),
        (["memory:name", "--max-lease", "60s"], 78, "one memory"),
        (["memory:", "--listen", taken], 78, "cannot be bound"),
        (["memory:", "--listen", "0.0.0.0:0"], 78, "without TLS"),
        (["memory:", "--max-lease", "10ms"], 78, "max_lease"),
        ([unmigrated.as_str(), "--max-lease", "60s"], 78, "migrate"),
        (
            ["sqlite:locks.db", "--state", "a"],
            64,
            "--state and --init",
        ),
    ] {
        // The same option twice is an error of its own.
        let mut line = vec!["serve", "--backend"];
        line.extend(args);
        if !args.contains(&"--listen") {
            line.extend(["--listen", "127.0.0.1:0"]);
        }
        if !args.contains(&"--state") && args[0].starts_with("memory:") {
            line.extend(["--state", "fresh.state"]);
        }
        let refused = finish(&mut home.bare(line), "");
        refused.assert_failed(code, says);
    }
    assert_eq!(fs::read(&damaged).unwrap(), &text[..text.len() / 2]);
    // The first one serves on.
    let ran = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}
