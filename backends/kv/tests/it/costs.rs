//! A lock over records: the number of store operations in a cycle, and the removal of expired
//! records.

use std::time::Duration;

use distlock_core::{DistLock as _, Records as _};

use crate::fixture::{RELEASED, TTL, fixture, lease, name, request};

#[tokio::test]
async fn a_cycle_costs_four_operations_of_the_store() {
    let fixture = fixture().await;
    for _ in 0..3 {
        let before = fixture.operations();
        let request = request("a");
        let grant = fixture.acquire(&request).await;
        assert_eq!(fixture.operations() - before, 2, "an acquire");
        let released = fixture.lock.release(&lease(&request, &grant)).await;
        assert_eq!(released.unwrap(), RELEASED);
        assert_eq!(fixture.operations() - before, 4, "a cycle");
    }
    // To acquire an expired lock also costs two operations: a read and a write of its record.
    fixture.acquire(&request("a")).await;
    fixture.clock.advance(TTL);
    let before = fixture.operations();
    fixture.acquire(&request("a")).await;
    assert_eq!(fixture.operations() - before, 2, "a takeover");
}

/// Fifty holders die in each round, and nobody calls `reap`: the tasks of the live client must
/// suffice.
#[tokio::test]
async fn live_clients_remove_the_records_of_dead_holders() {
    let mut fixture = fixture().await;
    let idle = Duration::from_secs(60);
    fixture.lock = fixture.lock.with_reap_after(idle);
    let dead = async || {
        let left = fixture.records.scan("lock/dead", None, 10_000).await;
        left.unwrap().len()
    };
    let mut most = 0;
    for round in 0..20 {
        for holder in 0..50 {
            fixture
                .acquire(&request(&format!("dead {round} {holder}")))
                .await;
        }
        fixture.clock.advance(idle / 4);
        // The grant of a live client starts a reap task, which runs beside the test.
        let grant = fixture.acquire(&request("alive")).await;
        fixture
            .lock
            .force_release(&name("alive"), grant.token)
            .await
            .unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        most = most.max(dead().await);
    }
    // A record stays for its TTL and for `idle`. Then it waits at most a quarter of `idle` for a
    // task.
    assert!((50..=350).contains(&most), "{most} records");
    // The tokens of a name rise also across the removal of its record.
    let before = fixture.acquire(&request("last")).await.token;
    fixture.clock.advance(TTL + idle * 2);
    assert!(fixture.lock.reap(idle, 10_000).await.unwrap() > 0);
    assert_eq!(fixture.read_record("lock/last").await, None);
    assert!(fixture.acquire(&request("last")).await.token > before);
}

#[tokio::test]
async fn a_held_lock_is_never_reaped() {
    let mut fixture = fixture().await;
    fixture.lock = fixture.lock.with_reap_after(Duration::from_secs(1));
    let held = request("held");
    let grant = fixture.acquire(&held).await;
    for _ in 0..5 {
        fixture.clock.advance(TTL / 5 - Duration::from_millis(1));
        fixture
            .acquire(&request(&format!("other {:?}", fixture.clock)))
            .await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(fixture.read_record("lock/held").await.is_some());
    }
    let released = fixture.lock.release(&lease(&held, &grant)).await;
    assert_eq!(released.unwrap(), RELEASED);
}
