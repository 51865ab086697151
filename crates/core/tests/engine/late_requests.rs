//! Requests that reach the store after their sender has given up must not damage the result of a
//! later request.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, eventually, pause, time_of};
use distlock_core::{
    Attempt, Clock, DistLock, ErrorKind, Locker, LossReason, ManualClock, Renew, Scope, SystemClock,
};

/// A locker on a manual clock.
fn by_clock(store: Arc<dyn DistLock>, clock: &ManualClock) -> Locker {
    Locker::builder(store)
        .clock(Arc::new(clock.clone()))
        .build()
}

#[tokio::test]
async fn an_attempt_after_an_unconfirmed_release_uses_a_new_owner() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.release.keep.store(1, SeqCst);
    // 1900 ms is later than the local deadline of a lease of 2 s, and earlier than the end of that
    // lease at the store.
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
    // Now the release of the first grant reaches the store. The first and the second grant have
    // different owners, so the release must not end the second grant.
    let releases = store.0.release.calls.load(SeqCst);
    store.0.arrive.add_permits(1);
    eventually("the release has arrived", || {
        store.0.release.calls.load(SeqCst) > releases
    })
    .await;
    let theirs = by_clock(Arc::new(store.clone()), &clock)
        .lock("a")
        .try_acquire()
        .await;
    let theirs = theirs.unwrap().acquired();
    assert!(mine.is_valid());
    assert!(theirs.is_none(), "two guards are valid at once");
}

/// An attempt of an owner that already holds the lock sets the lease to the TTL of that attempt. So
/// a late attempt can shorten an extended lease.
#[tokio::test]
async fn a_guard_ends_in_time_when_a_late_attempt_shortens_its_extended_lease() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let open =
        |lock: Arc<dyn DistLock>| Locker::builder(lock).clock(Arc::new(clock.clone())).build();
    let locker = open(Arc::new(store.clone()));
    store.0.acquire.keep.store(1, SeqCst);
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
    store.0.arrive.add_permits(1);
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

/// The first attempt has no answer. The second is granted after its deadline and released, and the
/// third wins. The first attempt may still shorten the lease of the third one.
#[tokio::test]
async fn a_guard_ends_in_time_when_an_attempt_before_a_released_one_arrives_late() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let open =
        |lock: Arc<dyn DistLock>| Locker::builder(lock).clock(Arc::new(clock.clone())).build();
    store.0.acquire.keep.store(1, SeqCst);
    store.0.acquire.delay_ms.store(700, SeqCst);
    let acquiring = tokio::spawn(
        open(Arc::new(store.clone()))
            .lock("a")
            .ttl(Duration::from_millis(500))
            .renew(Renew::Manual)
            .acquire(),
    );
    while !acquiring.is_finished() {
        if store.0.acquire.calls.load(SeqCst) == 1 {
            // The attempt in flight is already delayed. The next attempt is not delayed.
            store.0.acquire.delay_ms.store(0, SeqCst);
        }
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    let mine = acquiring.await.unwrap().unwrap();
    assert_eq!(store.0.grants("a").len(), 2, "one was given back");
    mine.extend(Duration::from_secs(60)).await.unwrap();
    let calls = store.0.acquire.calls.load(SeqCst);
    store.0.arrive.add_permits(1);
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

/// The first attempt has no answer, and the caller goes away during the second attempt. The first
/// attempt is granted afterwards and must be released.
#[tokio::test]
async fn an_unanswered_attempt_is_released_when_the_caller_leaves_during_the_next_one() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.acquire.keep.store(1, SeqCst);
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
    store.0.arrive.add_permits(1);
    eventually("the first attempt is granted", || {
        store.0.grants("a").len() == 2
    })
    .await;
    let latest = clock.now() + Duration::from_secs(60);
    while store.0.is_held("a") {
        assert!(
            clock.now() < latest,
            "the lock without a guard is not released"
        );
        clock.advance(Duration::from_millis(50));
        pause().await;
    }
}

/// Two attempts have no answer. The release of the one that arrives first must not count as the
/// release of the other one.
#[tokio::test]
async fn two_unanswered_attempts_of_one_caller_are_both_released() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.acquire.keep.store(2, SeqCst);
    let day = Duration::from_secs(24 * 3600);
    let acquiring = tokio::spawn(locker.lock("a").ttl(day).acquire());
    while store.0.acquire.keep.load(SeqCst) > 0 {
        clock.advance(Duration::from_millis(10));
        pause().await;
    }
    acquiring.abort();
    for arrived in [1, 2] {
        store.0.arrive.add_permits(1);
        eventually("the attempt is granted", || {
            store.0.grants("a").len() == arrived
        })
        .await;
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
    let locker = Locker::builder(Arc::new(store.clone()))
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
    eventually("the ticket is being issued", || {
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
async fn the_next_task_keeps_a_lock_whose_hand_over_is_answered_late() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    let ttl = Duration::from_secs(60);
    let first = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let next = tokio::spawn(locker.lock("a").ttl(ttl).acquire());
    eventually("the next task waits in the local queue", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    store.0.keep_hand_over_answer.store(true, SeqCst);
    // The drop releases in the background, on another connection than that of the next task.
    drop(first);
    eventually("handing over", || store.0.grants("a").len() == 2).await;
    while !next.is_finished() {
        clock.advance(Duration::from_millis(50));
        pause().await;
    }
    let next = next.await.unwrap().unwrap();
    store.0.arrive.add_permits(1);
    for _ in 0..50 {
        pause().await;
        assert!(
            store.0.is_held("a") && next.is_valid(),
            "the next task's lock was taken away"
        );
    }
}

/// The next task would ask the store, which has granted it the lock already. Then the backend would
/// take back the grant, because nobody waits for it any more.
#[tokio::test]
async fn the_next_task_gets_a_lock_whose_hand_over_was_abandoned() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let ttl = Duration::from_secs(60);
    let first = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let next = tokio::spawn(locker.lock("a").ttl(ttl).acquire());
    eventually("the next task waits in the local queue", || {
        format!("{locker:?}").contains("held_or_wanted: 2")
    })
    .await;
    store.0.keep_hand_over_answer.store(true, SeqCst);
    let release = tokio::spawn(first.release());
    eventually("handing over", || store.0.grants("a").len() == 2).await;
    release.abort();
    assert!(release.await.unwrap_err().is_cancelled());
    for _ in 0..50 {
        pause().await;
        assert_eq!(store.0.acquire.calls.load(SeqCst), 1, "it asks nobody");
    }
    store.0.arrive.add_permits(1);
    let next = next.await.unwrap().unwrap();
    assert_eq!(store.0.grants("a")[1], next.token().get());
    assert!(next.release().await.is_clean());
}

#[tokio::test]
async fn an_abandoned_extension_does_not_shorten_the_lease_of_a_ticket() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let ttl = Duration::from_secs(20);
    // The renewal of another lock blocks the keeper thread.
    let slow = locker
        .lock("block")
        .ttl(Duration::from_millis(600))
        .acquire()
        .await
        .unwrap();
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    store.0.renew.outlives_caller.store(true, SeqCst);
    store.0.block.store(true, SeqCst);
    eventually("the renewal thread is blocked", || {
        store.0.blocking.load(SeqCst)
    })
    .await;
    // The test abandons eight extensions, because a single one could fail to reach the store by
    // chance.
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
    let resumed = Locker::new(Arc::new(store.clone()))
        .resume(&ticket)
        .await
        .unwrap();
    store.0.block.store(false, SeqCst);
    // The drop queues a job on the keeper thread. When that job is done, the keeper thread has run
    // all earlier jobs.
    drop(slow);
    eventually("the later job is done", || !store.0.is_held("block")).await;
    for _ in 0..100 {
        pause().await;
        assert!(
            store.0.is_held("a") && resumed.is_valid(),
            "the resumed lease was cut short"
        );
    }
}

#[tokio::test]
async fn a_ticket_has_at_most_the_ttl_of_an_unanswered_extension() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
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

/// The guard of a resumed ticket must not count on an extension beyond the TTL of the unanswered
/// renewal.
#[tokio::test]
async fn the_guard_of_a_resumed_ticket_ends_in_time_when_an_unanswered_renewal_arrives() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let open = || by_clock(Arc::new(store.clone()), &clock);
    let (first, second, third) = (open(), open(), open());
    let ttl = Duration::from_secs(10);
    let guard = first.lock("a").ttl(ttl).acquire().await.unwrap();
    store.0.renew.keep.store(1, SeqCst);
    assert!(guard.extend(ttl).await.is_err());
    let ticket = guard.into_ticket().await.unwrap();
    let ticket = ticket.to_string().parse().unwrap();
    let resumed = second.resume(&ticket).await.unwrap();
    resumed.extend(Duration::from_secs(60)).await.unwrap();
    let calls = store.0.renew.calls.load(SeqCst);
    store.0.arrive.add_permits(1);
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
async fn an_attempt_that_is_granted_during_a_close_is_released() {
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

/// The caller keeps an acquire that it no longer polls, so that acquire never ends.
#[tokio::test]
async fn a_close_ends_although_an_acquire_is_no_longer_polled() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
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
async fn a_loss_at_the_deadline_is_reported_while_the_locker_closes() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    *store.0.feeds.lock() = Some(Vec::new());
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let ttl = Duration::from_millis(500);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let close = tokio::spawn(async move { locker.close().await });
    let watch = guard.watch();
    let notified = tokio::spawn(async move { watch.ended().await });
    for _ in 0..100 {
        pause().await;
    }
    clock.advance(ttl);
    eventually("the loss is reported", || notified.is_finished()).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    while !close.is_finished() {
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
}

#[tokio::test]
async fn a_close_ends_within_a_minute_while_the_store_is_unreachable() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    store.0.refuse_reopen.store(true, SeqCst);
    let locker = Locker::builder(Arc::new(store.clone()))
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

/// Checks an extension, a ticket and a close of a lock with a TTL of one hour.
#[tokio::test]
async fn every_call_ends_in_bounded_time_while_the_keeper_has_no_connection() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    store.0.refuse_reopen.store(true, SeqCst);
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let ttl = Duration::from_secs(3600);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let work = tokio::spawn(async move {
        let refused = guard.extend(ttl).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(guard.is_valid());
        // The caller abandons this extension. The following calls must not wait for the abandoned
        // one.
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
        assert!(clock.now() < latest, "a call still waits");
        clock.advance(Duration::from_millis(500));
        pause().await;
    }
    work.await.unwrap();
}

#[tokio::test]
async fn a_dropped_locker_ends_long_before_a_lease_whose_release_is_refused() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    let day = Duration::from_secs(24 * 3600);
    let guard = locker.lock("a").ttl(day).acquire().await.unwrap();
    store.0.release.refuse.store(u32::MAX, SeqCst);
    let (_, released) = time_of(&clock, guard.release()).await;
    assert!(!released.is_clean());
    drop(locker);
    let latest = clock.now() + Duration::from_secs(600);
    // The count is 1 when only the test's own handle is left.
    while Arc::strong_count(&store.0) > 1 {
        assert!(
            clock.now() < latest,
            "its thread and connections are still there"
        );
        clock.advance(Duration::from_secs(1));
        pause().await;
    }
}

/// The store granted the long extension, but its answer was lost. Nobody renews that long lease, so
/// it must be released.
#[tokio::test]
async fn a_long_extension_without_an_answer_is_released_after_a_release_or_a_loss() {
    for released in [true, false] {
        let clock = ManualClock::new();
        let store = Script::open(Arc::new(clock.clone()));
        let locker = by_clock(Arc::new(store.clone()), &clock);
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
            assert!(
                clock.now() < latest,
                "the lock without a guard is not released"
            );
            clock.advance(Duration::from_millis(100));
            pause().await;
        }
    }
}

#[tokio::test]
async fn an_abandoned_attempt_without_an_answer_is_followed_by_a_release() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.acquire.hang.store(1, SeqCst);
    let acquiring = tokio::spawn(locker.lock("a").acquire());
    eventually("the attempt is on its way", || {
        store.0.acquire.calls.load(SeqCst) == 1
    })
    .await;
    acquiring.abort();
    eventually("a release follows", || {
        clock.advance(Duration::from_millis(50));
        store.0.release.calls.load(SeqCst) > 0
    })
    .await;
}

/// The caller abandons the attempt before the attempt reaches the store.
#[tokio::test]
async fn an_abandoned_attempt_is_released_exactly_if_it_may_have_been_granted() {
    for lost in [true, false] {
        let clock = ManualClock::new();
        let store = Script::open(Arc::new(clock.clone()));
        let locker = by_clock(Arc::new(store.clone()), &clock);
        let acquire = &store.0.acquire;
        acquire.delay_ms.store(500, SeqCst);
        let fault = if lost {
            &acquire.lose_reply
        } else {
            &acquire.refuse_late
        };
        fault.store(1, SeqCst);
        let lock = locker.lock("a").ttl(Duration::from_secs(3600));
        let acquiring = tokio::spawn(lock.acquire());
        eventually("the attempt is on its way", || clock.sleepers() > 1).await;
        acquiring.abort();
        eventually("the attempt has its answer", || {
            clock.advance(Duration::from_millis(50));
            fault.load(SeqCst) == 0
        })
        .await;
        let (_, ()) = time_of(&clock, async move { locker.close().await }).await;
        assert!(!store.0.is_held("a"));
        assert_eq!(store.0.release.calls.load(SeqCst) > 0, lost);
    }
}

#[tokio::test]
async fn a_late_grant_that_was_given_back_is_not_released_again() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.acquire.delay_ms.store(1900, SeqCst);
    let lock = locker.lock("a").ttl(Duration::from_secs(2));
    let (_, refused) = time_of(&clock, lock.wait(Duration::from_secs(1)).acquire()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    let (_, ()) = time_of(&clock, async move { locker.close().await }).await;
    let calls = [&store.0.acquire.calls, &store.0.release.calls];
    assert_eq!(calls.map(|calls| calls.load(SeqCst)), [2, 2]);
}

#[tokio::test]
async fn a_refused_release_is_repeated_for_a_while_after_the_locker_was_dropped() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    let day = Duration::from_secs(24 * 3600);
    let guard = locker.lock("a").ttl(day).acquire().await.unwrap();
    store.0.release.refuse.store(u32::MAX, SeqCst);
    let (_, released) = time_of(&clock, guard.release()).await;
    assert!(!released.is_clean());
    drop(locker);
    let dropped = clock.now();
    while clock.now().since(dropped) < Duration::from_secs(20) {
        clock.advance(Duration::from_millis(500));
        pause().await;
    }
    store.0.release.refuse.store(0, SeqCst);
    eventually("the lock is released", || {
        clock.advance(Duration::from_millis(500));
        !store.0.is_held("a")
    })
    .await;
}

#[tokio::test]
async fn a_dropped_guard_is_released_when_the_keeper_gets_a_connection() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    store.0.refuse_reopen.store(true, SeqCst);
    let locker = by_clock(Arc::new(store.clone()), &clock);
    let day = Duration::from_secs(24 * 3600);
    drop(locker.lock("a").ttl(day).acquire().await.unwrap());
    for _ in 0..20 {
        clock.advance(Duration::from_millis(500));
        pause().await;
    }
    assert!(store.0.is_held("a"));
    store.0.refuse_reopen.store(false, SeqCst);
    eventually("the lock is released", || {
        clock.advance(Duration::from_millis(500));
        !store.0.is_held("a")
    })
    .await;
}

#[tokio::test]
async fn a_closed_locker_refuses_every_acquire_and_asks_nothing() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    locker.close().await;
    let refusals = [
        locker.lock("a").acquire().await.map(drop),
        locker.lock("a").try_acquire().await.map(drop),
    ];
    for refused in refusals {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(store.0.acquire.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn a_lock_that_expired_is_not_released() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    let ttl = Duration::from_secs(10);
    let lock = locker.lock("a").ttl(ttl).renew(Renew::Manual);
    let guard = lock.acquire().await.unwrap();
    clock.advance(ttl);
    assert_eq!(guard.lost().await, LossReason::Expired);
    drop(guard);
    let (_, ()) = time_of(&clock, async move { locker.close().await }).await;
    assert_eq!(store.0.release.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn the_shortest_ttl_of_the_store_is_allowed() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let least = store.capabilities().min_ttl;
    let lock = |ttl| locker.lock("a").ttl(ttl).try_acquire();
    assert!(lock(least).await.unwrap().acquired().is_some());
    let refused = lock(least - Duration::from_nanos(1)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_refused_undo_of_an_abandoned_attempt_is_repeated() {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = by_clock(Arc::new(store.clone()), &clock);
    store.0.acquire.delay_ms.store(500, SeqCst);
    store.0.release.refuse.store(1, SeqCst);
    let lock = locker.lock("a").ttl(Duration::from_secs(3600));
    let acquiring = tokio::spawn(lock.acquire());
    eventually("the attempt is on its way", || clock.sleepers() > 1).await;
    acquiring.abort();
    eventually("the lock was granted and released", || {
        clock.advance(Duration::from_millis(50));
        store.0.grants("a").len() == 1 && !store.0.is_held("a")
    })
    .await;
}

/// A store that keeps a queue may have made the contender's place the lock.
#[tokio::test]
async fn an_abandoned_contender_that_cannot_leave_is_followed_by_a_release() {
    let store = Script::open_queueing(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let _theirs = others.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(mine.lock("a").acquire());
    eventually("it waits in the queue", || {
        store.0.acquire.calls.load(SeqCst) == 2
    })
    .await;
    store.0.leave.refuse.store(1, SeqCst);
    waiting.abort();
    eventually("a release follows", || {
        store.0.release.calls.load(SeqCst) > 0
    })
    .await;
}
