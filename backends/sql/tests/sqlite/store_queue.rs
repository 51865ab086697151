//! The store queue.

use distlock_core::Locker;

use super::*;
use crate::store_queue_cases::{a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays};

async fn locker(place: &Place) -> Locker {
    Locker::new(place.open().await.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_entry_is_left() {
    let place = Place::new();
    let (holder, waiter) = (locker(&place).await, locker(&place).await);
    let places = async || {
        let count = sqlx::query_scalar("SELECT count(*) FROM distributed_queue");
        count.fetch_one(&mut place.raw().await).await.unwrap()
    };
    let die = async || {
        place
            .sql(
                "INSERT INTO distributed_queue SELECT lock_name, -1, boot_id, 1, \
                 expires_at - 5500000, 'dead' FROM distributed_lock WHERE lock_name = 'a'",
            )
            .await;
    };
    no_queue_entry_stays(&holder, &waiter, places, die).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_delays_the_others_for_its_lease() {
    let place = Place::new();
    let (holder, waiter) = (locker(&place).await, locker(&place).await);
    let die = async |name: &str, earlier: u32| {
        place
            .sql(&format!(
                "INSERT INTO distributed_queue SELECT lock_name, -1, boot_id, 1, \
                 expires_at - {earlier}000, 'dead' FROM distributed_lock WHERE lock_name = '{name}'"
            ))
            .await;
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}
