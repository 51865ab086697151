//! A store that fails over and forgets what it had acknowledged.

use std::time::Duration;

use distlock_checker::{Fact, Report};
use distlock_harness::{Signal, eventually, servers::redis::RedisSentinels};
use distlock_kickout::Code;

use crate::{
    client::{Client, State},
    scenarios::start,
    world::{SOON, World, now_us},
};

/// Logins, a takeover and a logout that the replica never heard of. After it was promoted, whoever was in before is in or is
/// told, whoever had left stays away, and each account's next login is the newest.
async fn forgotten_writes(mut world: World, mut servers: RedisSentinels) -> Report {
    let lease = Duration::from_secs(10);
    world.rules.node_lease = lease;
    // Whom the store has forgotten is found by the pass over the directory, once per lease.
    world.rules.reachable = false;
    start(&mut world, &["n1", "n2"]).await;
    let [moves, left, stays, fresh, fought] =
        ["moves", "left", "stays", "fresh", "fought"].map(|name| world.uid(name));
    let mut moved = world.log_in(&moves, "phone", "n1").await;
    let mut gone = world.log_in(&left, "phone", "n2").await;
    let mut beaten = world.log_in(&fought, "phone", "n1").await;
    let stayed = world.log_in(&stays, "phone", "n1").await;
    eventually("the replica has everything", SOON, || {
        let (primary, replica) = (
            servers.primary.info("master_repl_offset"),
            servers.replica.info("slave_repl_offset"),
        );
        matches!((primary, replica), (Ok(primary), Ok(replica)) if primary == replica)
    })
    .unwrap();

    let from_us = now_us();
    servers.replica.signal(Signal::STOP).unwrap();
    let cut = servers
        .primary
        .command(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert_eq!(cut.unwrap(), "1");
    let mut clients: Vec<Client> = Vec::new();
    clients.push(world.log_in(&moves, "pc", "n2").await);
    assert_eq!(moved.told().await, Code::Superseded);
    gone.leave();
    gone.until("gone", |state| *state == State::Closed).await;
    clients.push(world.log_in(&fresh, "phone", "n2").await);
    let mut middle = world.log_in(&fought, "pc", "n2").await;
    assert_eq!(beaten.told().await, Code::Superseded);

    servers.primary.kill();
    world.fact(Fact::Forgotten {
        from_us,
        to_us: now_us(),
    });
    servers.replica.signal(Signal::CONT).unwrap();
    // The promoted server knows of "phone" alone, "pc" is alive, and this one comes at once.
    let away = now_us();
    clients.push(world.keeps_trying(&fought, "tablet", "n1").await);
    // Until the sentinels have chosen, and the nodes have found the new primary.
    world.rules.store_away = Duration::from_micros(now_us() - away);
    assert_eq!(middle.told().await, Code::Superseded);
    clients.extend([moved, gone, beaten, stayed, middle]);
    world.verdict(clients, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_forgets() {
    let servers = tokio::task::block_in_place(RedisSentinels::start).unwrap();
    let world = World::new("redis-forgets", &servers.url());
    Box::pin(forgotten_writes(world, servers)).await;
}
