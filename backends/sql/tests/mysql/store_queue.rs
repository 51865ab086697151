//! The store queue.

use distlock_harness::servers::mysql::Product;

use crate::{
    locker, on_both, start,
    store_queue_cases::{a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays},
};

on_both! {
    no_queue_entry_is_left => no_queue_entry_is_left;
    a_dead_entry_delays_the_others_for_its_lease => a_dead_entry_delays_the_others_for_its_lease;
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
