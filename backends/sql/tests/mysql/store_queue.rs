//! The store queue.

use distlock_core::Locker;
use distlock_harness::servers::mysql::Product;

use crate::{
    locker, mysql, on_both,
    servers::each_release_wakes_without_a_queue,
    start,
    store_queue_cases::{a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays},
};

on_both! {
    no_queue_entry_is_left => no_queue_entry_is_left;
    a_dead_entry_delays_the_others_for_its_lease => a_dead_entry_delays_the_others_for_its_lease;
    a_user_who_may_only_read_the_queue_waits_without_a_queue =>
        a_user_who_may_only_read_the_queue_waits_without_a_queue;
}

async fn no_queue_entry_is_left(product: Product) {
    let server = start(product);
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async || {
        let count = server.sql("SELECT COUNT(*) FROM distributed_queue");
        count.unwrap().parse().unwrap()
    };
    let die = async || {
        server
            .sql(
                "INSERT INTO distributed_queue SELECT lock_name, -1, 1, expires_at - 5500000, \
                 'dead' FROM distributed_lock WHERE lock_name = 'a'",
            )
            .unwrap();
    };
    no_queue_entry_stays(&holder, &waiter, places, die).await;
}

async fn a_dead_entry_delays_the_others_for_its_lease(product: Product) {
    let server = start(product);
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let die = async |name: &str, earlier: u32| {
        server
            .sql(&format!(
                "INSERT INTO distributed_queue SELECT lock_name, -1, 1, expires_at - {earlier}000, \
                 'dead' FROM distributed_lock WHERE lock_name = '{name}'"
            ))
            .unwrap();
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}

/// MySQL hides a table from a user without any right on it, and the store is refused then. So this
/// user has the right to read the queue.
async fn a_user_who_may_only_read_the_queue_waits_without_a_queue(product: Product) {
    let server = start(product);
    let owner = locker(&server.url()).await;
    let all = "SELECT, INSERT, UPDATE, DELETE";
    let grants = [
        (all, "lock"),
        ("SELECT", "queue"),
        (all, "record"),
        ("SELECT, UPDATE", "meta"),
    ];
    let grants = grants.map(|(rights, table)| {
        format!("; GRANT {rights} ON distlock.distributed_{table} TO poor@'127.0.0.1'")
    });
    let user = format!(
        "CREATE USER poor@'127.0.0.1' IDENTIFIED BY '{}'{}",
        server.password(),
        grants.concat()
    );
    server.sql(&user).unwrap();
    let store = mysql(&server.url_as("poor").unwrap()).await.unwrap();
    let poor = Locker::new(store.lock());
    each_release_wakes_without_a_queue(&owner, &poor).await;
    // The rows of this user's locks are reaped without the right to reap the queue's.
    store.reap().await.unwrap();
}
