//! What is sent, as the server counts it.

mod common;

use std::time::Duration;

use common::{SOON, locker, redis};
use distlock_core::{ErrorKind, Locker};
use distlock_harness::{eventually_async, servers::redis::RedisServer};
use tokio::task::JoinSet;

const NAME: &str = "waited-for";

/// Waiting tasks that must not get the lock.
fn wait(tasks: &mut JoinSet<()>, locker: &Locker, waiters: usize, time: Duration) {
    for _ in 0..waiters {
        let locker = locker.clone();
        tasks.spawn(async move {
            let refused = locker.lock(NAME).wait(time).acquire().await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Timeout);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_waiters_of_one_process_cost_a_handful_of_commands() {
    let server = RedisServer::start().unwrap();
    let holder = locker(&server.url()).await;
    let guard = holder
        .lock(NAME)
        .ttl(Duration::from_secs(30))
        .acquire()
        .await
        .unwrap();
    let monitor = server.monitor().unwrap();
    // Everything counts: connecting, joining, the holder's renewal and what it causes.
    let store = redis(&server.url()).await.unwrap();
    let waiting = Locker::new(store.lock());
    waiting.ready().await.unwrap();
    let mut tasks = JoinSet::new();
    wait(&mut tasks, &waiting, 50, Duration::from_secs(10));
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // The count that the store keeps itself is of these, of which the monitor may tell a moment later.
    let counted = usize::try_from(store.commands()).unwrap();
    assert!(counted > 5, "{counted}");
    let commands = eventually_async("the monitor tells of all of them", SOON, || async {
        let commands = monitor.commands();
        (commands.len() >= counted).then_some(commands)
    });
    let commands = commands.await.unwrap();
    assert!(guard.is_valid());
    assert!(commands.len() <= 60, "{}: {commands:#?}", commands.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn five_waiters_of_each_of_ten_clients_cost_a_few_commands_each() {
    let server = RedisServer::start().unwrap();
    let holder = locker(&server.url()).await;
    let guard = holder
        .lock(NAME)
        .ttl(Duration::from_secs(30))
        .acquire()
        .await
        .unwrap();
    let monitor = server.monitor().unwrap();
    let mut tasks = JoinSet::new();
    // Clients share nothing, as processes do not.
    for _ in 0..10 {
        wait(
            &mut tasks,
            &locker(&server.url()).await,
            5,
            Duration::from_secs(10),
        );
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let commands = monitor.commands();
    assert!(guard.is_valid());
    assert!(commands.len() <= 300, "{}: {commands:#?}", commands.len());
}
