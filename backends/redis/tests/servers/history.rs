//! Changes of a server's replication that are a new history of its locks, and those that are not.

use std::time::Duration;

use crate::common::{SOON, locker, redis};
use distlock_core::{Epoch, Guard, LockName};
use distlock_harness::{eventually, eventually_async, servers::redis::RedisServer};
use distlock_redis::Redis;

/// The TTL of a lease that outlives every test.
const LONG: Duration = Duration::from_secs(60);

/// Closes all connections of clients, and returns the epoch that the store finds on its next one.
/// No request on a closed connection gets an answer.
async fn epoch_after_reconnect(store: &Redis, server: &RedisServer) -> Epoch {
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    server.command(&kill).unwrap();
    let (lock, name) = (store.lock(), LockName::new("a").unwrap());
    eventually_async("it connects again", SOON, || async {
        let info = lock.inspect(&name).await.ok()?;
        info.epoch
    })
    .await
    .unwrap()
}

/// Waits until the server has another replication id than this one.
fn wait_for_another_id(server: &RedisServer, id: &str) -> String {
    let now = || server.info("master_replid").unwrap();
    eventually("the replication id changes", SOON, || now() != id).unwrap();
    now()
}

fn set(server: &RedisServer, setting: &str, value: &str) {
    let set = ["CONFIG", "SET", setting, value];
    assert_eq!(server.command(&set).unwrap(), "OK");
}

async fn renewed(guard: &Guard) -> Epoch {
    eventually_async("it is renewed", SOON, || async {
        guard.extend(LONG).await.ok()
    })
    .await
    .unwrap();
    guard.epoch()
}

/// A primary changes its replication id when its first replica is attached, and when its last
/// replica has been away for `repl-backlog-ttl`.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_come_and_go_are_no_new_history() {
    let server = RedisServer::with(&["repl-diskless-sync-delay 0", "repl-backlog-ttl 1"]).unwrap();
    let (store, locker) = (
        redis(&server.url()).await.unwrap(),
        locker(&server.url()).await,
    );
    let guard = locker.lock("a").ttl(LONG).acquire().await.unwrap();
    let (first, id) = (guard.epoch(), server.info("master_replid").unwrap());

    let replica = server.replica().unwrap();
    let id = wait_for_another_id(&server, &id);
    assert_eq!(
        epoch_after_reconnect(&store, &server).await,
        first,
        "attached"
    );
    assert_eq!(renewed(&guard).await, first, "attached");

    drop(replica);
    wait_for_another_id(&server, &id);
    assert_eq!(epoch_after_reconnect(&store, &server).await, first, "away");
    assert_eq!(renewed(&guard).await, first, "away");
    // Another process finds the same epoch, so a fence compares their tokens.
    let other = redis(&server.url()).await.unwrap();
    assert_eq!(
        epoch_after_reconnect(&other, &server).await,
        first,
        "another client"
    );
    assert!(guard.release().await.is_clean());
}

/// A promoted server forgets what it was before, when its last replica has been away for
/// `repl-backlog-ttl`.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_promotion_is_a_new_history() {
    let first = RedisServer::with(&["repl-diskless-sync-delay 0"]).unwrap();
    let second = first.replica().unwrap();
    let store = redis(&first.url()).await.unwrap();
    let before = epoch_after_reconnect(&store, &first).await;

    // The first server is demoted, gets the data of the other one, and is promoted again.
    assert_eq!(second.command(&["REPLICAOF", "NO", "ONE"]).unwrap(), "OK");
    set(&first, "masterauth", second.password());
    let port = second.port().to_string();
    let demote = ["REPLICAOF", "127.0.0.1", &port];
    assert_eq!(first.command(&demote).unwrap(), "OK");
    eventually("it follows", SOON, || {
        first
            .info("master_link_status")
            .is_ok_and(|status| status == "up")
    })
    .unwrap();
    assert_eq!(first.command(&["REPLICAOF", "NO", "ONE"]).unwrap(), "OK");
    let after = epoch_after_reconnect(&store, &first).await;
    assert_ne!(after, before, "promoted");

    let id = first.info("master_replid").unwrap();
    set(&first, "repl-backlog-ttl", "1");
    wait_for_another_id(&first, &id);
    assert!(
        !first.info("master_replid2").unwrap().contains(['1', 'a']),
        "forgotten"
    );
    assert_eq!(epoch_after_reconnect(&store, &first).await, after, "away");
}
