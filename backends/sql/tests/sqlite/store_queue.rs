//! The store queue, and tables of version 1.

use distlock_core::Locker;

use super::*;
use crate::lines::{
    a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays,
    tables_of_version_1_work_beside_version_2,
};

async fn locker(place: &Place) -> Locker {
    Locker::new(place.open().await.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_entry_is_left() {
    let place = Place::new();
    let (holder, waiter) = (locker(&place).await, locker(&place).await);
    let places = async || {
        let count = sqlx::query_scalar("SELECT count(*) FROM distributed_line");
        count.fetch_one(&mut place.raw().await).await.unwrap()
    };
    let die = async || {
        place
            .sql(
                "INSERT INTO distributed_line SELECT lock_name, -1, boot_id, 1, \
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
                "INSERT INTO distributed_line SELECT lock_name, -1, boot_id, 1, \
                 expires_at - {earlier}000, 'dead' FROM distributed_lock WHERE lock_name = '{name}'"
            ))
            .await;
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_version_1_still_work() {
    let place = Place::new();
    let clock = || Arc::new(SystemClock);
    let open = async |migrate: bool| {
        let mut config = place.config();
        config.migrate = migrate;
        let opened = Sqlite::open(config, clock()).await.unwrap();
        Locker::new(opened.lock())
    };
    let drop_line = async || place.sql("DROP TABLE distributed_line").await;
    let status = async || {
        let status = Sqlite::status(place.config(), clock()).await.unwrap();
        (status.version, status.migrations.len())
    };
    let migrate = async || {
        let before = Sqlite::migrate(place.config(), clock()).await;
        before.unwrap().version
    };
    tables_of_version_1_work_beside_version_2(open, drop_line, status, migrate).await;
}
