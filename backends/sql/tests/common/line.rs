//! The line of processes that wait, and tables of the version before, which keep none.

use std::time::Duration;

use distlock_core::{Locker, Verdict, line::PLACE_LEASE};
use distlock_harness::eventually_async;

/// For anything that has no reason to take long, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(60);

/// A lock that one waits for passes on. Each of the lockers is an opened store of its own.
pub(crate) async fn a_lock_passes_on(holder: &Locker, waiter: &Locker, name: &str) {
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

/// What the doctor says of the line.
pub(crate) async fn doctor(locker: &Locker) -> Verdict {
    let health = locker.health().await.unwrap();
    let line = health.findings.iter().find(|it| it.check == "line");
    line.unwrap_or_else(|| panic!("{health:?}")).verdict
}

/// Places are given up by those who are granted the lock and by those who go away; the place of one
/// that died is removed by the next who leaves its line. `places` counts what the store keeps, and
/// `die` leaves a place there that nobody renews.
pub(crate) async fn no_place_stays(
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
    // Longer than the place of the dead one lasts.
    let clock = locker.clock();
    clock.sleep(PLACE_LEASE + Duration::from_millis(500)).await;
    assert!(held.release().await.is_clean());
    let granted = granted.await.unwrap().unwrap();
    wait_for(0, "given up when granted, the dead one's too").await;
    assert!(granted.release().await.is_clean());
}

/// Programs that know no line, and those that may not make one, wait beside those that do. `open`
/// says whether opening may make tables, `status` gives the version of the tables and how many steps
/// are missing, and `migrate` the version that was found.
pub(crate) async fn tables_of_the_version_before(
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
    a_lock_passes_on(&new, &old, "without a line").await;
    assert_eq!(doctor(&old).await, Verdict::Warn);
    assert_eq!(migrate().await, 1);
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &new, "with one").await;
    assert_eq!(doctor(&old).await, Verdict::Pass);
    // Opening makes it as well, where that is allowed.
    drop_line().await;
    let newest = open(true).await;
    assert_eq!(status().await, (2, 0));
    a_lock_passes_on(&old, &newest, "with one again").await;
}
