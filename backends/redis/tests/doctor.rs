//! What `health` says of real servers.

mod common;

use common::{SOON, redis};
use distlock_core::{Health, Verdict};
use distlock_harness::{eventually, servers::redis::RedisServer};

async fn health(server: &RedisServer) -> Health {
    let store = redis(&server.url()).await.unwrap();
    store.lock().health().await.unwrap()
}

#[track_caller]
fn found(health: &Health, check: &str, verdict: Verdict, says: &str) {
    let finding = health.findings.iter().find(|found| found.check == check);
    let finding = finding.unwrap();
    assert_eq!(finding.verdict, verdict, "{health:?}");
    assert!(finding.detail.contains(says), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_keeps_everything() {
    let server = RedisServer::with(&["appendfsync always", "maxmemory-policy noeviction"]).unwrap();
    let health = health(&server).await;
    for found in &health.findings {
        assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
    }
    assert!(health.epoch.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_with_a_replica() {
    let server = RedisServer::with(&[
        "appendonly no",
        "maxmemory 100mb",
        "maxmemory-policy volatile-ttl",
        "repl-diskless-sync-delay 0",
    ])
    .unwrap();
    let replica = RedisServer::with(&[&format!("replicaof 127.0.0.1 {}", server.port())]).unwrap();
    eventually("the replica follows", SOON, || {
        replica
            .info("master_link_status")
            .is_ok_and(|status| status == "up")
    })
    .unwrap();
    let before = health(&server).await;
    found(&before, "eviction", Verdict::Warn, "noeviction");
    found(&before, "persistence", Verdict::Warn, "appendonly yes");
    found(&before, "replicas", Verdict::Warn, "min-replicas-to-write");
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .unwrap();
    let after = health(&server).await;
    found(&after, "replicas", Verdict::Pass, "asynchronous");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_demoted_is_no_place_for_locks() {
    let server = RedisServer::start().unwrap();
    let store = redis(&server.url()).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    // The connection is still there; the server tells its role when it is asked.
    let health = store.lock().health().await.unwrap();
    found(&health, "role", Verdict::Fail, "primary");
}
