//! Several guards at once: an incomplete set leaves no lock held, and guards of one scope do not
//! wait for each other.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, time_of};
use distlock_core::{Attempt, ErrorKind, Locker, ManualClock, Released, Scope, SystemClock};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn the_minimum_hold_of_a_set_starts_when_all_its_locks_are_held() {
    let store = Script::open(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("b").acquire().await.unwrap();
    let set = || mine.lock_all(["a", "b"]).min_hold(HOUR);
    let refused = set().wait(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
    assert!(
        !store.0.is_held("a"),
        "the first lock of the incomplete set is free"
    );
    assert!(matches!(theirs.release().await, Released::Clean));
    let set = set().acquire().await.unwrap();
    for (_, released) in set.release().await {
        assert!(released.is_clean());
    }
    assert!(store.0.is_held("a") && store.0.is_held("b"));
}

#[tokio::test]
async fn a_task_joins_a_scope_while_the_extension_of_another_guard_hangs() {
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

/// The names of a set of 20 locks.
fn many() -> Vec<String> {
    (0..20).map(|number| format!("lock {number:02}")).collect()
}

fn by_clock() -> (ManualClock, ScriptedLock, Locker) {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    (clock, store, locker)
}

const WAIT: Duration = Duration::from_secs(1);
/// The longest time that a hanging store may add to the wait.
const BEYOND: Duration = Duration::from_secs(5);

#[tokio::test]
async fn an_incomplete_set_is_refused_in_bounded_time_while_releases_hang() {
    let (clock, store, locker) = by_clock();
    let theirs = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let theirs = theirs.lock("lock 19").ttl(HOUR).acquire().await.unwrap();
    store.0.release.hang.store(20, SeqCst);
    let set = locker.lock_all(many()).ttl(HOUR).wait(WAIT).acquire();
    let (took, refused) = time_of(&clock, set).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(took <= WAIT + BEYOND, "{took:?}");
    store.0.release.hang.store(0, SeqCst);
    // The store answers again, so the releases in the background succeed.
    eventually("all locks but the one of the other locker are free", || {
        clock.advance(Duration::from_millis(100));
        let held = many().into_iter().filter(|name| store.0.is_held(name));
        held.eq(["lock 19"])
    })
    .await;
    drop(theirs);
}

#[tokio::test]
async fn a_set_is_refused_in_bounded_time_when_the_store_starts_to_hang() {
    let (clock, store, locker) = by_clock();
    store.0.release.hang.store(20, SeqCst);
    store.0.acquire.delay_ms.store(1, SeqCst);
    let set = locker.lock_all(many()).ttl(HOUR).wait(WAIT).acquire();
    let set = tokio::spawn(set);
    eventually("half of them are taken", || {
        clock.advance(Duration::from_millis(1));
        store.0.acquire.calls.load(SeqCst) == 10
    })
    .await;
    store.0.acquire.hang.store(1, SeqCst);
    let (took, error) = time_of(&clock, set).await;
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took <= WAIT + BEYOND, "{took:?}");
}

#[tokio::test]
async fn all_locks_of_a_set_share_one_wait() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.delay_ms.store(500, SeqCst);
    let set = locker.lock_all(many()).ttl(HOUR).wait(WAIT).acquire();
    let (took, error) = time_of(&clock, set).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(took <= WAIT + BEYOND, "{took:?}");
}

#[tokio::test]
async fn a_set_is_released_in_the_time_of_one_lock() {
    let (clock, store, locker) = by_clock();
    let set = locker.lock_all(many()).ttl(HOUR).acquire().await.unwrap();
    store.0.release.hang.store(20, SeqCst);
    let (took, answers) = time_of(&clock, set.release()).await;
    assert!(took <= BEYOND, "{took:?}");
    let backwards: Vec<_> = answers.iter().map(|(name, _)| name.to_string()).collect();
    assert!(backwards.into_iter().rev().eq(many()));
    for (_, released) in answers {
        assert!(matches!(released, Released::Unconfirmed(_)), "{released:?}");
    }
}

#[tokio::test]
async fn an_acquire_is_refused_in_bounded_time_when_an_attempt_or_the_leave_hangs() {
    // The last attempt gets the answer "busy" late, and then the removal of the queue entry hangs.
    let (clock, store, locker) = by_clock();
    let theirs = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let theirs = theirs.lock("a").ttl(HOUR).acquire().await.unwrap();
    store.0.leave.hang.store(1, SeqCst);
    let lock = tokio::spawn(locker.lock("a").ttl(HOUR).wait(WAIT).acquire());
    eventually("it waits in the queue", || {
        store.0.acquire.calls.load(SeqCst) == 3 && clock.sleepers() > 0
    })
    .await;
    store.0.acquire.delay_ms.store(4500, SeqCst);
    let (took, refused) = time_of(&clock, lock).await;
    let refused = refused.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
    assert!(took <= WAIT + BEYOND, "{took:?}");
    drop(theirs);

    // The answer to the first attempt is lost, and the second attempt is slow.
    let (clock, store, locker) = by_clock();
    store.0.acquire.delay_ms.store(4500, SeqCst);
    store.0.acquire.lose_reply.store(1, SeqCst);
    let lock = locker.lock("b").ttl(HOUR).wait(WAIT).acquire();
    let (took, _) = time_of(&clock, lock).await;
    assert!(took <= WAIT + BEYOND, "{took:?}");
}

#[tokio::test]
async fn a_task_joins_a_scope_in_bounded_time_while_extensions_hang() {
    let (clock, store, locker) = by_clock();
    let scope = Scope::new();
    let lock = || locker.lock("a").reentrant(&scope).wait(Duration::ZERO);
    let outer = lock().ttl(HOUR / 60).acquire().await.unwrap();
    // Both extensions hang: the second one waits for the end of the first one, and then for its own
    // answer.
    store.0.renew.hang.store(2, SeqCst);
    let first = tokio::spawn(lock().ttl(HOUR).acquire());
    eventually("the first hangs", || store.0.renew.calls.load(SeqCst) == 1).await;
    let (took, joined) = time_of(&clock, lock().ttl(HOUR).acquire()).await;
    assert!(joined.unwrap().is_valid());
    assert!(took <= BEYOND, "{took:?}");
    drop((outer, first));
}
