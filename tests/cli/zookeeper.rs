//! The tool over a ZooKeeper ensemble: the demo, a lock held by a process, and the errors when a
//! URL is wrong.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use distlock_harness::{
    Direction, FaultProxy, Process, Signal, eventually, free_port, servers::zookeeper::ZooKeeper,
};

use crate::support::{Finished, Home, SOON, assert_success_without_release, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

#[test]
fn the_demo_passes_and_a_lock_passes_on() {
    let (home, ensemble) = (Home::new(), ZooKeeper::start().unwrap());
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    let mut demo = Process::spawn(&mut home.bare(["demo", "--backend", &url])).unwrap();
    let status = demo.wait(SOON * 6).unwrap();
    let output = demo.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");

    let held = ["run", "job", "--holder", "me", "--", "sleep", "60"];
    let mut holder = Process::spawn(home.bare(held).env("DISTLOCK_BACKEND", &url)).unwrap();
    let shown = || run(&home, &url, &["inspect", "job", "--json"]).json();
    eventually("held", SOON, || shown()["state"] == "held").unwrap();
    assert_eq!(shown()["holder"], "me");
    // The lock depends on the session of the process and ends with it, so there is no ticket.
    let refused = run(&home, &url, &["acquire", "job", "--ttl", "5s"]);
    refused.assert_failed(78, "zookeeper: has no tickets");
    let busy = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    busy.assert_failed(75, "me");
    let next = [
        "run", "job", "--holder", "next", "--wait", "10m", "--", "true",
    ];
    let mut next = Process::spawn(home.bare(next).env("DISTLOCK_BACKEND", &url)).unwrap();
    eventually("in line", SOON, || shown()["waiters"] == 1).unwrap();
    assert_eq!(
        shown()["queue"],
        serde_json::json!([{"position": 1, "holder": "next", "meta": null}])
    );
    let text = run(&home, &url, &["inspect", "job"]);
    assert!(
        text.stdout.contains("waits as number 1: next\n"),
        "{text:?}"
    );
    next.signal(Signal::TERM).unwrap();
    next.wait(SOON).unwrap();
    let token = shown()["token"].to_string();
    let forced = run(&home, &url, &["force-release", "job", "--token", &token]);
    assert_eq!(forced.code, 0, "{forced:?}");
    // The holder gets the report of the loss, and ends its command.
    let status = holder.wait(SOON).unwrap();
    assert_eq!(status.code(), Some(76), "{}", holder.output());
    let ran = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
}

#[test]
fn a_wrong_url_is_refused_soon_with_its_code_and_no_secret() {
    let home = Home::new();
    let closed = format!("127.0.0.1:{}", free_port().unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for (url, code, says) in [
        (format!("zookeeper://u:canary@{closed}/app"), 69, &*closed),
        (format!("zookeeper://u:canary@{silent}/app"), 69, &*silent),
        (format!("zookeeper://u:canary@{closed}/"), 78, "root path"),
        (
            format!("zookeeper://u:canary@{closed}/zookeeper/x"),
            78,
            "belongs to the ensemble",
        ),
        (
            format!("zookeeper://u:canary@{closed}/app?sesion_timeout=5s"),
            78,
            "`session_timeout`",
        ),
        (format!("zookeeper://canary@{closed}/app"), 78, "password"),
    ] {
        let sign = if url.contains('?') { '&' } else { '?' };
        let start = Instant::now();
        let done = run(&home, &format!("{url}{sign}connect_timeout=2s"), &["list"]);
        // The time to start a process on a busy machine does not count.
        assert!(
            start.elapsed() < Duration::from_secs(2 + 1) + SOON / 10,
            "{url}"
        );
        done.assert_failed(code, says);
        assert!(!done.stderr.contains("canary"), "{done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ended_inside_its_lease_succeeds_without_a_release() {
    let (home, ensemble) = (Home::new(), ZooKeeper::start().unwrap());
    let mut proxies = Vec::new();
    for at in 0..ensemble.len() {
        proxies.push(FaultProxy::start(ensemble.address(at)).await.unwrap());
    }
    let servers: Vec<_> = proxies.iter().map(FaultProxy::address).collect();
    let servers = ensemble.reached_at(&servers);
    let url = format!("zookeeper://{servers}/app?session_timeout=3s");
    let cut = || {
        for proxy in &proxies {
            proxy.stop(Direction::ToServer);
            proxy.stop(Direction::ToClient);
        }
    };
    // Leases last 2 s. At least 1.3 s of the lease are left when the ensemble is cut off.
    let args = ["--kill-after", "100ms"];
    assert_success_without_release(&home, &url, &args, cut);
}

/// The tool keeps a lock for its minimum hold, whether that is shorter than a lease or longer than
/// the session. A tool that ends before costs at most the session.
#[test]
fn a_minimum_hold_ends_on_time_or_with_its_session() {
    let (home, ensemble) = (Home::new(), ZooKeeper::start().unwrap());
    let session = Duration::from_secs(5);
    // The time that a busy machine adds to the start of a process and to a grant.
    let slack = Duration::from_secs(3);
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    let hold = |time: &str| {
        let args = ["run", "job", "--min-hold", time, "--", "true"];
        Process::spawn(home.bare(args).env("DISTLOCK_BACKEND", &url)).unwrap()
    };
    let held = || run(&home, &url, &["inspect", "job", "--json"]).json()["state"] == "held";
    let wait_for_next = || {
        let next = run(&home, &url, &["run", "job", "--wait", "1m", "--", "true"]);
        assert_eq!(next.code, 0, "{next:?}");
    };
    for seconds in [1, 7] {
        let time = Duration::from_secs(seconds);
        let start = Instant::now();
        let mut holder = hold(&format!("{seconds}s"));
        eventually("held", SOON, held).unwrap();
        wait_for_next();
        let took = start.elapsed();
        assert!(took >= time && took < time + slack, "{time:?}: {took:?}");
        assert_eq!(
            holder.wait(SOON).unwrap().code(),
            Some(0),
            "{}",
            holder.output()
        );
    }
    for (signal, code) in [(Signal::KILL, None), (Signal::TERM, Some(0))] {
        let mut holder = hold("10m");
        eventually("the command has ended", SOON, || {
            holder.output().contains("is kept for")
        })
        .unwrap();
        let start = Instant::now();
        holder.signal(signal).unwrap();
        assert_eq!(
            holder.wait(slack).unwrap().code(),
            code,
            "{}",
            holder.output()
        );
        wait_for_next();
        assert!(start.elapsed() < session + slack, "{:?}", start.elapsed());
    }
}
