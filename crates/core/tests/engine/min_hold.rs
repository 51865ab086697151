//! Minimum holds that the store alone does not keep: locks that end with a session, leases that are
//! shorter than the hold, and a renewal that fails at the release.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Clock as _, LeaseKind, Locker, Moment, Released, SystemClock};

const HOLD: Duration = Duration::from_millis(1200);

/// The time that a busy machine may add.
const SLACK: Duration = Duration::from_millis(800);

fn now() -> Moment {
    SystemClock.now()
}

/// A store whose locks end with a session, and whose leases are much shorter than the hold.
fn session_store() -> ScriptedLock {
    Script::with_capabilities(Arc::new(SystemClock), |capabilities| {
        capabilities.lease = LeaseKind::Session;
        capabilities.max_lease = Some(Duration::from_millis(200));
    })
}

/// Checks that the lock is held at every moment until its hold ends, counted from `taken`.
async fn held_until_the_end(store: &ScriptedLock, taken: Moment) {
    loop {
        let held = store.0.is_held("a");
        // The clock is read after the state, so that a state from before the end is not taken for
        // one from after it.
        if now().since(taken) >= HOLD {
            return;
        }
        assert!(held, "free after {:?}", now().since(taken));
        pause().await;
    }
}

#[tokio::test]
async fn a_lock_that_ends_with_its_session_is_kept_and_then_freed() {
    let store = session_store();
    let locker = Locker::new(Arc::new(store.clone()));
    let taken = now();
    let guard = locker.lock("a").min_hold(HOLD).acquire().await.unwrap();
    let watch = guard.watch();
    assert!(guard.release().await.is_clean());
    assert!(
        now().since(taken) < HOLD,
        "the release itself returns at once"
    );
    assert!(!watch.is_valid());
    held_until_the_end(&store, taken).await;
    eventually("freed", || !store.0.is_held("a")).await;
    assert!(now().since(taken) < HOLD + SLACK);
    assert_eq!(store.0.release.calls.load(SeqCst), 1);
}

#[tokio::test]
async fn a_close_waits_for_the_end_of_a_hold_that_this_process_keeps() {
    let store = session_store();
    let locker = Locker::new(Arc::new(store.clone()));
    let taken = now();
    let guard = locker.lock("a").min_hold(HOLD).acquire().await.unwrap();
    // The drop releases in the background.
    drop(guard);
    let watched = store.clone();
    let held = tokio::spawn(async move { held_until_the_end(&watched, taken).await });
    locker.close().await;
    let closed = now().since(taken);
    assert!(closed >= HOLD && closed < HOLD + SLACK, "{closed:?}");
    assert!(!store.0.is_held("a"), "freed before the close returns");
    held.await.unwrap();
}

#[tokio::test]
async fn a_hold_outlasts_the_last_clone_of_its_locker() {
    let store = session_store();
    let locker = Locker::new(Arc::new(store.clone()));
    let taken = now();
    let guard = locker.lock("a").min_hold(HOLD).acquire().await.unwrap();
    assert!(guard.release().await.is_clean());
    drop(locker);
    held_until_the_end(&store, taken).await;
    eventually("every handle on the store is dropped", || {
        Arc::strong_count(&store.0) == 1
    })
    .await;
    assert!(!store.0.is_held("a"));
}

/// The store does not answer at the release. The lease at that moment is shorter than the hold.
#[tokio::test]
async fn a_hold_that_was_not_confirmed_is_asked_for_again() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let taken = now();
    let lock = locker.lock("a").ttl(Duration::from_millis(600));
    let guard = lock.min_hold(HOLD).acquire().await.unwrap();
    store.0.renew.refuse.store(2, SeqCst);
    assert!(matches!(guard.release().await, Released::Unconfirmed(_)));
    held_until_the_end(&store, taken).await;
    eventually("the lease ends with the hold", || !store.0.is_held("a")).await;
    assert!(now().since(taken) < HOLD + SLACK);
    let start = now();
    locker.close().await;
    assert!(now().since(start) < SLACK, "the store keeps the lock");
}
