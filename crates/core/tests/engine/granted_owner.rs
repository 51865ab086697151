//! A store that grants a lock to another owner than that of the request. Each later request of the
//! engine goes on under the granted owner.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::Poll,
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Clock, Guard, Locker, ManualClock, SystemClock};

const TTL: Duration = Duration::from_secs(2);
/// A lease that does not end during a test on the clock of the system.
const LONG: Duration = Duration::from_secs(60);

/// A store that grants each lock to a fresh owner, and a locker on it.
fn open(clock: Arc<dyn Clock>) -> (ScriptedLock, Locker) {
    let store = Script::open(Arc::clone(&clock));
    store.0.fresh_owners.store(true, SeqCst);
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(clock)
        .build();
    (store, locker)
}

/// Polls a future once. It must not be ready.
async fn begin<F: Future + Unpin>(future: &mut F) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *future).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Advances the clock to two renewals of a guard, which must stay valid.
async fn renew_twice(store: &ScriptedLock, clock: &ManualClock, guard: &Guard) {
    let before = store.0.renew.calls.load(SeqCst);
    for renewals in 1..=2 {
        clock.advance(TTL / 3);
        eventually("a renewal", || {
            store.0.renew.calls.load(SeqCst) >= before + renewals
        })
        .await;
        assert!(guard.is_valid(), "lost: {:?}", guard.watch().loss());
    }
}

#[tokio::test]
async fn renewals_and_release_go_on_under_the_granted_owner() {
    let clock = ManualClock::new();
    let (store, locker) = open(Arc::new(clock.clone()));
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    renew_twice(&store, &clock, &guard).await;
    guard.extend(TTL).await.unwrap();
    assert!(guard.release().await.is_clean());
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_lock_that_is_handed_over_goes_on_under_the_granted_owner() {
    let clock = ManualClock::new();
    let (store, locker) = open(Arc::new(clock.clone()));
    let first = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut waiting = Box::pin(locker.lock("a").ttl(TTL).acquire());
    begin(&mut waiting).await;
    assert!(first.release().await.is_clean());
    let second = waiting.await.unwrap();
    assert_eq!(store.0.hand_over.calls.load(SeqCst), 1);
    renew_twice(&store, &clock, &second).await;
    assert!(second.release().await.is_clean());
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_lock_that_is_handed_over_to_nobody_is_released() {
    let (store, locker) = open(Arc::new(SystemClock));
    let first = locker.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut waiting = Box::pin(locker.lock("a").ttl(LONG).acquire());
    begin(&mut waiting).await;
    assert!(first.release().await.is_clean());
    assert!(store.0.is_held("a"));
    drop(waiting);
    eventually("the lock is free", || !store.0.is_held("a")).await;
}

#[tokio::test]
async fn a_lock_that_is_picked_up_after_its_deadline_is_released() {
    let clock = ManualClock::new();
    let (store, locker) = open(Arc::new(clock.clone()));
    let first = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    // Shorter than the wait of 30 s.
    let ttl = Duration::from_secs(20);
    let mut waiting = Box::pin(locker.lock("a").ttl(ttl).acquire());
    begin(&mut waiting).await;
    assert!(first.release().await.is_clean());
    // Past the local deadline of the lease, and before its end at the store.
    clock.advance(ttl - Duration::from_millis(50));
    let waiting = tokio::spawn(waiting);
    eventually("the waiter has the lock", || waiting.is_finished()).await;
    let second = waiting.await.unwrap().unwrap();
    assert!(second.is_valid());
    assert_eq!(
        store.0.grants("a").len(),
        3,
        "a grant after the outdated one"
    );
}

#[tokio::test]
async fn an_abandoned_attempt_is_released_under_the_granted_owner() {
    for refused in [0, 1] {
        let clock = ManualClock::new();
        let (store, locker) = open(Arc::new(clock.clone()));
        store.0.acquire.delay_ms.store(100, SeqCst);
        store.0.release.refuse.store(refused, SeqCst);
        let acquiring = tokio::spawn(locker.lock("a").ttl(LONG).acquire());
        eventually("the attempt is on its way", || {
            store.0.acquire.calls.load(SeqCst) == 1
        })
        .await;
        acquiring.abort();
        assert!(acquiring.await.unwrap_err().is_cancelled());
        eventually("the lock was granted, and is free again", || {
            clock.advance(Duration::from_millis(10));
            store.0.grants("a").len() == 1 && !store.0.is_held("a")
        })
        .await;
    }
}

/// A grant whose answer comes after its deadline is released before the next attempt.
#[tokio::test]
async fn a_late_grant_is_given_back_under_the_granted_owner() {
    // In the second round, the answer to the release is lost, so the keeper repeats it.
    for kept in [0, 1] {
        let clock = ManualClock::new();
        let (store, locker) = open(Arc::new(clock.clone()));
        store.0.release.keep.store(kept, SeqCst);
        store.0.acquire.delay_ms.store(1900, SeqCst);
        let acquiring = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
        eventually("the first attempt", || {
            store.0.acquire.calls.load(SeqCst) == 1
        })
        .await;
        store.0.acquire.delay_ms.store(0, SeqCst);
        let begun = clock.now();
        while !acquiring.is_finished() {
            clock.advance(Duration::from_millis(10));
            pause().await;
        }
        let guard = acquiring.await.unwrap().unwrap();
        assert!(guard.is_valid());
        // Without a release, the first grant would exclude everybody for its whole TTL from its
        // arrival on.
        assert!(clock.now().since(begun) < TTL + Duration::from_millis(1900));
    }
}
