//! The store queue, and tables of version 1, which have no store queue.

use std::time::Duration;

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::{Locker, Verdict};
use distlock_harness::eventually_async;

/// The time limit for every short step, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(60);

/// The release of a lock wakes the waiter of another store. The two lockers use separately opened
/// stores.
pub(crate) async fn a_release_wakes_the_waiter(holder: &Locker, waiter: &Locker, name: &str) {
    let held = holder.lock(name).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock(name).wait(SOON).acquire());
    eventually_async("it waits", SOON, || async {
        waiter
            .lock(name)
            .try_acquire()
            .await
            .unwrap()
            .acquired()
            .is_none()
            .then_some(())
    })
    .await
    .unwrap();
    assert!(held.release().await.is_clean());
    let next = waiting.await.unwrap().unwrap();
    assert!(next.release().await.is_clean());
}

/// The doctor's verdict on the store queue.
pub(crate) async fn doctor(locker: &Locker) -> Verdict {
    let health = locker.health().await.unwrap();
    let line = health.findings.iter().find(|it| it.check == "line");
    line.unwrap_or_else(|| panic!("{health:?}")).verdict
}

/// A contender gives up its queue entry when it gets the lock and when it is cancelled. The entry
/// of a contender that has died is removed by the next contender that leaves the queue. `places`
/// counts the entries in the store, and `die` creates an entry that nobody renews.
pub(crate) async fn no_queue_entry_stays(
    holder: &Locker,
    locker: &Locker,
    places: impl AsyncFn() -> u32,
    die: impl AsyncFn(),
) {
    let held = holder.lock("a").acquire().await.unwrap();
    let cancelled = tokio::spawn(locker.lock("a").wait(SOON).acquire());
    let many = async |count: u32| (places().await == count).then_some(());
    let wait_for = async |count: u32, what: &str| {
        let seen = eventually_async(what, SOON, || many(count)).await;
        seen.unwrap();
    };
    wait_for(1, "a place").await;
    cancelled.abort();
    wait_for(0, "given up when cancelled").await;
    die().await;
    wait_for(1, "a place of a dead waiter").await;
    let granted = tokio::spawn(locker.lock("a").wait(SOON).acquire());
    wait_for(2, "a place behind it").await;
    // The wait is longer than the lease of the dead contender's entry.
    let clock = locker.clock();
    clock.sleep(ENTRY_LEASE + Duration::from_millis(500)).await;
    assert!(held.release().await.is_clean());
    let granted = granted.await.unwrap().unwrap();
    wait_for(0, "given up when granted, the dead one's too").await;
    assert!(granted.release().await.is_clean());
}

/// A store without the table of the store queue, and a store with this table, can wait for the same
/// lock. `open` opens a store; its argument is the option `migrate`. `drop_line` drops the table.
/// `status` returns the version of the tables and the number of missing migrations, and `migrate`
/// returns the former version.
pub(crate) async fn tables_of_version_1_work_beside_version_2(
    open: impl AsyncFn(bool) -> Locker,
    drop_line: impl AsyncFn(),
    status: impl AsyncFn() -> (i64, usize),
    migrate: impl AsyncFn() -> i64,
) {
    let new = open(true).await;
    for number in 0..500 {
        let held = new.lock(format!("row {number}")).acquire().await.unwrap();
        assert!(held.release().await.is_clean());
    }
    drop_line().await;
    assert_eq!(status().await, (1, 1));
    let old = open(false).await;
    a_release_wakes_the_waiter(&new, &old, "without a line").await;
    assert_eq!(doctor(&old).await, Verdict::Warn);
    assert_eq!(migrate().await, 1);
    assert_eq!(status().await, (2, 0));
    a_release_wakes_the_waiter(&old, &new, "with one").await;
    assert_eq!(doctor(&old).await, Verdict::Pass);
    // With the option `migrate`, opening creates the table too.
    drop_line().await;
    let newest = open(true).await;
    assert_eq!(status().await, (2, 0));
    a_release_wakes_the_waiter(&old, &newest, "with one again").await;
}
