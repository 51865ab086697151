//! The keeper thread renews leases while the user's runtime is blocked or gone.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, eventually, pause};
use distlock_core::{Clock, Locker, LossReason, ManualClock, Scope, SystemClock};
use tokio::sync::mpsc;

const TTL: Duration = Duration::from_millis(500);

#[test]
fn a_lease_is_renewed_while_the_users_runtime_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = Script::open(Arc::new(SystemClock));
    runtime.block_on(async {
        let locker = Locker::new(Arc::new(store.clone()));
        let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
        // This loop blocks the only thread of the runtime for two TTLs.
        let until = SystemClock.now() + TTL * 2;
        while SystemClock.now() < until {
            std::thread::yield_now();
        }
        assert!(guard.is_valid());
        assert!(store.0.renew.calls.load(SeqCst) >= 4);
    });
}

#[test]
fn a_lease_is_renewed_after_the_users_runtime_was_dropped() {
    let store = Script::open(Arc::new(SystemClock));
    let first = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (locker, guard) = first.block_on(async {
        let locker = Locker::new(Arc::new(store.clone()));
        let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
        (locker, guard)
    });
    drop(first);
    let second = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    second.block_on(async {
        eventually("renewed without any runtime of the user's", || {
            store.0.renew.calls.load(SeqCst) >= 4
        })
        .await;
        assert!(guard.is_valid());
        drop(guard);
        eventually("released in the background", || !store.0.is_held("a")).await;
        locker.close().await;
    });
}

#[test]
fn the_drop_of_the_last_guard_ends_the_keeper_thread_after_the_release() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = Script::open(Arc::new(SystemClock));
    runtime.block_on(async {
        let locker = Locker::new(Arc::new(store.clone()));
        let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
        drop(locker);
        drop(guard);
        eventually("released although no locker is left", || {
            !store.0.is_held("a")
        })
        .await;
        eventually(
            "the keeper thread has dropped its handle on the store",
            || Arc::strong_count(&store.0) == 1,
        )
        .await;
    });
}

#[tokio::test]
async fn a_keeper_without_a_thread_runs_only_when_the_simulation_polls_it() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .keeper_on(move |job| drop(sender.send(job)))
        .build();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    clock.advance(TTL / 2);
    for _ in 0..20 {
        pause().await;
    }
    assert_eq!(
        store.0.renew.calls.load(SeqCst),
        0,
        "no task polls the keeper"
    );
    tokio::spawn(async move {
        while let Some(job) = receiver.recv().await {
            tokio::spawn(job);
        }
    });
    eventually("the polled keeper renews the lease", || {
        store.0.renew.calls.load(SeqCst) == 1
    })
    .await;
    drop(guard);
    eventually("released in the background", || !store.0.is_held("a")).await;
    locker.close().await;
}

#[tokio::test]
async fn a_guard_that_is_held_at_the_close_is_lost_at_its_deadline() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    locker.close().await;
    assert!(guard.is_valid());
    assert_eq!(guard.lost().await, LossReason::Expired);
}

#[tokio::test]
async fn guards_of_one_scope_share_a_lease_until_the_last_release() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let scope = Scope::new();
    let outer = locker
        .lock("a")
        .ttl(TTL)
        .reentrant(&scope)
        .acquire()
        .await
        .unwrap();
    let inner = locker
        .lock("a")
        .ttl(TTL * 4)
        .reentrant(&scope)
        .acquire()
        .await
        .unwrap();
    assert_eq!(outer.token(), inner.token());
    assert!(
        outer.remaining() > TTL,
        "the longer nested lease counts for both"
    );
    let shorter = locker
        .lock("a")
        .ttl(TTL / 2)
        .reentrant(&scope)
        .acquire()
        .await
        .unwrap();
    assert!(shorter.remaining() > TTL, "nesting never shortens");
    assert!(outer.release().await.is_clean() && shorter.release().await.is_clean());
    assert!(store.0.is_held("a"));
    let other = locker
        .lock("a")
        .reentrant(&Scope::new())
        .wait(Duration::ZERO)
        .acquire()
        .await;
    assert!(other.is_err(), "another scope is another holder");
    assert!(inner.release().await.is_clean());
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_released_lock_stays_held_until_the_end_of_its_minimum_hold() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker
        .lock("a")
        .ttl(TTL)
        .min_hold(Duration::from_millis(700))
        .acquire()
        .await
        .unwrap();
    let taken = SystemClock.now();
    assert!(guard.release().await.is_clean());
    assert!(store.0.is_held("a"));
    let again = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    assert!(SystemClock.now().since(taken) >= Duration::from_millis(650));
    drop(again);
}

#[tokio::test]
async fn a_minimum_hold_is_rounded_up_to_milliseconds() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let least = Duration::from_millis(700);
    let lock = locker.lock("a").ttl(TTL).min_hold(least);
    let guard = lock.acquire().await.unwrap();
    clock.advance(Duration::from_micros(100));
    assert!(guard.release().await.is_clean());
    clock.advance(Duration::from_micros(699_500));
    assert!(store.0.is_held("a"), "0.4 ms are left");
    clock.advance(Duration::from_millis(2));
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn sets_with_names_in_opposite_orders_do_not_deadlock() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let mut tasks = Vec::new();
    for turn in 0..20 {
        let locker = locker.clone();
        tasks.push(tokio::spawn(async move {
            let names = if turn % 2 == 0 {
                ["x", "y", "x"]
            } else {
                ["y", "x", "y"]
            };
            let set = locker
                .lock_all(names)
                .ttl(Duration::from_secs(5))
                .acquire()
                .await
                .unwrap();
            assert_eq!(set.guards().len(), 2);
            assert!(set.is_valid());
            assert!(
                set.release()
                    .await
                    .iter()
                    .all(|(_, released)| released.is_clean())
            );
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_minimum_hold_applies_when_another_guard_of_the_lease_is_released_last() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let scope = Scope::new();
    let outer = locker
        .lock("a")
        .reentrant(&scope)
        .min_hold(Duration::from_secs(30))
        .acquire()
        .await
        .unwrap();
    let inner = locker.lock("a").reentrant(&scope).acquire().await.unwrap();
    assert!(outer.release().await.is_clean());
    assert!(inner.release().await.is_clean());
    assert!(store.0.is_held("a"));
}

/// The keeper sleeps until the next event of its leases, and a new lease may need it earlier.
#[tokio::test]
async fn a_short_lease_wakes_the_keeper_from_the_sleep_of_a_long_one() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let lock = |name: &str, ttl| locker.lock(name).ttl(Duration::from_millis(ttl)).acquire();
    let _long = lock("long", 60_000).await.unwrap();
    // The keeper falls asleep again.
    for _ in 0..20 {
        pause().await;
    }
    let short = lock("short", 300).await.unwrap();
    // Another 50 ms would also end the keeper's longest sleep.
    clock.advance(Duration::from_millis(150));
    eventually("the short lease is renewed", || {
        store.0.renew.calls.load(SeqCst) == 1
    })
    .await;
    assert!(short.is_valid());
}
