//! The tool over Redis: the demo, a lock held by a process, and what it says when a URL is wrong.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use distlock_harness::{
    Process,
    servers::redis::{RedisCluster, RedisServer},
};

use crate::support::{Finished, Home, SOON, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

#[test]
fn the_demo_passes_and_leaves_nothing() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let mut run = Process::spawn(&mut home.bare(["demo", "--backend", &server.url()])).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 6 scenes passed"), "{output}");
    assert_eq!(server.command(&["KEYS", "*:r:*"]).unwrap(), "", "{output}");
    // The killed node's lease included.
    assert_eq!(server.command(&["KEYS", "*:l:*"]).unwrap(), "", "{output}");
}

#[test]
fn a_lock_is_shown_with_its_holder_and_passes_on() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let taken = run(
        &home,
        &url,
        &["acquire", "job", "--ttl", "1m", "--holder", "me"],
    );
    assert_eq!(taken.code, 0, "{taken:?}");
    let shown = run(&home, &url, &["inspect", "job", "--json"]).json();
    assert_eq!(
        (&shown["state"], &shown["holder"]),
        (&"held".into(), &"me".into())
    );
    let busy = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    busy.failed_with(75, "me");
    let ticket = taken.stdout.trim();
    let released = finish(home.bare(["release"]).env("DISTLOCK_BACKEND", &url), ticket);
    assert_eq!(released.code, 0, "{released:?}");
    let ran = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
}

#[test]
fn a_wrong_url_is_told_soon_with_its_code_and_no_secret() {
    let home = Home::new();
    let server = RedisServer::with(&["requirepass secret"]).unwrap();
    let replica = RedisServer::with(&["replicaof 127.0.0.1 1"]).unwrap();
    let cluster = RedisCluster::start(3, 0).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let (at, node) = (server.address().to_string(), cluster.nodes[0].url());
    let plain_for_tls = if cfg!(feature = "tls") {
        (69, &*at)
    } else {
        (78, "tls")
    };
    for (url, code, says) in [
        (format!("redis://{at}"), 77, "refused the credentials"),
        (format!("redis://:canary@{at}"), 77, &*at),
        (
            format!("redis://{at}?password=canary"),
            77,
            "refused the credentials",
        ),
        (format!("redis://:secret@{at}/99"), 78, "DB index"),
        (format!("redis://:canary@{at}?prefx=a"), 78, "`prefix`"),
        (format!("redis://:canary@{at}?db=x"), 78, "`db`"),
        (
            format!("rediss://:canary@{at}"),
            plain_for_tls.0,
            plain_for_tls.1,
        ),
        (replica.url(), 69, "replica"),
        (node, 78, "redis+cluster://"),
        (format!("redis://:canary@{silent}"), 69, &*silent),
    ] {
        let sign = if url.contains('?') { '&' } else { '?' };
        let start = Instant::now();
        let done = run(&home, &format!("{url}{sign}connect_timeout=2s"), &["list"]);
        // Time to start a process on a busy machine is not counted against it.
        assert!(
            start.elapsed() < Duration::from_secs(2 + 1) + SOON / 10,
            "{url}"
        );
        done.failed_with(code, says);
        assert!(!done.stderr.contains("canary"), "{done:?}");
        assert!(!done.stderr.contains("secret"), "{done:?}");
    }
}
