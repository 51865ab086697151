//! The tool over a ring of Redis servers: the steps of an operator, and the exit codes for wrong
//! members.

use distlock_harness::{eventually, servers::redis::RedisServer};
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
    let init = ["ring", "init", "--new", "--max-lease", "1s", "--validity"];
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
    // Each name can be locked when the quarantine of 1.55 s is over.
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
}

#[test]
fn another_store_is_no_ring() {
    let home = Home::new();
    for step in [&["init"][..], &["show"], &["add", "a"], &["remove", "a"]] {
        let args = [&["ring"], step].concat();
        let other = run(&home, "redis://:hunter2@h", &args);
        other.assert_failed(78, "the store is no ring");
        assert!(!other.stderr.contains("hunter2"), "{other:?}");
        let wrong = run(&home, "ring:?records=redis://:hunter2@h", &args);
        wrong.assert_failed(78, "at least one member");
        assert!(!wrong.stderr.contains("hunter2"), "{wrong:?}");
    }
}
