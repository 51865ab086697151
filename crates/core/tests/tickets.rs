//! The two steps of a ticket's release and renewal, and the state after a break between them.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Clock as _, Locker, ManualClock, SystemClock, Ticket};
use support::{Script, ScriptedLock, eventually, pause};

/// Far longer than the lease that an interrupted release may leave.
const TTL: Duration = Duration::from_secs(600);

/// The longest lease that an interrupted release leaves.
const SECONDS: Duration = Duration::from_secs(5);

async fn ticket(locker: &Locker) -> Ticket {
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.into_ticket().await.unwrap()
}

fn on_a_manual_clock() -> (ManualClock, ScriptedLock, Locker) {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    (clock, store, locker)
}

#[tokio::test]
async fn a_ticket_release_is_repeated_after_a_failure() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let release = &store.0.release;
    for (fault, times) in [(&release.refuse, 2), (&release.lose_reply, 1)] {
        let ticket = ticket(&locker).await;
        fault.store(times, SeqCst);
        locker.release_ticket(&ticket).await.unwrap();
        assert!(!store.0.is_held("a"));
    }
}

#[tokio::test]
async fn a_release_that_breaks_off_leaves_the_lock_for_seconds_only() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    store.0.release.hang.store(1, SeqCst);
    let calls = store.0.release.calls.load(SeqCst);
    let releasing = tokio::spawn({
        let locker = locker.clone();
        async move { locker.release_ticket(&ticket).await }
    });
    eventually("it is between the two steps", || {
        store.0.release.calls.load(SeqCst) > calls
    })
    .await;
    releasing.abort();
    assert!(releasing.await.unwrap_err().is_cancelled());
    assert!(store.0.is_held("a"));
    clock.advance(SECONDS);
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_release_that_is_always_refused_ends_and_leaves_the_lock_for_seconds_only() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    store.0.release.refuse.store(u32::MAX, SeqCst);
    let before = clock.now();
    let releasing = tokio::spawn(async move { locker.release_ticket(&ticket).await });
    while !releasing.is_finished() {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let error = releasing.await.unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(clock.now().since(before) <= SECONDS * 2);
    clock.advance(SECONDS);
    assert!(!store.0.is_held("a"));
}

/// The first step has removed the nonce, so the second must write it back.
#[tokio::test]
async fn the_second_step_of_a_ticket_renewal_is_repeated() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    let renew = &store.0.renew;
    renew.delay_ms.store(100, SeqCst);
    let calls = renew.calls.load(SeqCst);
    let renewing = tokio::spawn(async move { locker.renew_ticket(&ticket, TTL).await });
    eventually("the first step is on its way", || {
        renew.calls.load(SeqCst) > calls
    })
    .await;
    renew.refuse.store(1, SeqCst);
    while !renewing.is_finished() {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    renewing.await.unwrap().unwrap();
    assert_eq!(renew.calls.load(SeqCst), calls + 3);
}
