//! On a system that refuses a further thread or process, the tool reports that and ends with 69.

use std::process::Command;

use distlock_harness::eventually;

use crate::{
    limited_user::{LimitedUser, SAYS},
    support::{Finished, SOON, finish},
};

#[test]
fn each_command_reports_a_missing_thread() {
    let few = LimitedUser::new();
    for words in [
        &["acquire", "job", "--ttl", "1s"][..],
        &["inspect", "job"],
        &["list"],
        &["doctor"],
        &["migrate"],
    ] {
        few.run_with_growing_room(words, |_| {}, |_| {});
    }
}

/// A failure leaves no partial result: the command was not started, and the lock is free or
/// expires.
#[test]
fn run_reports_a_missing_thread_and_leaves_no_lock_behind() {
    let few = LimitedUser::new();
    let script = "echo ran > ran";
    let words = ["run", "job", "--ttl", "2s", "--", "sh", "-c", script];
    let ran = few.tool.parent().unwrap().join("ran");
    let not_done = |_: &Finished| {
        assert!(!ran.exists(), "the command ran");
        let free = || {
            let done = finish(&mut few.tool(None, &["inspect", "job", "--json"]), "");
            done.json()["state"] == "free"
        };
        eventually("the lock is free", SOON, free).unwrap();
    };
    few.run_with_growing_room(&words, |_| {}, not_done);
    assert!(ran.exists());
}

#[test]
fn a_gateway_node_reports_a_missing_thread() {
    let few = LimitedUser::new();
    let words = [
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
        "--events",
        "--exit-with-stdin",
    ];
    let key = |tool: &mut Command| {
        tool.env(
            "DISTLOCK_GATEWAY_TOKEN_KEY",
            "a key that is long enough for HS256",
        );
    };
    few.run_with_growing_room(&words, key, |_| {});
}

/// A look-up of a host name needs a thread, and drivers have no error for a missing thread.
#[test]
fn a_driver_without_a_thread_is_no_bug() {
    let few = LimitedUser::new();
    for (url, most) in [
        ("redis://localhost:1", 2),
        ("redis+cluster://localhost:1", 2),
        ("redis+sentinel://localhost:1/main", 2),
        ("mysql://u@localhost:1/d", 2),
        ("postgres://u@localhost:1/d", 2),
        // The ZooKeeper client starts threads of its own.
        ("zookeeper://localhost:1/r", 5),
    ] {
        for room in 1..=most {
            few.wait_until_idle();
            let mut list = few.tool(Some(room), &["list", "--backend", url]);
            let done = finish(&mut list, "");
            let said = format!("{url} with room for {room}: {done:?}");
            assert_eq!(done.code, 69, "{said}");
            assert!(!done.stderr.contains("panicked"), "{said}");
            let is_limited = room == 1 && few.is_alone();
            assert!(!is_limited || done.stderr.contains(SAYS), "{said}");
        }
    }
}
