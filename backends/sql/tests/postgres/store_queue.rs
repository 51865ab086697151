//! The store queue.

use std::time::{Duration, Instant};

use distlock_core::Locker;
use distlock_harness::{eventually_async, servers::postgres::PostgresServer};

use crate::{
    SOON, open,
    servers::each_release_wakes_without_a_queue,
    store_queue_cases::{a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays},
};

async fn locker(url: &str) -> Locker {
    Locker::new(open(url).await.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_entry_is_left() {
    let server = PostgresServer::start().unwrap();
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async || {
        let count = server.sql("SELECT count(*) FROM distributed_queue");
        count.unwrap().parse().unwrap()
    };
    let die = async || {
        server
            .sql(
                "INSERT INTO distributed_queue SELECT lock_name, -1, 'epoch', \
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
                "INSERT INTO distributed_queue SELECT lock_name, -1, 'epoch', \
                 expires_at - interval '{earlier} ms', 'dead' FROM distributed_lock \
                 WHERE lock_name = '{name}'"
            ))
            .unwrap();
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}

/// A user without rights on the table of the store queue waits without a queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_on_the_queue_waits_without_a_queue() {
    let server = PostgresServer::start().unwrap();
    let url = server.url();
    let owner = locker(&url).await;
    server
        .sql(
            "CREATE USER poor PASSWORD 'secret'; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON distributed_lock, distributed_record, \
             distributed_meta TO poor",
        )
        .unwrap();
    let store = open(&server.url_as("poor", "secret")).await;
    let poor = Locker::new(store.lock());
    each_release_wakes_without_a_queue(&owner, &poor).await;
    // The rows of this user's locks are reaped without the right to reap the queue's.
    store.reap().await.unwrap();
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
        eventually_async("entries in the queue", SOON, || async {
            let count = server.sql("SELECT count(*) FROM distributed_queue");
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
        let open = server.hold_open("SELECT 1 FROM distributed_queue FOR UPDATE");
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
