//! The findings of `health` on real servers.

use crate::common::{SOON, redis};
use distlock_core::{Health, Verdict};
use distlock_harness::{
    Signal, eventually,
    servers::redis::{RedisSentinels, RedisServer},
};

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
async fn a_safe_server_passes_all_checks() {
    let server = RedisServer::with(&["appendfsync always", "maxmemory-policy noeviction"]).unwrap();
    let health = health(&server).await;
    for found in &health.findings {
        assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
    }
    assert!(health.epoch.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_settings_and_a_replica_without_arbiter_fail() {
    let server = RedisServer::with(&[
        "appendonly no",
        "maxmemory 100mb",
        "maxmemory-policy volatile-ttl",
        "repl-diskless-sync-delay 0",
    ])
    .unwrap();
    let replica = server.replica().unwrap();
    eventually("the replica follows", SOON, || {
        replica
            .info("master_link_status")
            .is_ok_and(|status| status == "up")
    })
    .unwrap();
    let before = health(&server).await;
    found(&before, "eviction", Verdict::Fail, "noeviction");
    found(&before, "persistence", Verdict::Fail, "appendonly yes");
    found(&before, "replicas", Verdict::Fail, "min-replicas-to-write");
    found(&before, "replicas", Verdict::Fail, "It costs");
    server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .unwrap();
    let after = health(&server).await;
    found(&after, "replicas", Verdict::Fail, "asynchronous");
    found(&after, "replicas", Verdict::Fail, "without limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_counts_sentinels_and_states_the_bound() {
    let servers = RedisSentinels::start().unwrap();
    let store = redis(&servers.url()).await.unwrap();
    let before = store.lock().health().await.unwrap();
    found(&before, "sentinels", Verdict::Pass, "3 of 3");
    found(&before, "replicas", Verdict::Fail, "min-replicas-to-write");
    servers.sentinels[2].signal(Signal::STOP).unwrap();
    let set = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    servers.primary.command(&set).unwrap();
    let after = store.lock().health().await.unwrap();
    found(&after, "sentinels", Verdict::Warn, "2 of 3");
    found(&after, "replicas", Verdict::Pass, "one TTL at the most");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_primary_fails_the_role_check() {
    let server = RedisServer::start().unwrap();
    let store = redis(&server.url()).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    // The connection stays open, because each examination reads the role of the server again.
    let health = store.lock().health().await.unwrap();
    found(&health, "role", Verdict::Fail, "primary");
}

/// These settings break a guarantee that no client can keep alone. Each is named with its remedy.
#[tokio::test(flavor = "multi_thread")]
async fn dangerous_settings_are_named_with_their_remedy() {
    let server = RedisServer::with(&[
        "replica-read-only no",
        "client-output-buffer-limit normal 1mb 0 0",
        "tracking-table-max-keys 10",
    ])
    .unwrap();
    let before = health(&server).await;
    for (check, verdict, says) in [
        ("demotion", Verdict::Fail, "replica-read-only yes"),
        (
            "buffers",
            Verdict::Warn,
            "client-output-buffer-limit 1048576",
        ),
        ("pushes", Verdict::Warn, "tracking-table-max-keys 1000000"),
    ] {
        found(&before, check, verdict, says);
    }
    for [setting, value] in [
        ["replica-read-only", "yes"],
        ["client-output-buffer-limit", "normal 0 0 0"],
        ["tracking-table-max-keys", "1000000"],
        ["maxmemory-clients", "1mb"],
    ] {
        let set = server.command(&["CONFIG", "SET", setting, value]);
        assert_eq!(set.unwrap(), "OK");
    }
    let after = health(&server).await;
    found(&after, "demotion", Verdict::Pass, "");
    found(&after, "pushes", Verdict::Pass, "");
    found(
        &after,
        "buffers",
        Verdict::Warn,
        "maxmemory-clients 1048576",
    );
}

/// Renamed commands break the operations that need them, so the doctor names these commands.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_renamed_commands() {
    for (renamed, says) in [
        (
            &["CLIENT", "EXISTS"][..],
            "EXISTS, CLIENT|TRACKING, CLIENT|CACHING",
        ),
        (&["EVALSHA"], "EVALSHA"),
        (&["EVAL"], "EVAL"),
    ] {
        let settings: Vec<_> = renamed
            .iter()
            .map(|command| format!("rename-command {command} \"\""))
            .collect();
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let server = RedisServer::with(&settings).unwrap();
        let says = format!("knows no {says}: take the rename-command");
        found(&health(&server).await, "rights", Verdict::Fail, &says);
    }
    let server = RedisServer::with(&["rename-command CONFIG \"\""]).unwrap();
    let health = health(&server).await;
    found(&health, "persistence", Verdict::Unknown, "rename-command");
    found(&health, "rights", Verdict::Pass, "");
}
