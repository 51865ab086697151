//! The release and the renewal of a ticket. Each is one request, which the store refuses unless it
//! keeps the ticket's nonce beside the lock. So a request that fails or breaks off leaves the
//! ticket usable.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Clock as _, ErrorKind, Locker, ManualClock, SystemClock, Ticket};

const TTL: Duration = Duration::from_secs(600);

/// The longest time for which a refused release is repeated.
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
async fn a_ticket_release_that_breaks_off_can_be_repeated() {
    let (_clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    store.0.release.hang.store(1, SeqCst);
    let calls = store.0.release.calls.load(SeqCst);
    let releasing = tokio::spawn({
        let (locker, ticket) = (locker.clone(), ticket.clone());
        async move { locker.release_ticket(&ticket).await }
    });
    eventually("the release is in flight", || {
        store.0.release.calls.load(SeqCst) > calls
    })
    .await;
    releasing.abort();
    assert!(releasing.await.unwrap_err().is_cancelled());
    assert!(store.0.is_held("a"));
    locker.release_ticket(&ticket).await.unwrap();
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_ticket_release_that_is_always_refused_ends_and_can_be_repeated() {
    let (clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    // A refusal that takes time, so that an attempt without time for it would end without a reason.
    store.0.release.delay_ms.store(20, SeqCst);
    store.0.release.refuse_late.store(u32::MAX, SeqCst);
    let before = clock.now();
    let releasing = tokio::spawn({
        let (locker, ticket) = (locker.clone(), ticket.clone());
        async move { locker.release_ticket(&ticket).await }
    });
    while !releasing.is_finished() {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let error = releasing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(clock.now().since(before) <= SECONDS * 2);
    store.0.release.delay_ms.store(0, SeqCst);
    store.0.release.refuse_late.store(0, SeqCst);
    locker.release_ticket(&ticket).await.unwrap();
    assert!(!store.0.is_held("a"));
}

#[tokio::test]
async fn a_ticket_renewal_is_one_request_and_leaves_the_ticket_usable() {
    let (_clock, store, locker) = on_a_manual_clock();
    let ticket = ticket(&locker).await;
    let renew = &store.0.renew;
    let calls = renew.calls.load(SeqCst);
    renew.refuse.store(1, SeqCst);
    let error = locker.renew_ticket(&ticket, TTL).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    for _ in 0..2 {
        locker.renew_ticket(&ticket, TTL).await.unwrap();
    }
    assert_eq!(renew.calls.load(SeqCst), calls + 3);
    assert!(locker.resume(&ticket).await.unwrap().is_valid());
}
