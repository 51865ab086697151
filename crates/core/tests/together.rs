//! Several guards at once: a set that is not complete leaves nothing behind, and those who share a lock do not wait for each
//! other.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Attempt, ErrorKind, Locker, Released, Scope, SystemClock};
use support::{Script, eventually};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_minimum_counts_for_a_set_once_all_of_it_is_held() {
    let store = Script::open(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("b").acquire().await.unwrap();
    let set = || mine.lock_all(["a", "b"]).min_hold(HOUR);
    let refused = set().wait(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
    assert!(!store.0.is_held("a"), "what was taken for nothing is free");
    assert!(matches!(theirs.release().await, Released::Clean));
    let set = set().acquire().await.unwrap();
    for (_, released) in set.release().await {
        assert!(released.is_clean());
    }
    assert!(store.0.is_held("a") && store.0.is_held("b"));
}

#[tokio::test]
async fn who_joins_a_scope_does_not_wait_for_anothers_extension() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let scope = Scope::new();
    let lock = || locker.lock("a").reentrant(&scope);
    let outer = lock().acquire().await.unwrap();
    store.0.renew.hang.store(1, SeqCst);
    let longer = tokio::spawn(lock().ttl(HOUR).acquire());
    eventually("the extension hangs", || {
        store.0.renew.calls.load(SeqCst) == 1
    })
    .await;
    let joined = lock().try_acquire().await.unwrap();
    assert!(matches!(joined, Attempt::Acquired(_)), "{joined:?}");
    longer.abort();
    drop(outer);
}
