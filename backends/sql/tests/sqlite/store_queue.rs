//! The store queue.

use distlock_core::Locker;

use super::*;
use crate::store_queue_cases::{a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays};

/// The time limit of a wait that ends much sooner.
const SOON: Duration = Duration::from_secs(30);

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

/// Such a waiter does not wait for the time in which one without an order acts as if there were no
/// queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_fair_waiter_without_an_entry_asks_for_one_soon() {
    let place = Place::new();
    let (holder, waiter) = (locker(&place).await, locker(&place).await);
    let held = holder.lock("a").acquire().await.unwrap();
    let rename = async |from: &str, to: &str| {
        place
            .sql(&format!("ALTER TABLE {from} RENAME TO {to}"))
            .await;
    };
    rename("distributed_queue", "away").await;
    let waiting = tokio::spawn(waiter.lock("a").fair().wait(SOON).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(held.release().await.is_clean());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        !waiting.is_finished(),
        "it may pass waiters that it cannot see"
    );
    rename("away", "distributed_queue").await;
    let back = Instant::now();
    let granted = waiting.await.unwrap().unwrap();
    assert!(
        back.elapsed() < Duration::from_secs(3),
        "{:?}",
        back.elapsed()
    );
    assert!(granted.release().await.is_clean());
}

/// The waiter that acts keeps the entry of the process alive. Without it, the entry would end with
/// its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_fair_waiter_that_does_not_act_is_skipped() {
    let place = Place::new();
    let (holder, idle) = (place.open().await.lock(), place.open().await.lock());
    let held = request("a");
    let grant = take(&holder, &held).await;
    let mut wanted = request("a");
    wanted.in_order = true;
    let _idle = idle.contend(&wanted).await.unwrap();
    let waiter = locker(&place).await;
    let waiting = tokio::spawn(waiter.lock("a").fair().wait(SOON).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    holder.release(&lease(&held, &grant)).await.unwrap();
    let free = Instant::now();
    let granted = waiting.await.unwrap().unwrap();
    assert!(
        free.elapsed() < Duration::from_secs(5),
        "{:?}",
        free.elapsed()
    );
    assert!(granted.release().await.is_clean());
}
