//! Waits for a lock while the store is unreachable or slow.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, time_of};
use distlock_core::{Clock as _, ErrorKind, Locker, ManualClock, Moment, Released};

const MINUTE: Duration = Duration::from_secs(60);
/// The longest time that a hanging store may add to the wait.
const BEYOND: Duration = Duration::from_secs(5);
/// The step by which `time_of` advances the clock.
const STEP: Duration = Duration::from_millis(100);

fn by_clock() -> (ManualClock, ScriptedLock, Locker) {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    (clock, store, locker)
}

#[tokio::test]
async fn an_acquire_succeeds_when_the_store_answers_again_within_the_wait() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.refuse.store(20, SeqCst);
    let (took, guard) = time_of(&clock, locker.lock("a").wait(MINUTE).acquire()).await;
    assert!(guard.unwrap().is_valid());
    // After half a second of short pauses, there is at most one attempt in each half second.
    assert!(took >= Duration::from_secs(8), "{took:?}");
    assert_eq!(store.0.acquire.calls.load(SeqCst), 21);
}

#[tokio::test]
async fn an_acquire_without_a_limit_waits_until_the_store_answers_again() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.refuse.store(100, SeqCst);
    let (_, guard) = time_of(&clock, locker.lock("a").wait_forever().acquire()).await;
    assert!(guard.unwrap().is_valid());
}

#[tokio::test]
async fn a_wait_that_ends_during_an_outage_fails_as_unavailable() {
    for lost in [false, true] {
        let (clock, store, locker) = by_clock();
        let acquire = &store.0.acquire;
        let fault = if lost {
            &acquire.lose_reply
        } else {
            &acquire.refuse
        };
        fault.store(u32::MAX, SeqCst);
        let wait = Duration::from_secs(3);
        // A task that waits behind another one in the local queue gets the same error as a task
        // that asks the store itself.
        let first = tokio::spawn(locker.lock("a").wait(MINUTE).acquire());
        eventually("the first task has asked the store", || {
            acquire.calls.load(SeqCst) > 1 || {
                clock.advance(STEP);
                false
            }
        })
        .await;
        for name in ["a", "b"] {
            let (took, refused) = time_of(&clock, locker.lock(name).wait(wait).acquire()).await;
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(
                error.to_string().contains("away when the wait of 3s ended"),
                "{error}"
            );
            assert!(took >= wait && took <= wait + STEP * 5, "{name}: {took:?}");
        }
        first.abort();
    }
}

#[tokio::test]
async fn a_slow_answer_within_the_wait_is_taken() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.delay_ms.store(8000, SeqCst);
    let acquire = locker.lock("a").ttl(MINUTE).wait(MINUTE).acquire();
    let (took, guard) = time_of(&clock, acquire).await;
    assert!(took <= Duration::from_secs(9), "{took:?}");
    assert_eq!(guard.unwrap().token().get(), 1);
    assert_eq!(store.0.acquire.calls.load(SeqCst), 1);
}

#[tokio::test]
async fn an_acquire_without_an_answer_fails_at_the_end_of_the_wait() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.hang.store(1, SeqCst);
    let wait = Duration::from_secs(20);
    let (took, refused) = time_of(&clock, locker.lock("a").wait(wait).acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took >= wait && took <= wait + BEYOND + STEP, "{took:?}");
}

#[tokio::test]
async fn grants_after_their_deadline_are_released_until_one_comes_in_time() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.delay_ms.store(1900, SeqCst);
    let begun = clock.now();
    let acquire = locker.lock("a").ttl(Duration::from_secs(2)).wait(MINUTE);
    let (slow, time) = (Arc::clone(&store.0), clock.clone());
    let has_healed = move |now: Moment| now.since(begun) > Duration::from_secs(15);
    let healed = tokio::spawn(async move {
        eventually("fifteen seconds have passed", || has_healed(time.now())).await;
        slow.acquire.delay_ms.store(0, SeqCst);
    });
    let (_, guard) = time_of(&clock, acquire.acquire()).await;
    assert!(guard.unwrap().is_valid());
    assert!(store.0.grants("a").len() > 3);
    healed.await.unwrap();
}

#[tokio::test]
async fn a_permanent_error_ends_the_wait_at_once() {
    for kind in [
        ErrorKind::AccessDenied,
        ErrorKind::Corrupt,
        ErrorKind::InvalidConfig,
    ] {
        let (clock, store, locker) = by_clock();
        *store.0.refuse_with.lock() = Some(kind);
        store.0.acquire.refuse.store(u32::MAX, SeqCst);
        let (took, refused) = time_of(&clock, locker.lock("a").wait_forever().acquire()).await;
        assert_eq!(refused.unwrap_err().kind(), kind);
        assert!(took <= STEP, "{took:?}");
    }
}

#[tokio::test]
async fn give_up_when_unreachable_ends_after_a_few_attempts() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.refuse.store(u32::MAX, SeqCst);
    let lock = locker.lock("a").wait_forever().give_up_when_unreachable();
    let (took, refused) = time_of(&clock, lock.acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took <= Duration::from_secs(1), "{took:?}");
    assert_eq!(store.0.acquire.calls.load(SeqCst), 4);
}

#[tokio::test]
async fn closing_the_locker_ends_a_wait_during_an_outage() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.refuse.store(u32::MAX, SeqCst);
    let waiting = tokio::spawn(locker.lock("a").wait_forever().acquire());
    eventually("the acquire waits", || {
        store.0.acquire.calls.load(SeqCst) > 0
    })
    .await;
    let closing = locker.clone();
    let (took, ()) = time_of(&clock, async move { closing.close().await }).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(took <= Duration::from_secs(10), "{took:?}");
}

/// The store is away for a second when a short program ends.
#[tokio::test]
async fn a_close_repeats_a_release_until_the_store_answers_again() {
    let (clock, store, locker) = by_clock();
    let guard = locker.lock("a").ttl(MINUTE).acquire().await.unwrap();
    // These are more tries than the release itself makes.
    store.0.release.refuse.store(9, SeqCst);
    let (_, released) = time_of(&clock, guard.release()).await;
    assert!(matches!(released, Released::Unconfirmed(_)), "{released:?}");
    let closing = locker.clone();
    let (took, ()) = time_of(&clock, async move { closing.close().await }).await;
    let refusals = store.0.release.refuse.load(SeqCst);
    assert!(
        !store.0.is_held("a"),
        "after {took:?}, {refusals} refusals are left"
    );
    assert!(locker.unreleased().is_empty());
}

#[tokio::test]
async fn a_close_ends_and_names_the_lock_that_it_could_not_release() {
    let (clock, store, locker) = by_clock();
    let guard = locker.lock("a").ttl(MINUTE).acquire().await.unwrap();
    store.0.release.refuse.store(u32::MAX, SeqCst);
    let (_, released) = time_of(&clock, guard.release()).await;
    assert!(matches!(released, Released::Unconfirmed(_)), "{released:?}");
    let closing = locker.clone();
    let (took, ()) = time_of(&clock, async move { closing.close().await }).await;
    let bounds = Duration::from_secs(4)..=Duration::from_secs(10);
    assert!(bounds.contains(&took), "{took:?}");
    let [left] = &locker.unreleased()[..] else {
        panic!("{:?}", locker.unreleased());
    };
    assert_eq!(left.name.as_str(), "a");
    let held = store.0.is_held("a");
    assert!(
        held && left.ends_in > MINUTE / 2 && left.ends_in <= MINUTE,
        "{left:?}"
    );
    let error = left.error.as_ref().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    clock.advance(MINUTE);
    assert!(locker.unreleased()[0].ends_in.is_zero());
}

#[tokio::test]
async fn no_attempt_follows_a_late_grant_that_is_not_given_back_by_the_end_of_the_wait() {
    let (clock, store, locker) = by_clock();
    store.0.acquire.delay_ms.store(1900, SeqCst);
    store.0.release.hang.store(1, SeqCst);
    let lock = locker.lock("a").ttl(Duration::from_secs(2));
    let (_, refused) = time_of(&clock, lock.wait(Duration::from_secs(1)).acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.0.acquire.calls.load(SeqCst), 1);
}

#[tokio::test]
async fn an_attempt_at_the_end_of_the_wait_is_made_again_only_if_it_may_have_happened() {
    for (lost, attempts) in [(false, 1), (true, 2)] {
        let (clock, store, locker) = by_clock();
        let acquire = &store.0.acquire;
        let fault = if lost {
            &acquire.lose_reply
        } else {
            &acquire.refuse
        };
        fault.store(u32::MAX, SeqCst);
        let (_, refused) = time_of(&clock, locker.lock("a").wait(Duration::ZERO).acquire()).await;
        assert!(refused.is_err());
        assert_eq!(acquire.calls.load(SeqCst), attempts);
    }
}

#[tokio::test]
async fn a_failed_renewal_is_tried_again_after_a_tenth_of_the_ttl() {
    let (clock, store, locker) = by_clock();
    let guard = locker.lock("a").ttl(Duration::from_secs(5)).acquire();
    let guard = guard.await.unwrap();
    store.0.renew.refuse.store(1, SeqCst);
    let mut tried = Vec::new();
    for wanted in [1, 2] {
        eventually("a renewal is tried", || {
            clock.advance(Duration::from_millis(10));
            store.0.renew.calls.load(SeqCst) == wanted
        })
        .await;
        tried.push(clock.now());
    }
    let pause = tried[1].since(tried[0]);
    let tenth = Duration::from_millis(400)..Duration::from_millis(650);
    assert!(tenth.contains(&pause), "{pause:?}");
    assert!(guard.is_valid());
}
