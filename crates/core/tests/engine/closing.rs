//! A close waits for guards that other tasks still hold, within a bound.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    time::Duration,
};

use crate::support::{Script, eventually, time_of};
use distlock_core::{Clock, Locker, ManualClock, Released, Renew, SystemClock};

const TTL: Duration = Duration::from_secs(20);

/// `abort` returns while the task still runs on another thread. The runtime drops the task, and its
/// guard, when the task yields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_an_aborted_task_that_yields_late_is_free_after_the_close() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let lock = locker.lock("a").ttl(TTL);
    let (works, is_working) = mpsc::channel();
    let task = tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        works.send(()).unwrap();
        // A computation that does not yield.
        let until = SystemClock.now() + Duration::from_millis(200);
        while SystemClock.now() < until {
            std::thread::yield_now();
        }
        guard.lost().await;
    });
    tokio::task::block_in_place(|| is_working.recv()).unwrap();
    task.abort();
    locker.close().await;
    assert!(!store.0.is_held("a"), "held after the close");
}

/// The same with tasks that are idle, many times: the drop races with the close.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_locks_of_aborted_tasks_are_free_after_the_close() {
    for round in 0..50 {
        let store = Script::open(Arc::new(SystemClock));
        let locker = Locker::new(Arc::new(store.clone()));
        let names: Vec<_> = (0..8).map(|number| format!("{round}/{number}")).collect();
        let tasks: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = locker.lock(name).ttl(TTL);
                tokio::spawn(async move { lock.acquire().await.unwrap().lost().await })
            })
            .collect();
        eventually("all hold", || {
            names.iter().all(|name| store.0.is_held(name))
        })
        .await;
        for task in &tasks {
            task.abort();
        }
        locker.close().await;
        let held: Vec<_> = names.iter().filter(|name| store.0.is_held(name)).collect();
        assert!(held.is_empty(), "held after the close: {held:?}");
    }
}

/// A release that another task has begun ends before the connections are closed.
#[tokio::test]
async fn a_close_waits_for_a_release_that_has_begun() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.delay_ms.store(300, SeqCst);
    let releasing = tokio::spawn(guard.release());
    eventually("the release is on its way", || {
        store.0.release.calls.load(SeqCst) == 1
    })
    .await;
    locker.close().await;
    assert!(!store.0.is_held("a"), "held after the close");
    let released = releasing.await.unwrap();
    assert!(matches!(released, Released::Clean), "{released:?}");
}

/// A caller may keep its guard. The close then ends a second later, and the lease by itself.
#[tokio::test]
async fn a_guard_that_is_kept_delays_a_close_by_a_second_at_most() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let lock = locker.lock("a").ttl(TTL).renew(Renew::Manual);
    let guard = lock.acquire().await.unwrap();
    let closing = locker.clone();
    let (took, ()) = time_of(&clock, async move { closing.close().await }).await;
    let second = Duration::from_secs(1);
    assert!((second..second * 2).contains(&took), "{took:?}");
    assert!(store.0.is_held("a"));
    drop(guard);
    let (took, ()) = time_of(&clock, async move { locker.close().await }).await;
    assert!(took < second, "{took:?}");
}
