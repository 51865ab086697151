//! The line of processes that wait, and tables of the version before.

use distlock_core::{Locker, Verdict};

use super::*;
use crate::lines::{a_lock_passes_on, doctor, no_place_stays};

async fn locker(place: &Place) -> Locker {
    Locker::new(place.open().await.lock())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_place_is_left() {
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
                 expires_at - 5500000 FROM distributed_lock WHERE lock_name = 'a'",
            )
            .await;
    };
    no_place_stays(&holder, &waiter, places, die).await;
}

/// Programs that know no line, and those that may not make one, wait beside those that do.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_the_version_before_go_on_working() {
    let place = Place::new();
    let new = locker(&place).await;
    for number in 0..500 {
        let held = new.lock(format!("row {number}")).acquire().await.unwrap();
        assert!(held.release().await.is_clean());
    }
    place.sql("DROP TABLE distributed_line").await;
    let clock = || Arc::new(SystemClock);
    let status = async || {
        let status = Sqlite::status(place.config(), clock()).await.unwrap();
        (status.version, status.migrations.len())
    };
    assert_eq!(status().await, (1, 1));
    let mut config = place.config();
    config.migrate = false;
    let old = Sqlite::open(config, clock()).await.unwrap();
    let old = Locker::new(old.lock());
    a_lock_passes_on(&new, &old, "without a line").await;
    assert_eq!(doctor(&old).await, Verdict::Warn);
    let migrated = Sqlite::migrate(place.config(), clock()).await.unwrap();
    assert_eq!(migrated.version, 1);
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &new, "with one").await;
    assert_eq!(doctor(&old).await, Verdict::Pass);
    // Opening makes it as well, where that is allowed.
    place.sql("DROP TABLE distributed_line").await;
    let newest = locker(&place).await;
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &newest, "with one again").await;
}
