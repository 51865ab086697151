//! Drops of the last clone of a locker: on the user's runtime, on the keeper thread, and during an
//! acquire. In each case the remaining work is finished, and then every handle on the store is
//! dropped.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Locker, ManualClock, SystemClock};

const TTL: Duration = Duration::from_millis(500);

/// Waits until the test's own handle is the only handle on the store.
async fn until_no_handle_is_left(store: &ScriptedLock) {
    eventually("every handle on the store is dropped", || {
        Arc::strong_count(&store.0) == 1
    })
    .await;
}

/// As [`until_until_no_handle_is_left`], while the clock advances.
async fn until_no_handle_is_left_after(store: &ScriptedLock, clock: &ManualClock) {
    eventually("every handle on the store is dropped", || {
        clock.advance(Duration::from_millis(50));
        Arc::strong_count(&store.0) == 1
    })
    .await;
}

fn locker_of(store: &ScriptedLock, clock: &ManualClock) -> Locker {
    Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build()
}

async fn drop_the_last_clone_on_the_users_runtime() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    locker.ready().await.unwrap();
    let other = locker.clone();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    drop(locker);
    eventually("renewed for the clone that is left", || {
        store.0.renew.calls.load(SeqCst) > 0
    })
    .await;
    assert!(guard.is_valid());
    assert!(guard.release().await.is_clean());
    assert!(Arc::strong_count(&store.0) > 1);
    drop(other);
    until_no_handle_is_left(&store).await;
}

#[tokio::test]
async fn a_last_clone_dropped_on_a_single_threaded_runtime_leaves_no_handle() {
    drop_the_last_clone_on_the_users_runtime().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_clone_dropped_on_a_multi_threaded_runtime_leaves_no_handle() {
    tokio::spawn(drop_the_last_clone_on_the_users_runtime())
        .await
        .unwrap();
}

#[test]
fn a_last_clone_dropped_without_a_runtime_leaves_no_handle() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = Script::open(Arc::new(SystemClock));
    let (locker, guard) = runtime.block_on(async {
        let locker = Locker::new(Arc::new(store.clone()));
        let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
        (locker, guard)
    });
    drop(runtime);
    drop(locker);
    drop(guard);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        until_no_handle_is_left(&store).await;
        assert!(!store.0.is_held("a"), "the keeper thread released the lock");
    });
}

#[tokio::test]
async fn a_last_clone_dropped_on_the_keeper_thread_leaves_no_handle_after_the_release() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = locker_of(&store, &clock);
    locker.ready().await.unwrap();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.delay_ms.store(100, SeqCst);
    drop(guard);
    eventually("the release is on its way", || {
        store.0.release.calls.load(SeqCst) == 1
    })
    .await;
    // From here on only the release job on the keeper thread has a reference to the locker.
    drop(locker);
    for _ in 0..20 {
        pause().await;
    }
    assert!(store.0.is_held("a"));
    assert!(Arc::strong_count(&store.0) > 1, "the job keeps the thread");
    until_no_handle_is_left_after(&store, &clock).await;
    assert_eq!(store.0.release.calls.load(SeqCst), 1);
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn refused_releases_do_not_keep_a_dropped_locker_alive_until_expiry() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = locker_of(&store, &clock);
    locker.ready().await.unwrap();
    let ttl = Duration::from_secs(3600);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    store.0.release.refuse.store(u32::MAX, SeqCst);
    drop(guard);
    drop(locker);
    // The store refuses every release, so the job would repeat the release until the lease ends in
    // an hour. After `KEEP_ALIVE` (30 s) the job no longer keeps the locker alive. The locker then
    // ends, and the job ends with it.
    until_no_handle_is_left_after(&store, &clock).await;
    assert!(store.0.release.calls.load(SeqCst) > 2);
    assert!(store.0.is_held("a"), "the lease has not ended");
}

#[tokio::test]
async fn a_last_clone_dropped_during_an_acquire_leaves_a_guard_that_is_renewed() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let (locker, other) = (locker_of(&store, &clock), locker_of(&store, &clock));
    let theirs = other.lock("a").ttl(TTL).acquire().await.unwrap();
    let acquire = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("the acquire waits", || {
        store.0.contend.calls.load(SeqCst) == 1
    })
    .await;
    drop(locker);
    assert!(theirs.release().await.is_clean());
    let guard = acquire.await.unwrap().unwrap();
    eventually("renewed although no locker is left", || {
        clock.advance(TTL / 20);
        store.0.renew.calls.load(SeqCst) > 0
    })
    .await;
    assert!(guard.is_valid());
    assert!(guard.release().await.is_clean());
    drop(other);
    until_no_handle_is_left_after(&store, &clock).await;
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn an_attempt_dropped_with_the_last_clone_is_undone() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = locker_of(&store, &clock);
    locker.ready().await.unwrap();
    store.0.acquire.delay_ms.store(100, SeqCst);
    let acquire = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("the attempt is on its way", || {
        store.0.acquire.calls.load(SeqCst) == 1
    })
    .await;
    drop(locker);
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    until_no_handle_is_left_after(&store, &clock).await;
    assert_eq!(store.0.grants("a"), [1], "the attempt was let finish");
    assert_eq!(store.0.release.calls.load(SeqCst), 1, "and was undone");
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_hand_over_dropped_with_the_last_clone_is_released() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = locker_of(&store, &clock);
    locker.ready().await.unwrap();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut next = Box::pin(locker.lock("a").ttl(TTL).acquire());
    tokio::select! {
        biased;
        _ = &mut next => panic!("the lock is held"),
        () = std::future::ready(()) => {}
    }
    drop(locker);
    assert!(guard.release().await.is_clean());
    assert_eq!(store.0.grants("a"), [1, 2], "handed over");
    // The waiter is dropped without another poll, so it never picks the lock up.
    drop(next);
    until_no_handle_is_left_after(&store, &clock).await;
    assert!(!store.0.is_held("a"), "given back");
}
