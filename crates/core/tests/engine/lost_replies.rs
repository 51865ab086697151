//! Lost answers and cancelled callers: no lock stays held without a guard, and no lock is granted
//! twice.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually};
use distlock_core::{Attempt, ErrorKind, Locker, Released, SystemClock};

fn store() -> (ScriptedLock, Locker) {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    (store, locker)
}

const TTL: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_found_by_the_next_attempt() {
    let (store, locker) = store();
    store.0.acquire.lose_reply.store(2, SeqCst);
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    assert_eq!(
        store.0.grants("a"),
        [guard.token().get()],
        "one grant, found again"
    );
    store.0.acquire.lose_reply.store(1, SeqCst);
    let other = locker.lock("b").ttl(TTL).try_acquire().await.unwrap();
    assert!(matches!(other, Attempt::Acquired(_)));
}

#[tokio::test]
async fn a_grant_without_an_answer_is_released_after_the_wait() {
    let (store, locker) = store();
    store.0.acquire.lose_reply.store(u32::MAX, SeqCst);
    let error = locker
        .lock("a")
        .ttl(TTL)
        .wait(Duration::from_secs(1))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    eventually(
        "the lock without a guard is released well before its TTL",
        || !store.0.is_held("a"),
    )
    .await;
}

#[tokio::test]
async fn an_attempt_whose_caller_went_away_is_finished_and_undone() {
    let (store, locker) = store();
    store.0.acquire.delay_ms.store(50, SeqCst);
    let acquire = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("the attempt is on its way", || {
        store.0.acquire.calls.load(SeqCst) == 1
    })
    .await;
    acquire.abort();
    eventually("the attempt is granted", || store.0.grants("a").len() == 1).await;
    eventually("the lock is released", || !store.0.is_held("a")).await;
}

#[tokio::test]
async fn an_attempt_that_panics_leaves_no_lock_behind() {
    let (store, locker) = store();
    store.0.acquire.panic.store(1, SeqCst);
    let acquire = tokio::spawn(locker.lock("a").ttl(TTL * 100).acquire());
    assert!(acquire.await.unwrap_err().is_panic());
    assert_eq!(store.0.grants("a").len(), 1);
    eventually("the lock without a guard is released", || {
        !store.0.is_held("a")
    })
    .await;
    // The close waits for all running acquires, so the acquire must count as ended after its panic.
    locker.close().await;
}

#[tokio::test]
async fn an_unconfirmed_release_is_repeated_in_the_background() {
    let (store, locker) = store();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.refuse.store(5, SeqCst);
    assert!(matches!(guard.release().await, Released::Unconfirmed(_)));
    eventually("released in the background", || !store.0.is_held("a")).await;
}

#[tokio::test]
async fn a_release_that_is_refused_three_times_is_repeated_and_clean() {
    let (store, locker) = store();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.refuse.store(3, SeqCst);
    assert!(matches!(guard.release().await, Released::Clean));
    assert!(!store.0.is_held("a"));
    assert_eq!(store.0.release.calls.load(SeqCst), 4);
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_repeated_and_clean() {
    let (store, locker) = store();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.lose_reply.store(1, SeqCst);
    assert!(matches!(guard.release().await, Released::Clean));
    assert!(!store.0.is_held("a"));
    let again = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    assert!(
        matches!(again.release().await, Released::Clean),
        "the retry left the new holder alone"
    );
}

#[tokio::test]
async fn a_dropped_guard_is_released_and_close_waits_for_it() {
    let (store, locker) = store();
    drop(locker.lock("a").ttl(TTL).acquire().await.unwrap());
    locker.close().await;
    assert!(!store.0.is_held("a"));
    let error = locker.lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_release_whose_caller_went_away_continues_in_the_background() {
    let (store, locker) = store();
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    store.0.release.hang.store(1, SeqCst);
    let release = tokio::spawn(guard.release());
    eventually("the release is on its way", || {
        store.0.release.calls.load(SeqCst) == 1
    })
    .await;
    release.abort();
    eventually("the lock is released in the background", || {
        !store.0.is_held("a")
    })
    .await;
}

#[tokio::test]
async fn a_hand_over_whose_answer_was_lost_reaches_the_next_task() {
    let (store, locker) = store();
    let first = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let next = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("the next task waits in the local queue", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    store.0.hand_over.lose_reply.store(1, SeqCst);
    let _ = first.release().await;
    let next = next.await.unwrap().unwrap();
    assert_eq!(
        store.0.grants("a").len(),
        2,
        "the hand-over happened once and was recognised"
    );
    assert_eq!(store.0.grants("a")[1], next.token().get());
}

#[tokio::test]
async fn a_lock_handed_over_to_a_cancelled_task_passes_to_the_next_task() {
    let (store, locker) = store();
    let first = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let gone = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("one waits", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    let stays = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    eventually("two wait", || {
        format!("{locker:?}").contains("held_or_wanted: 3")
    })
    .await;
    store.0.hand_over.delay_ms.store(30, SeqCst);
    let release = tokio::spawn(first.release());
    eventually("handing over", || store.0.hand_over.calls.load(SeqCst) == 1).await;
    gone.abort();
    let _ = release.await.unwrap();
    let guard = stays.await.unwrap().unwrap();
    assert!(guard.is_valid());
    let grants = store.0.grants("a");
    assert!(grants.is_sorted() && *grants.last().unwrap() == guard.token().get());
}

#[tokio::test]
async fn an_acquire_at_a_hanging_store_ends_and_does_not_block_the_next_one() {
    let (store, locker) = store();
    store.0.acquire.hang.store(u32::MAX, SeqCst);
    let ttl = Duration::from_secs(1);
    let error = locker
        .lock("a")
        .ttl(ttl)
        .wait(Duration::ZERO)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    // The next task of this process does not wait behind the task that gave up.
    store.0.acquire.hang.store(0, SeqCst);
    assert!(locker.lock("a").ttl(ttl).acquire().await.is_ok());
}

#[tokio::test]
async fn an_unreachable_store_is_unavailable_and_a_busy_lock_is_a_timeout() {
    let (store, locker) = store();
    store.0.acquire.refuse.store(u32::MAX, SeqCst);
    let brief = Duration::from_millis(300);
    let error = locker
        .lock("a")
        .ttl(TTL)
        .wait(brief)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    store.0.acquire.refuse.store(0, SeqCst);
    let _held = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let error = locker
        .lock("a")
        .wait(Duration::from_millis(20))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("held by"), "{error}");
}

#[tokio::test]
async fn an_unanswered_hand_over_to_a_cancelled_task_is_released() {
    let (store, locker) = store();
    let long = Duration::from_secs(60);
    let first = locker.lock("a").ttl(long).acquire().await.unwrap();
    let gone = tokio::spawn(locker.lock("a").ttl(long).acquire());
    eventually("one waits", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    store.0.hand_over.delay_ms.store(30, SeqCst);
    store.0.hand_over.lose_reply.store(1, SeqCst);
    let release = tokio::spawn(first.release());
    eventually("handing over", || store.0.hand_over.calls.load(SeqCst) == 1).await;
    gone.abort();
    let _ = release.await.unwrap();
    assert_eq!(store.0.grants("a").len(), 2, "the hand-over happened");
    eventually(
        "the lock without a guard is released well before its TTL",
        || !store.0.is_held("a"),
    )
    .await;
    eventually("the local queue is empty", || {
        format!("{locker:?}").contains("held_or_wanted: 0")
    })
    .await;
}
