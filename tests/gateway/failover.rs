//! A store that forgets acknowledged writes, because it fails over or restarts empty.

use std::time::Duration;

use distlock_checker::What;
use distlock_checker::{Fact, Report};
use distlock_harness::{
    Signal, eventually, eventually_async,
    servers::{postgres::PostgresServer, redis::RedisSentinels, redis::RedisServer},
};
use distlock_kickout::Code;
use sqlx::{Connection as _, SqliteConnection};
use tokio::runtime::Handle;

use crate::{
    client::{Client, State},
    scenarios::start,
    world::{SOON, World, now_us},
};

/// The replica misses some logins, a takeover and a logout. After its promotion, each live session
/// is still live or has got its notice, ended sessions stay ended, and the next login of each
/// account has the highest generation.
async fn forgotten_writes(mut world: World, mut servers: RedisSentinels) -> Report {
    let lease = Duration::from_secs(10);
    world.rules.node_lease = lease;
    // Each node reads the directory once per lease, and finds sessions that the store has
    // forgotten.
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
    assert_eq!(moved.wait_for_notice().await, Code::Superseded);
    gone.leave();
    gone.wait_for_state("gone", |state| *state == State::Closed)
        .await;
    clients.push(world.log_in(&fresh, "phone", "n2").await);
    let mut middle = world.log_in(&fought, "pc", "n2").await;
    assert_eq!(beaten.wait_for_notice().await, Code::Superseded);

    servers.primary.kill();
    world.fact(Fact::Forgotten {
        from_us,
        to_us: now_us(),
    });
    servers.replica.signal(Signal::CONT).unwrap();
    // The promoted server knows only the session of "phone". The session of "pc" is live, and this
    // login comes at once.
    let away = now_us();
    clients.push(world.log_in_with_retries(&fought, "tablet", "n1").await);
    // The outage ends when the sentinels have elected a primary and the nodes have found it.
    world.rules.store_away = Duration::from_micros(now_us() - away);
    assert_eq!(middle.wait_for_notice().await, Code::Superseded);
    clients.extend([moved, gone, beaten, stayed, middle]);
    world.verdict(clients, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_get_their_notice_after_redis_failed_over_and_forgot_writes() {
    let servers = tokio::task::block_in_place(RedisSentinels::start).unwrap();
    let world = World::new("redis-forgets", &servers.url());
    Box::pin(forgotten_writes(world, servers)).await;
}

/// A store has forgotten everything. Each live session gets its notice before another login of its
/// account is confirmed. The new login comes to the node of the session, or to a node that has no
/// session of the account and cannot know that a record is missing. An account without a new login
/// stays logged in.
async fn forgotten_all(mut world: World, forget: impl FnOnce() -> anyhow::Result<()>) -> Report {
    world.rules.node_lease = Duration::from_secs(4);
    world.rules.strict = true;
    world.set("confirm", "strict");
    start(&mut world, &["n1", "n2"]).await;
    let (anna, bob) = (world.uid("anna"), world.uid("bob"));
    let mut clients = vec![
        world.log_in(&anna, "phone", "n1").await,
        world.log_in(&bob, "phone", "n1").await,
    ];
    let (carl, dora) = (world.uid("carl"), world.uid("dora"));
    let stay = [
        world.log_in(&carl, "phone", "n1").await,
        world.log_in(&dora, "phone", "n2").await,
    ];
    let were = stay.each_ref().map(Client::state);
    let from_us = now_us();
    tokio::task::block_in_place(forget).unwrap();
    world.fact(Fact::Forgotten {
        from_us: 0,
        to_us: now_us(),
    });
    let here = world.log_in_with_retries(&bob, "pc", "n1");
    let elsewhere = world.log_in_with_retries(&anna, "pc", "n2");
    let (here, elsewhere) = tokio::join!(here, elsewhere);
    world.rules.store_away = Duration::from_micros(now_us() - from_us);
    {
        let slack_us = u64::try_from(world.promises().slack.as_micros()).unwrap();
        let seen = world.shared.seen.lock();
        for (old, new) in [(&clients[0], &elsewhere), (&clients[1], &here)] {
            let first = |client: u64, what: fn(&What) -> bool| {
                let mut seen = seen.iter().filter(|it| it.client == client);
                seen.find(|it| what(&it.what)).map(|it| it.at_us)
            };
            let told = first(old.stamp.client, |what| matches!(what, What::Told { .. }));
            let is_in = first(new.stamp.client, |what| {
                matches!(what, What::LoginOk { .. })
            });
            // A notice and a confirmation come through two connections, so their order may differ
            // by the slack.
            let soon = is_in.map(|at_us| at_us + slack_us);
            assert!(
                told.is_some() && told < soon,
                "both were in: {told:?} {is_in:?}"
            );
        }
    }
    assert_eq!(stay.each_ref().map(Client::state), were);
    let id = format!("{}-still-there", world.name);
    stay[1].send(&carl, &id);
    eventually_async("the message", SOON, || async {
        let seen = world.shared.seen.lock();
        let it = |what: &What| matches!(what, What::Message { id: got } if *got == id);
        seen.iter().any(|seen| it(&seen.what)).then_some(())
    })
    .await
    .unwrap();
    clients.extend([here, elsewhere]);
    clients.extend(stay);
    world.verdict(clients, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_get_their_notice_after_redis_restarted_empty() {
    let mut server = tokio::task::block_in_place(RedisServer::start).unwrap();
    let world = World::new("redis-empty", &server.url());
    Box::pin(forgotten_all(world, || server.restart_empty())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_get_their_notice_after_sqlite_was_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let world = World::new("sqlite-empty", &url);
    let empty = || {
        Handle::current().block_on(async {
            let mut file = SqliteConnection::connect(&url).await?;
            let tables = "DELETE FROM distributed_lock; DELETE FROM distributed_record";
            sqlx::raw_sql(tables).execute(&mut file).await?;
            Ok(file.close().await?)
        })
    };
    Box::pin(forgotten_all(world, empty)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_get_their_notice_after_postgres_was_emptied() {
    let server = tokio::task::block_in_place(PostgresServer::start).unwrap();
    let world = World::new("postgres-empty", &server.url());
    let tables = "TRUNCATE distributed_lock, distributed_record";
    let empty = || server.sql(tables).map(drop);
    Box::pin(forgotten_all(world, empty)).await;
}
