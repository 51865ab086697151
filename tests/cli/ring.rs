//! The tool over a ring of Redis servers: the steps of an operator, a watch, and the exit codes for
//! wrong stores.

use distlock_harness::{Process, Signal, eventually, servers::redis::RedisServer};
use serde_json::Value;

use crate::support::{Finished, Home, SOON, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

/// The URL of a ring of these servers, with the names a, b, c. The first is also the ring store.
fn url_of(servers: &[RedisServer]) -> String {
    let named = "abc".chars().zip(servers);
    let members = named.map(|(name, server)| format!("&member={name}={}", server.url()));
    format!(
        "ring:?records={}{}",
        servers[0].url(),
        members.collect::<String>()
    )
}

fn shown(done: &Finished) -> Value {
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn an_operator_makes_a_ring_and_changes_its_members() {
    let home = Home::new();
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let url = url_of(&servers);
    let without = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    without.assert_failed(78, "`distlock ring init`");
    let init = ["ring", "init", "--new", "--max-lease", "4s", "--validity"];
    let made = run(&home, &url, &[&init[..], &["500ms"]].concat());
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(made.stdout.matches(" yes").count(), 3, "{made:?}");
    for server in &servers {
        assert!(!made.stdout.contains(server.password()), "{made:?}");
    }
    let ran = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    let doctor = run(&home, &url, &["doctor"]);
    assert!(doctor.stdout.contains("no name moves"), "{doctor:?}");

    servers[1].kill();
    let away = run(&home, &url, &["doctor"]);
    assert_eq!(away.code, 1, "{away:?}");
    let changed = shown(&run(&home, &url, &["ring", "remove", "b", "--json"]));
    assert_eq!(
        changed["pending"][0]["members"],
        serde_json::json!(["a", "b", "c"])
    );
    assert_eq!(changed["members"][1]["active"], false);
    // Each name can be locked when the quarantine of 4.6 s is over.
    for number in 0..6 {
        let name = format!("job-{number}");
        let ran = run(&home, &url, &["run", &name, "--wait", "10s", "--", "true"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    eventually("the quarantine is over", SOON, || {
        let show = shown(&run(&home, &url, &["ring", "show", "--json"]));
        show["pending"] == serde_json::json!([])
    })
    .unwrap();
    let told = run(&home, &url, &["inspect", "order:42"]);
    // With b away, c has the next higher hash of this name.
    assert_eq!(
        told.stdout, "order:42: free\n  member of the ring: c\n",
        "{told:?}"
    );
    for (args, says) in [
        (["ring", "remove", "b"], "\"b\" is not active"),
        (["ring", "add", "c"], "\"c\" is active already"),
        (["ring", "add", "z"], "no member \"z\""),
        (["ring", "add", "b"], "\"b\""),
    ] {
        let refused = run(&home, &url, &args);
        assert_ne!(refused.code, 0, "{refused:?}");
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    servers[1].restart().unwrap();
    eventually("the server is back", SOON, || {
        run(&home, &url, &["ring", "add", "b"]).code == 0
    })
    .unwrap();
    let moves = shown(&run(&home, &url, &["inspect", "order:42", "--json"]));
    assert_eq!(moves["member"], "b");
    assert!(moves["free_in_ms"].as_u64() > Some(0), "{moves}");
}

#[test]
fn another_store_is_no_ring() {
    let home = Home::new();
    for step in [&["init"][..], &["show"], &["add", "a"], &["remove", "a"]] {
        let args = [&["ring"], step].concat();
        let other = run(&home, "redis://:hunter2@h", &args);
        other.assert_failed(78, "the store is no ring");
        assert!(!other.stderr.contains("hunter2"), "{other:?}");
        let wrong = run(&home, "ring:?records=redis://:hunter2@localhost", &args);
        wrong.assert_failed(78, "at least one member");
        assert!(!wrong.stderr.contains("hunter2"), "{wrong:?}");
    }
}

#[test]
fn a_watch_removes_a_dead_member_and_ends_its_term_on_a_signal() {
    let home = Home::new();
    // A ring store may lose nothing if the longest lease is that short.
    let start = |_| RedisServer::with(&["appendfsync always"]).unwrap();
    let mut servers: Vec<_> = (0..3).map(start).collect();
    let url = url_of(&servers);
    let init = ["ring", "init", "--new", "--max-lease", "1s", "--validity"];
    let made = run(&home, &url, &[&init[..], &["500ms"]].concat());
    assert_eq!(made.code, 0, "{made:?}");
    let start = || {
        let mut command = home.bare(["ring", "watch", "--dead-after", "1s"]);
        Process::spawn(command.env("DISTLOCK_BACKEND", &url)).unwrap()
    };
    let mut first = start();
    let says = |watch: &Process, text: &str| {
        watch
            .wait_for_line(SOON, |line| line.contains(text))
            .unwrap()
    };
    says(&first, "watches the members");
    let mut second = start();
    servers[1].kill();
    says(&first, "removed b: it has not answered for 1s");
    // The next one leads at once, and knows that the member is away.
    first.signal(Signal::TERM).unwrap();
    assert_eq!(first.wait(SOON).unwrap().code(), Some(143));
    says(&second, "watches the members");
    let show = shown(&run(&home, &url, &["ring", "show", "--json"]));
    assert_eq!(show["members"][1]["active"], false);
    second.signal(Signal::TERM).unwrap();
    assert_eq!(second.wait(SOON).unwrap().code(), Some(143));
}
