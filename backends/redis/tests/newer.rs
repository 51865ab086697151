//! Servers newer than those of the distribution: Valkey 9, which deletes an unchanged value without
//! a script, and Redis 8.

mod common;

use std::time::Duration;

use common::{conforms, locker, open, redis};
use distlock_conformance::Subject;
use distlock_core::Verdict;
use distlock_harness::servers::redis::{Flavour, RedisServer};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn valkey_conforms() {
    let server = RedisServer::start_flavour(Flavour::Valkey9, &[]).unwrap();
    let url = server.url();
    let subject = Subject::connect("valkey", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
    assert!(server.calls("delifeq").unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_8_conforms() {
    let server = RedisServer::start_flavour(Flavour::Redis8, &[]).unwrap();
    let url = server.url();
    let subject = Subject::connect("redis_8", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
}

/// Acquires and releases one lock several times. Returns the number of compare-and-delete commands
/// and the number of script commands.
async fn count_release_commands(server: &RedisServer, url: &str, rounds: u64) -> (u64, u64) {
    let locker = locker(url).await;
    let (mut compared, mut scripts) = (0, 0);
    for _ in 0..rounds {
        let guard = locker.lock("a").ttl(LONG).acquire().await.unwrap();
        let reset = server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        assert_eq!(reset, "OK");
        assert!(guard.release().await.is_clean());
        compared += server.calls("delifeq").unwrap();
        for script in ["eval", "evalsha", "get", "del"] {
            scripts += server.calls(script).unwrap();
        }
    }
    assert_eq!(server.command(&["KEYS", "*:l:*"]).unwrap(), "");
    (compared, scripts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_release_on_valkey_is_one_comparison_and_no_script() {
    let server = RedisServer::start_flavour(Flavour::Valkey9, &[]).unwrap();
    assert_eq!(
        count_release_commands(&server, &server.url(), 5).await,
        (5, 0)
    );
    // A user without the right to this command releases by script. With the right, no script runs.
    let rights = include_str!("../src/acl.txt").trim();
    let rights = rights.replace(">PASSWORD", ">secret");
    let mut words: Vec<_> = rights.split(' ').collect();
    let url = format!("redis://distlock:secret@{}", server.address());
    assert_eq!(server.command(&words).unwrap(), "OK");
    let (_, scripts) = count_release_commands(&server, &url, 5).await;
    assert!(scripts >= 5, "{scripts} scripts");
    words.push("+delifeq");
    assert_eq!(server.command(&words).unwrap(), "OK");
    assert_eq!(count_release_commands(&server, &url, 5).await, (5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_knows_newer_servers() {
    for (flavour, name) in [(Flavour::Valkey9, "Valkey "), (Flavour::Redis8, "Redis ")] {
        let server = RedisServer::start_flavour(flavour, &["appendfsync always"]).unwrap();
        let store = redis(&server.url()).await.unwrap();
        let health = store.lock().health().await.unwrap();
        assert!(health.server.starts_with(name), "{health:?}");
        for found in &health.findings {
            assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
        }
        assert!(health.epoch.is_some());
    }
}
