//! The store queue.

use std::time::Duration;

use distlock_backend_kit::queue_entry::ENTRY_LEASE;
use distlock_core::{Locker, Renew};
use distlock_harness::eventually_async;
use tokio::task::JoinSet;

/// The time limit for every short step, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(60);

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

/// In four queues, the first contender has died. No notification tells the one behind it. The dead
/// entries end a third of a renewal's interval apart, so at least one ends long before the next
/// renewal. `die` creates an entry of the queue of a lock that has just been acquired for
/// [`ENTRY_LEASE`], and that ends this many milliseconds earlier than the lock.
pub(crate) async fn a_dead_entry_blocks_the_queue_for_its_lease(
    holder: &Locker,
    waiter: &Locker,
    die: impl AsyncFn(&str, u32),
) {
    /// The attempt after the end of the entry, on a machine that is busy with other tests.
    const SLACK: Duration = Duration::from_millis(600);
    let clock = holder.clock();
    let mut waiting = JoinSet::new();
    for earlier in [1500, 1150, 800, 450] {
        let name = format!("dead-{earlier}");
        let lock = holder.lock(&name).ttl(ENTRY_LEASE).renew(Renew::Manual);
        let held = lock.acquire().await.unwrap();
        let ended = clock.now() + ENTRY_LEASE - Duration::from_millis(earlier.into());
        die(&name, earlier).await;
        let (holder, waiter, clock) = (holder.clone(), waiter.clone(), clock.clone());
        waiting.spawn(async move {
            let granted = tokio::spawn(waiter.lock(&name).wait(SOON).acquire());
            eventually_async("it waits behind the dead one", SOON, || async {
                (holder.inspect(&name).await.unwrap().waiters == Some(2)).then_some(())
            })
            .await
            .unwrap();
            assert!(held.release().await.is_clean());
            let granted = granted.await.unwrap().unwrap();
            let now = clock.now();
            assert!(granted.release().await.is_clean());
            assert!(now + SLACK > ended, "the dead entry did not count");
            now.since(ended)
        });
    }
    let late = waiting.join_all().await;
    assert!(late.iter().all(|late| *late < SLACK), "{late:?} late");
}
