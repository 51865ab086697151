//! The keeper thread keeps leases while the user's runtime is blocked or gone.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Clock, Locker, LossReason, ManualClock, Scope, SystemClock};
use support::{Script, eventually, pause};
use tokio::sync::mpsc;

const TTL: Duration = Duration::from_millis(500);

#[test]
fn a_blocked_runtime_does_not_cost_the_lease() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = Script::open(Arc::new(SystemClock));
    runtime.block_on(async {
        let locker = Locker::new(Arc::new(store.clone()));
        let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
        // The only thread of this runtime is busy for two TTLs.
        let until = SystemClock.now() + TTL * 2;
        while SystemClock.now() < until {
            std::thread::yield_now();
        }
        assert!(guard.is_valid());
        assert!(store.0.renew.calls.load(SeqCst) >= 4);
    });
}

#[test]
fn a_dropped_runtime_does_not_cost_the_lease() {
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
fn the_last_handle_ends_the_thread_after_its_work() {
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
        eventually("the thread has let go of the store", || {
            Arc::strong_count(&store.0) == 1
        })
        .await;
    });
}

#[tokio::test]
async fn a_simulation_polls_the_keeper_and_its_jobs_itself() {
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
    assert_eq!(store.0.renew.calls.load(SeqCst), 0, "nobody polls it");
    tokio::spawn(async move {
        while let Some(job) = receiver.recv().await {
            tokio::spawn(job);
        }
    });
    eventually("renewed by whoever polls", || {
        store.0.renew.calls.load(SeqCst) == 1
    })
    .await;
    drop(guard);
    eventually("released in the background", || !store.0.is_held("a")).await;
    locker.close().await;
}

#[tokio::test]
async fn after_close_a_held_guard_ends_at_its_deadline() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    locker.close().await;
    assert!(guard.is_valid());
    assert_eq!(guard.lost().await, LossReason::Expired);
}

#[tokio::test]
async fn a_scope_counts_as_one_holder() {
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
async fn a_minimum_hold_outlasts_the_release() {
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
async fn a_minimum_hold_is_never_rounded_down() {
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
async fn opposite_orders_never_deadlock() {
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
async fn a_minimum_hold_counts_whichever_guard_is_released_last() {
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
