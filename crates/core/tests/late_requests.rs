//! Requests that reach the store late, after their sender has given up: they never undo a later
//! request.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{
    Attempt, Clock, DistLock, ErrorKind, Locker, LossReason, ManualClock, Renew, Scope, SystemClock,
};
use support::{Script, eventually, network::Network, pause, time_of};

/// A locker on a manual clock.
fn by_clock(store: impl DistLock + 'static, clock: &ManualClock) -> Locker {
    Locker::builder(Arc::new(store))
        .clock(Arc::new(clock.clone()))
        .build()
}

#[tokio::test]
async fn a_grant_given_back_without_an_answer_is_not_taken_again_by_the_same_owner() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let locker = by_clock(network.clone(), &clock);
    network.keep_release.store(true, SeqCst);
    // Later than the deadline of a lease of 2 s, and earlier than its end at the store.
    store.0.acquire.delay_ms.store(1900, SeqCst);
    let acquire = locker.lock("a").ttl(Duration::from_secs(2)).acquire();
    let (time, script) = (clock.clone(), Arc::clone(&store.0));
    let drive = async {
        eventually("the first attempt", || {
            script.acquire.calls.load(SeqCst) == 1
        })
        .await;
        script.acquire.delay_ms.store(0, SeqCst);
        loop {
            time.advance(Duration::from_millis(50));
            pause().await;
        }
    };
    let mine = tokio::select! {
        guard = acquire => guard,
        () = drive => unreachable!(),
    };
    let mine = mine.unwrap();
    // Now the release of the first grant arrives, for an owner that is gone.
    let releases = store.0.release.calls.load(SeqCst);
    network.arrive.add_permits(1);
    eventually("it has arrived", || {
        store.0.release.calls.load(SeqCst) > releases
    })
    .await;
    let theirs = by_clock(store.clone(), &clock)
        .lock("a")
        .try_acquire()
        .await;
    let theirs = theirs.unwrap().acquired();
    assert!(mine.is_valid());
    assert!(theirs.is_none(), "two guards are valid at once");
}

/// When the owner already holds the lock, the store sets the lease to the TTL of the request.
#[tokio::test]
async fn a_late_attempt_shortens_the_lease_also_after_an_extension() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let open =
        |lock: Arc<dyn DistLock>| Locker::builder(lock).clock(Arc::new(clock.clone())).build();
    let locker = open(Arc::new(network.clone()));
    network.keep_acquire.store(1, SeqCst);
    let acquiring = tokio::spawn(
        locker
            .lock("a")
            .ttl(Duration::from_secs(2))
            .renew(Renew::Manual)
            .acquire(),
    );
    while !acquiring.is_finished() {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let mine = acquiring.await.unwrap().unwrap();
    mine.extend(Duration::from_secs(60)).await.unwrap();
    let calls = store.0.acquire.calls.load(SeqCst);
    network.arrive.add_permits(1);
    eventually("the first attempt arrives", || {
        store.0.acquire.calls.load(SeqCst) > calls
    })
    .await;
    clock.advance(Duration::from_secs(3));
    let theirs = open(Arc::new(store.clone()))
        .lock("a")
        .wait(Duration::ZERO)
        .acquire()
        .await
        .unwrap();
    assert!(theirs.is_valid());
    assert!(!mine.is_valid(), "two guards are valid at once");
}

/// The same case, where the next attempt is granted too late and released.
#[tokio::test]
async fn an_unanswered_attempt_is_not_forgotten_with_a_later_one_that_was_given_back() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let open =
        |lock: Arc<dyn DistLock>| Locker::builder(lock).clock(Arc::new(clock.clone())).build();
    network.keep_acquire.store(1, SeqCst);
    store.0.acquire.delay_ms.store(700, SeqCst);
    let acquiring = tokio::spawn(
        open(Arc::new(network.clone()))
            .lock("a")
            .ttl(Duration::from_millis(500))
            .renew(Renew::Manual)
            .acquire(),
    );
    while !acquiring.is_finished() {
        if store.0.acquire.calls.load(SeqCst) == 1 {
            // The first attempt is in flight; the next is not delayed.
            store.0.acquire.delay_ms.store(0, SeqCst);
        }
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let mine = acquiring.await.unwrap().unwrap();
    assert_eq!(store.0.grants("a").len(), 2, "one was given back");
    mine.extend(Duration::from_secs(60)).await.unwrap();
    let calls = store.0.acquire.calls.load(SeqCst);
    network.arrive.add_permits(1);
    eventually("the first attempt arrives", || {
        store.0.acquire.calls.load(SeqCst) > calls
    })
    .await;
    clock.advance(Duration::from_secs(1));
    let theirs = open(Arc::new(store.clone()))
        .lock("a")
        .wait(Duration::ZERO)
        .acquire()
        .await
        .unwrap();
    assert!(theirs.is_valid());
    assert!(!mine.is_valid(), "two guards are valid at once");
}

/// The same case, where the caller goes away during the second attempt.
#[tokio::test]
async fn an_unanswered_attempt_is_taken_back_however_the_next_one_ends() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let locker = by_clock(network.clone(), &clock);
    network.keep_acquire.store(1, SeqCst);
    store.0.acquire.delay_ms.store(500, SeqCst);
    let day = Duration::from_secs(24 * 3600);
    let acquiring = tokio::spawn(locker.lock("a").ttl(day).acquire());
    let calls = || store.0.acquire.calls.load(SeqCst);
    while calls() == 0 {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    acquiring.abort();
    while store.0.release.calls.load(SeqCst) == 0 || store.0.is_held("a") {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    store.0.acquire.delay_ms.store(0, SeqCst);
    network.arrive.add_permits(1);
    eventually("the first attempt is granted", || {
        store.0.grants("a").len() == 2
    })
    .await;
    let latest = clock.now() + Duration::from_secs(60);
    while store.0.is_held("a") {
        assert!(clock.now() < latest, "nobody holds it, and nobody frees it");
        clock.advance(Duration::from_millis(50));
        pause().await;
    }
}

/// Undoing the first attempt that arrives does not count for the second.
#[tokio::test]
async fn two_unanswered_attempts_of_one_caller_are_both_taken_back() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let locker = by_clock(network.clone(), &clock);
    network.keep_acquire.store(2, SeqCst);
    let day = Duration::from_secs(24 * 3600);
    let acquiring = tokio::spawn(locker.lock("a").ttl(day).acquire());
    while network.keep_acquire.load(SeqCst) > 0 {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    acquiring.abort();
    for arrived in [1, 2] {
        network.arrive.add_permits(1);
        eventually("it is granted", || store.0.grants("a").len() == arrived).await;
        let latest = clock.now() + Duration::from_secs(60);
        while store.0.is_held("a") {
            assert!(clock.now() < latest, "attempt {arrived} is not freed");
            clock.advance(Duration::from_millis(50));
            pause().await;
        }
    }
}

#[tokio::test]
async fn no_guard_joins_a_lease_that_is_becoming_a_ticket() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(Network::to(&store)))
        .clock(Arc::new(clock.clone()))
        .build();
    let scope = Scope::new();
    let lock = || {
        locker
            .lock("a")
            .ttl(Duration::from_secs(20))
            .reentrant(&scope)
    };
    let guard = lock().acquire().await.unwrap();
    store.0.renew.delay_ms.store(100, SeqCst);
    let calls = store.0.renew.calls.load(SeqCst);
    let ticket = tokio::spawn(guard.into_ticket());
    eventually("it is being turned into a ticket", || {
        store.0.renew.calls.load(SeqCst) > calls
    })
    .await;
    let joined = lock().try_acquire().await.unwrap();
    store.0.renew.delay_ms.store(0, SeqCst);
    assert!(matches!(joined, Attempt::Busy(_)), "{joined:?}");
    while !ticket.is_finished() {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let ticket = ticket.await.unwrap().unwrap();
    assert!(locker.resume(&ticket).await.unwrap().is_valid());
}

#[tokio::test]
async fn a_hand_over_that_is_answered_late_is_not_taken_back_from_the_next_task() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let locker = by_clock(network.clone(), &clock);
    let ttl = Duration::from_secs(60);
    let first = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let next = tokio::spawn(locker.lock("a").ttl(ttl).acquire());
    eventually("the next task is in line", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    network.keep_hand_over.store(true, SeqCst);
    // The release runs in the background, so it uses another connection than the next task.
    drop(first);
    eventually("handing over", || store.0.grants("a").len() == 2).await;
    while !next.is_finished() {
        clock.advance(Duration::from_millis(50));
        pause().await;
    }
    let next = next.await.unwrap().unwrap();
    network.arrive.add_permits(1);
    for _ in 0..50 {
        pause().await;
        assert!(
            store.0.is_held("a") && next.is_valid(),
            "the next task's lock was taken away"
        );
    }
}

#[tokio::test]
async fn an_extension_that_was_given_up_does_not_reach_a_ticket() {
    let store = Script::open(Arc::new(SystemClock));
    let network = Network::to(&store);
    let locker = Locker::new(Arc::new(network.clone()));
    let ttl = Duration::from_secs(20);
    // Another lock's renewal blocks the renewal thread.
    let slow = locker
        .lock("block")
        .ttl(Duration::from_millis(600))
        .acquire()
        .await
        .unwrap();
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    network.block.store(true, SeqCst);
    eventually("the renewal thread is blocked", || {
        network.blocking.load(SeqCst)
    })
    .await;
    // There are several, because one of them may by chance be too late for another reason.
    for _ in 0..8 {
        let extend = guard.extend(Duration::from_millis(20));
        tokio::pin!(extend);
        tokio::select! {
            biased;
            _ = &mut extend => panic!("the renewal thread is blocked"),
            () = std::future::ready(()) => {}
        }
    }
    let ticket = guard.into_ticket().await.unwrap();
    let resumed = Locker::new(Arc::new(network.clone()))
        .resume(&ticket)
        .await
        .unwrap();
    network.block.store(false, SeqCst);
    // All earlier work of the thread is done when a job that was queued later is done.
    drop(slow);
    eventually("the job behind it is done", || !store.0.is_held("block")).await;
    for _ in 0..100 {
        pause().await;
        assert!(
            store.0.is_held("a") && resumed.is_valid(),
            "the resumed lease was cut short"
        );
    }
}

#[tokio::test]
async fn a_ticket_lasts_no_longer_than_an_extension_that_may_still_arrive() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(Network::to(&store)));
    let guard = locker
        .lock("a")
        .ttl(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    store.0.renew.lose_reply.store(1, SeqCst);
    let short = Duration::from_secs(2);
    assert!(guard.extend(short).await.is_err());
    let ticket = guard.into_ticket().await.unwrap();
    assert!(ticket.ttl().duration() <= short, "{}", ticket.ttl());
    let resumed = locker.resume(&ticket).await.unwrap();
    assert!(resumed.remaining() <= short);
}

/// A guard of the resumed ticket does not believe its own extension for longer either.
#[tokio::test]
async fn a_resumed_ticket_respects_a_renewal_that_may_still_arrive() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let open = || by_clock(network.clone(), &clock);
    let (first, second, third) = (open(), open(), open());
    let ttl = Duration::from_secs(10);
    let guard = first.lock("a").ttl(ttl).acquire().await.unwrap();
    network.keep_renewal.store(true, SeqCst);
    assert!(guard.extend(ttl).await.is_err());
    let ticket = guard.into_ticket().await.unwrap();
    let ticket = ticket.to_string().parse().unwrap();
    let resumed = second.resume(&ticket).await.unwrap();
    resumed.extend(Duration::from_secs(60)).await.unwrap();
    let calls = store.0.renew.calls.load(SeqCst);
    network.arrive.add_permits(1);
    eventually("the renewal arrives", || {
        store.0.renew.calls.load(SeqCst) > calls
    })
    .await;
    clock.advance(ttl + Duration::from_secs(1));
    let theirs = third
        .lock("a")
        .wait(Duration::ZERO)
        .acquire()
        .await
        .unwrap();
    assert!(theirs.is_valid());
    assert!(!resumed.is_valid(), "two guards are valid at once");
}

#[tokio::test]
async fn an_attempt_that_lands_while_the_locker_closes_is_given_back() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    store.0.acquire.delay_ms.store(300, SeqCst);
    let acquire = tokio::spawn(locker.lock("a").ttl(Duration::from_secs(20)).acquire());
    eventually("the attempt is on its way", || {
        store.0.acquire.calls.load(SeqCst) == 1
    })
    .await;
    locker.close().await;
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(store.0.grants("a").len(), 1);
    assert!(!store.0.is_held("a"), "given back before it closed");
}

/// An acquire that nobody polls cannot delay closing for ever.
#[tokio::test]
async fn closing_does_not_wait_for_ever_for_a_stopped_future() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(store.clone(), &clock);
    store.0.acquire.hang.store(1, SeqCst);
    let acquire = locker.lock("a").ttl(Duration::from_secs(2)).acquire();
    tokio::pin!(acquire);
    tokio::select! {
        biased;
        _ = &mut acquire => panic!("the store hangs"),
        () = pause() => {}
    }
    let close = locker.close();
    tokio::pin!(close);
    let closed = clock.now() + Duration::from_secs(60);
    while clock.now() < closed {
        tokio::select! {
            () = &mut close => return,
            () = pause() => clock.advance(Duration::from_secs(1)),
        }
    }
    panic!("it never closed");
}

#[tokio::test]
async fn a_guard_ends_at_its_deadline_while_its_locker_still_closes() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let mut network = Network::to(&store);
    network.feeds = Some(Arc::default());
    let locker = Locker::builder(Arc::new(network))
        .clock(Arc::new(clock.clone()))
        .build();
    let ttl = Duration::from_millis(500);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let close = tokio::spawn(async move { locker.close().await });
    let watch = guard.watch();
    let told = tokio::spawn(async move { watch.ended().await });
    for _ in 0..100 {
        pause().await;
    }
    clock.advance(ttl);
    eventually("it is told", || told.is_finished()).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    while !close.is_finished() {
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
}

#[tokio::test]
async fn closing_does_not_wait_a_whole_lease_for_a_store_that_cannot_be_reached() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    network.refuse_reopen.store(true, SeqCst);
    let locker = Locker::builder(Arc::new(network))
        .clock(Arc::new(clock.clone()))
        .build();
    drop(
        locker
            .lock("a")
            .ttl(Duration::from_secs(3600))
            .acquire()
            .await
            .unwrap(),
    );
    let close = tokio::spawn(async move { locker.close().await });
    let latest = clock.now() + Duration::from_secs(60);
    while !close.is_finished() {
        assert!(clock.now() < latest, "it never closed");
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
}

/// This holds for every lease and every kind of call.
#[tokio::test]
async fn no_call_waits_a_whole_lease_for_the_renewal_connection() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    network.refuse_reopen.store(true, SeqCst);
    let locker = Locker::builder(Arc::new(network))
        .clock(Arc::new(clock.clone()))
        .build();
    let ttl = Duration::from_secs(3600);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let work = tokio::spawn(async move {
        let refused = guard.extend(ttl).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(guard.is_valid());
        // An extension that its caller abandons must not block the later calls either.
        {
            let extend = guard.extend(ttl);
            tokio::pin!(extend);
            tokio::select! {
                biased;
                _ = &mut extend => panic!("there is no connection"),
                () = pause() => {}
            }
        }
        guard.into_ticket().await.unwrap();
        locker.close().await;
    });
    let latest = clock.now() + Duration::from_secs(120);
    while !work.is_finished() {
        assert!(clock.now() < latest, "it still waits");
        clock.advance(Duration::from_millis(500));
        pause().await;
    }
    work.await.unwrap();
}

#[tokio::test]
async fn a_dropped_locker_ends_long_before_a_lease_it_could_not_free() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let network = Network::to(&store);
    let locker = by_clock(network.clone(), &clock);
    let day = Duration::from_secs(24 * 3600);
    let guard = locker.lock("a").ttl(day).acquire().await.unwrap();
    store.0.release.refuse.store(u32::MAX, SeqCst);
    let (_, released) = time_of(&clock, guard.release()).await;
    assert!(!released.is_clean());
    drop(locker);
    let latest = clock.now() + Duration::from_secs(600);
    // The test's own handle is the last one.
    while Arc::strong_count(&network.refuse_reopen) > 1 {
        assert!(
            clock.now() < latest,
            "its thread and connections are still there"
        );
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
}

/// The store may have granted the longer lease nevertheless, and nobody renews it.
#[tokio::test]
async fn an_extension_that_was_never_answered_is_freed_however_the_lock_ends() {
    for released in [true, false] {
        let clock = ManualClock::new();
        let store = Script::open(Arc::new(clock.clone()));
        let locker = by_clock(store.clone(), &clock);
        let ttl = Duration::from_secs(10);
        let guard = locker
            .lock("a")
            .ttl(ttl)
            .renew(Renew::Manual)
            .acquire()
            .await
            .unwrap();
        store.0.renew.lose_reply.store(1, SeqCst);
        assert!(guard.extend(Duration::from_secs(3600)).await.is_err());
        store.0.release.refuse.store(u32::MAX, SeqCst);
        if released {
            let (_, released) = time_of(&clock, guard.release()).await;
            assert!(!released.is_clean());
            clock.advance(ttl * 2);
            pause().await;
        } else {
            clock.advance(ttl * 2);
            assert!(!guard.is_valid());
            drop(guard);
        }
        assert!(store.0.is_held("a"));
        store.0.release.refuse.store(0, SeqCst);
        let latest = clock.now() + Duration::from_secs(120);
        while store.0.is_held("a") {
            assert!(clock.now() < latest, "nobody has it for an hour");
            clock.advance(Duration::from_millis(100));
            pause().await;
        }
    }
}
