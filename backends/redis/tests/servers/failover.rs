//! A replica takes over. The old holder learns the reason of its loss, and tokens still rise.

use std::time::Duration;

use crate::common::{SOON, locker, within};
use distlock_core::{Guard, Locker, LossReason};
use distlock_harness::{
    Signal, eventually, eventually_async,
    servers::redis::{RedisCluster, RedisSentinels, RedisServer},
};

/// A time that is longer than a failover on a busy machine.
const TTL: Duration = Duration::from_secs(60);

async fn hold(locker: &Locker, name: &str, ttl: Duration) -> Guard {
    let acquired = locker.lock(name).ttl(ttl).wait(SOON * 2).acquire();
    acquired.await.unwrap()
}

/// After a failover to an up-to-date replica the lock is still held, under a new epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_replicated_lock_survives_a_failover() {
    let mut servers = RedisSentinels::start().unwrap();
    let locker = locker(&servers.url()).await;
    let guard = hold(&locker, "a", TTL).await;
    let (epoch, token) = (guard.epoch(), guard.token());
    eventually("the replica has it", SOON, || {
        let keys = servers.replica.command(&["KEYS", "*:lock:*"]);
        keys.is_ok_and(|keys| keys.ends_with("}:lock:a"))
    })
    .unwrap();
    servers.primary.kill();
    eventually("the replica was promoted", SOON * 2, || {
        servers
            .replica
            .info("role")
            .is_ok_and(|role| role == "master")
    })
    .unwrap();
    eventually_async("the new epoch is noted", TTL, || async {
        // A renewal reports the new epoch.
        let _ = guard.extend(TTL).await;
        (guard.epoch() != epoch).then_some(())
    })
    .await
    .unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.token(), token);
    assert!(guard.release().await.is_clean());
    let next = hold(&locker, "a", TTL).await;
    assert!(next.token() > token, "the counter went along");
    assert!(next.release().await.is_clean());
}

/// Acquires a lock that the replica does not get, so the replica's counter is behind. Afterwards
/// the replica is frozen.
async fn hold_unreplicated(locker: &Locker, primary: &RedisServer, replica: &RedisServer) -> Guard {
    // Both servers have the same counter.
    let before = hold(locker, "a", TTL).await;
    let last = before.token();
    eventually("the replica has it", SOON, || {
        let keys = replica.command(&["KEYS", "*:counter"]);
        keys.is_ok_and(|keys| !keys.is_empty())
    })
    .unwrap();
    assert!(before.release().await.is_clean());
    eventually("the replica knows of the release", SOON, || {
        let keys = replica.command(&["KEYS", "*:lock:*"]);
        keys.is_ok_and(|keys| keys.is_empty())
    })
    .unwrap();
    replica.signal(Signal::STOP).unwrap();
    let killed = primary.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert_eq!(killed.unwrap(), "1");
    let guard = hold(locker, "a", TTL).await;
    assert!(guard.token() > last);
    guard
}

/// Waits until the holder learns that a failover lost its lock. The holder must learn this while
/// its lease still runs. Later the holder would learn only that no server could be reached.
async fn wait_for_history_changed(guard: &Guard) {
    let reason = within(TTL, "the holder learns of the loss", guard.lost()).await;
    assert_eq!(reason, LossReason::HistoryChanged);
}

/// Checks that the next holder has a higher token and another epoch, and that no operation of the
/// former holder changes that.
async fn check_replaced_by(guard: Guard, next: Guard) {
    assert!(next.token() > guard.token(), "the clock did not forget");
    assert_ne!(next.epoch(), guard.epoch());
    assert!(!guard.release().await.is_clean());
    next.extend(TTL).await.unwrap();
    assert!(next.release().await.is_clean());
}

/// After a failover to a replica that was cut off before the grant, the lock is lost and the
/// counter is behind.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_an_unreplicated_lock_learns_of_its_loss_and_tokens_rise() {
    let mut servers = RedisSentinels::start().unwrap();
    let locker = locker(&servers.url()).await;
    let guard = hold_unreplicated(&locker, &servers.primary, &servers.replica).await;
    servers.primary.kill();
    servers.replica.signal(Signal::CONT).unwrap();
    wait_for_history_changed(&guard).await;
    let next = hold(&locker, "a", TTL).await;
    check_replaced_by(guard, next).await;
}

/// A primary is frozen while another server takes its place, and then the old primary runs again.
/// The old primary acts as a primary until the sentinels demote it.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_that_runs_again_changes_nothing() {
    let servers = RedisSentinels::start().unwrap();
    let (first, second) = (locker(&servers.url()).await, locker(&servers.url()).await);
    let guard = hold_unreplicated(&first, &servers.primary, &servers.replica).await;
    servers.primary.signal(Signal::STOP).unwrap();
    servers.replica.signal(Signal::CONT).unwrap();
    let next = eventually_async("another serves", SOON * 2, || async {
        let acquired = second.lock("a").ttl(TTL).wait(Duration::ZERO).acquire();
        acquired.await.ok()
    })
    .await
    .unwrap();
    servers.primary.signal(Signal::CONT).unwrap();
    wait_for_history_changed(&guard).await;
    assert!(next.is_valid());
    check_replaced_by(guard, next).await;
    eventually("it has been told as well", SOON, || {
        let role = servers.primary.info("role");
        role.is_ok_and(|role| role == "slave")
    })
    .unwrap();
}

/// The same case in one shard of a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn the_holder_of_an_unreplicated_lock_of_a_shard_learns_of_its_loss() {
    let mut servers = RedisCluster::start(3, 1).unwrap();
    let locker = locker(&servers.url()).await;
    assert!(hold(&locker, "a", TTL).await.release().await.is_clean());
    let counter = servers.nodes.iter().find_map(|node| {
        let keys = node.command(&["KEYS", "*:counter"]).ok()?;
        keys.lines().next().map(str::to_owned)
    });
    let primary = servers.primary_of(&counter.unwrap()).unwrap();
    // `ip=127.0.0.1,port=40000,state=online,..`
    let line = servers.nodes[primary].info("slave0").unwrap();
    let port = line.split(',').find_map(|part| part.strip_prefix("port="));
    let port: u16 = port.unwrap().parse().unwrap();
    let mut nodes = servers.nodes.iter();
    let replica = nodes.position(|node| node.port() == port).unwrap();
    let nodes = &servers.nodes;
    let guard = hold_unreplicated(&locker, &nodes[primary], &nodes[replica]).await;
    servers.nodes[primary].kill();
    servers.nodes[replica].signal(Signal::CONT).unwrap();
    wait_for_history_changed(&guard).await;
    let next = eventually_async("its replica serves", SOON * 2, || async {
        let acquired = locker.lock("a").ttl(TTL).wait(Duration::ZERO).acquire();
        acquired.await.ok()
    })
    .await
    .unwrap();
    check_replaced_by(guard, next).await;
}

/// One shard of three fails over. The locks of this shard stay held under a new epoch, and the
/// locks of the other shards are not affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_one_shard_keeps_all_locks() {
    let mut servers = RedisCluster::start(3, 1).unwrap();
    let locker = locker(&servers.url()).await;
    // Each shard has at least one of these locks with high probability.
    let mut guards = Vec::new();
    for at in 0..12 {
        guards.push(hold(&locker, &format!("lock-{at}"), TTL).await);
    }
    let keys = |pattern: &str| -> Vec<String> {
        let of = |node: &RedisServer| node.command(&["KEYS", pattern]).unwrap_or_default();
        let all = servers.nodes.iter().map(of).collect::<Vec<_>>().join("\n");
        let all = all.lines().filter(|key| !key.is_empty());
        all.map(str::to_owned).collect()
    };
    // A lock that is not replicated yet would be lost in the failover, as expected.
    eventually(
        "every lock is on a primary and on its replica",
        SOON,
        || keys("*:lock:*").len() == 2 * guards.len(),
    )
    .unwrap();
    let first = keys("*:lock:lock-0");
    let primary = servers.primary_of(&first[0]).unwrap();
    servers.nodes[primary].kill();
    let tokens: Vec<_> = guards.iter().map(Guard::token).collect();
    eventually_async("every lock is reached again", TTL, || async {
        for guard in &guards {
            guard.extend(TTL).await.ok()?;
        }
        Some(())
    })
    .await
    .unwrap();
    for (guard, token) in guards.into_iter().zip(tokens) {
        assert!(guard.is_valid() && guard.token() == token);
        assert!(guard.release().await.is_clean());
    }
    let next = hold(&locker, "lock-0", TTL).await;
    assert!(next.release().await.is_clean());
}

/// A frozen primary refuses no connection. Only the slot map shows that another server took its
/// place.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_of_a_shard_is_replaced() {
    let servers = RedisCluster::start(3, 1).unwrap();
    let locker = locker(&servers.url()).await;
    // No other lock is in use, so no other operation learns of the change of the cluster.
    let guard = hold(&locker, "a", TTL).await;
    let key = servers.nodes.iter().find_map(|node| {
        let keys = node.command(&["KEYS", "*:lock:a"]).ok()?;
        keys.lines().next().map(str::to_owned)
    });
    let primary = servers.primary_of(&key.unwrap()).unwrap();
    assert!(guard.release().await.is_clean());
    servers.nodes[primary].signal(Signal::STOP).unwrap();
    let guard = eventually_async("its replica serves", SOON * 2, || async {
        locker.lock("a").wait(Duration::ZERO).acquire().await.ok()
    })
    .await
    .unwrap();
    assert!(guard.release().await.is_clean());
}
