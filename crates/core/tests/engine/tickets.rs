//! The release and the renewal of a ticket. Each has two requests: the first redeems the ticket's
//! nonce (a random value that the store keeps beside the lock), and the second releases the lock or
//! writes the nonce back. The tests break off between the two.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Clock as _, Locker, ManualClock, SystemClock, Ticket};

/// Much longer than the lease that an interrupted release may leave.
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
async fn a_ticket_release_that_breaks_off_leaves_the_lock_held_for_5_s_at_most() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    store.0.release.hang.store(1, SeqCst);
    let calls = store.0.release.calls.load(SeqCst);
    let releasing = tokio::spawn({
        let locker = locker.clone();
        async move { locker.release_ticket(&ticket).await }
    });
    eventually("the release is between its two requests", || {
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
async fn a_ticket_release_that_is_always_refused_ends_and_leaves_the_lock_for_5_s_at_most() {
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

/// The first request, a renewal that redeems the ticket, removes the nonce from the store. If the
/// second request failed for good, nobody could use the ticket again.
#[tokio::test]
async fn the_second_request_of_a_ticket_renewal_is_repeated_after_a_failure() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    let renew = &store.0.renew;
    renew.delay_ms.store(100, SeqCst);
    let calls = renew.calls.load(SeqCst);
    let renewing = tokio::spawn(async move { locker.renew_ticket(&ticket, TTL).await });
    eventually("the first request is in flight", || {
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
