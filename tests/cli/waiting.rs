//! `inspect` shows the processes that wait for a lock, on each store that keeps a queue of them.

use distlock_harness::{
    Process, Signal, eventually,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::{RedisCluster, RedisServer},
        zookeeper::ZooKeeper,
    },
};
use serde_json::json;

use crate::support::{Home, SOON, finish};

#[test]
fn waiting_processes_are_shown_on_sqlite() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    waiters_are_shown(&home, &url);
}

#[test]
fn waiting_processes_are_shown_on_redis() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    waiters_are_shown(&home, &server.url());
    let cluster = RedisCluster::start(3, 0).unwrap();
    waiters_are_shown(&home, &cluster.url());
}

#[test]
fn waiting_processes_are_shown_on_postgres() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    waiters_are_shown(&home, &server.url());
}

#[test]
fn waiting_processes_are_shown_on_mysql() {
    for product in Product::ALL {
        let (home, server) = (Home::new(), MySqlServer::start(product).unwrap());
        waiters_are_shown(&home, &server.url());
    }
}

#[test]
fn waiting_processes_are_shown_on_zookeeper() {
    let (home, server) = (Home::new(), ZooKeeper::start().unwrap());
    waiters_are_shown(&home, &format!("zookeeper://{}/app", server.servers()));
}

/// Two processes wait behind a holder. `inspect` names both in the order in which they came, and
/// shows the second alone after the first has gone.
fn waiters_are_shown(home: &Home, url: &str) {
    let start =
        |words: &[&str]| Process::spawn(home.bare(words).env("DISTLOCK_BACKEND", url)).unwrap();
    let run = |words: &[&str]| finish(home.bare(words).env("DISTLOCK_BACKEND", url), "");
    let shown = || {
        let done = run(&["inspect", "job", "--json"]);
        assert_eq!(done.code, 0, "{url}: {done:?}");
        done.json()
    };
    let held = start(&["run", "job", "--holder", "me", "--", "sleep", "300"]);
    eventually("held", SOON, || shown()["state"] == "held").unwrap();
    assert_eq!(shown()["waiters"], 0, "{url}");
    let wait = |label: &str| {
        start(&[
            "run", "job", "--holder", label, "--wait", "5m", "--", "true",
        ])
    };
    let mut first = wait("first Ü");
    eventually("one waits", SOON, || shown()["waiters"] == 1).unwrap();
    let second = wait("second");
    eventually("two wait", SOON, || shown()["waiters"] == 2).unwrap();
    assert_eq!(
        shown()["queue"],
        json!([
            {"position": 1, "holder": "first Ü", "meta": null},
            {"position": 2, "holder": "second", "meta": null},
        ]),
        "{url}"
    );
    let text = run(&["inspect", "job"]).stdout;
    let lines = "  waits as number 1: first Ü\n  waits as number 2: second\n";
    assert!(text.ends_with(lines), "{url}: {text}");
    first.signal(Signal::TERM).unwrap();
    first.wait(SOON).unwrap();
    eventually("one has left", SOON, || {
        shown()["queue"] == json!([{"position": 1, "holder": "second", "meta": null}])
    })
    .unwrap();
    drop((held, second));
}
