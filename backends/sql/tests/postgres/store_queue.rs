//! The store queue, and tables of version 1.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::{Locker, SystemClock, Verdict};
use distlock_harness::{eventually_async, servers::postgres::PostgresServer};
use distlock_sql::{Postgres, ServerConfig};

use crate::{
    SOON,
    lines::{
        a_dead_entry_blocks_the_queue_for_its_lease, a_release_wakes_the_waiter, doctor,
        no_queue_entry_stays, tables_of_version_1_work_beside_version_2,
    },
    open,
};

async fn locker(url: &str) -> Locker {
    Locker::new(open(url).await.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_entry_is_left() {
    let server = PostgresServer::start().unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async || {
        let count = server.sql("SELECT count(*) FROM distributed_line");
        count.unwrap().parse().unwrap()
    };
    let die = async || {
        server
            .sql(
                "INSERT INTO distributed_line SELECT lock_name, -1, 'epoch', \
                 expires_at - interval '5.5 s', 'dead' FROM distributed_lock WHERE lock_name = 'a'",
            )
            .unwrap();
    };
    no_queue_entry_stays(&holder, &waiter, places, die).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_delays_the_others_for_its_lease() {
    let server = PostgresServer::start().unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let die = async |name: &str, earlier: u32| {
        server
            .sql(&format!(
                "INSERT INTO distributed_line SELECT lock_name, -1, 'epoch', \
                 expires_at - interval '{earlier} ms', 'dead' FROM distributed_lock \
                 WHERE lock_name = '{name}'"
            ))
            .unwrap();
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_version_1_still_work() {
    let server = PostgresServer::start().unwrap();
    let config = ServerConfig::from_url(&server.url()).unwrap();
    let open = async |migrate: bool| locker(&format!("{}?migrate={migrate}", server.url())).await;
    let drop_line = async || drop(server.sql("DROP TABLE distributed_line").unwrap());
    let status = async || {
        let status = Postgres::status(config.clone(), Arc::new(SystemClock)).await;
        let status = status.unwrap();
        (status.version, status.migrations.len())
    };
    let migrate = async || {
        let before = Postgres::migrate(config.clone(), Arc::new(SystemClock)).await;
        before.unwrap().version
    };
    tables_of_version_1_work_beside_version_2(open, drop_line, status, migrate).await;
}

/// A user without the right to create tables opens tables of version 1, and waits without a store
/// queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_must_not_create_tables_waits_without_a_store_queue() {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    let owner = locker(&url).await;
    server
        .sql(
            "DROP TABLE distributed_line; CREATE USER poor PASSWORD 'secret'; REVOKE CREATE ON \
                SCHEMA public FROM PUBLIC; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO poor",
        )
        .unwrap();
    let poor = locker(&server.url_as("poor", "secret")).await;
    a_release_wakes_the_waiter(&owner, &poor, "a").await;
    a_release_wakes_the_waiter(&poor, &owner, "a").await;
    assert_eq!(doctor(&poor).await, Verdict::Warn);
}

/// The statement of a contender that leaves the queue does not see the uncommitted entry of a
/// contender that is joining. The joining contender must be notified all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_contender_that_joins_while_the_one_ahead_leaves_is_notified() {
    // A contender without a notification reads its position again only after this time.
    const LOOKS: Duration = Duration::from_millis(1300);
    let server = PostgresServer::start().unwrap();
    let holder = locker(&server.url()).await;
    let (first, second) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async |wanted: &str| {
        eventually_async("places in the line", SOON, || async {
            let count = server.sql("SELECT count(*) FROM distributed_line");
            (count.unwrap() == wanted).then_some(())
        })
        .await
        .unwrap();
    };
    let waits = |locker: &Locker| tokio::spawn(locker.lock("a").wait(SOON).acquire());
    let mut took = Vec::new();
    for _ in 0..6 {
        let held = holder.lock("a").wait(SOON).acquire().await.unwrap();
        let waiting = waits(&first);
        places("1").await;
        let open = server.hold_open("SELECT 1 FROM distributed_line FOR UPDATE");
        let open = open.unwrap();
        assert!(held.release().await.is_clean());
        // The contender holds the lock, but cannot give up its queue entry yet.
        let held = waiting.await.unwrap().unwrap();
        let joined = Instant::now();
        let waiting = waits(&second);
        places("2").await;
        drop(open);
        assert!(held.release().await.is_clean());
        let held = waiting.await.unwrap().unwrap();
        took.push(joined.elapsed());
        assert!(held.release().await.is_clean());
        places("0").await;
        if took.last().is_some_and(|took| *took < LOOKS - LOOKS / 4) {
            return;
        }
    }
    panic!("each time as if nothing had been heard: {took:?}");
}
