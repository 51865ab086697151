//! Renewals and losses on a manual clock, which only the test advances.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause};
use distlock_core::{Clock, Ended, ErrorKind, Locker, LossReason, ManualClock, Released, Renew};

const TTL: Duration = Duration::from_secs(10);

struct Simulation {
    clock: ManualClock,
    store: ScriptedLock,
    locker: Locker,
}

async fn simulation() -> Simulation {
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .seed(7)
        .build();
    locker.ready().await.unwrap();
    Simulation {
        clock,
        store,
        locker,
    }
}

impl Simulation {
    /// Advances the clock in steps of 100 ms, and lets the keeper thread run after each step.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            self.clock.advance(step.min(left));
            left = left.saturating_sub(step);
            for _ in 0..3 {
                pause().await;
            }
        }
    }
}

#[tokio::test]
async fn a_held_lease_is_renewed_at_a_third_of_its_ttl() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    simulation.pass(TTL * 5).await;
    assert!(guard.is_valid());
    let renewals = simulation.store.0.renew.calls.load(SeqCst);
    assert!(
        (14..=16).contains(&renewals),
        "{renewals} renewals in 5 TTLs at a third of the TTL"
    );
    assert!(matches!(guard.release().await, Released::Clean));
    assert!(!simulation.store.0.is_held("a"));
}

#[tokio::test]
async fn a_loss_is_reported_at_the_deadline_while_a_renewal_hangs() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    simulation.store.0.renew.hang.store(u32::MAX, SeqCst);
    let watch = guard.watch();
    simulation.pass(Duration::from_millis(8900)).await;
    assert!(
        guard.is_valid(),
        "the deadline is at 9 s: TTL less a margin of a tenth"
    );
    simulation.clock.advance(Duration::from_millis(100));
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await, LossReason::Unreachable);
    assert_eq!(watch.ended().await, Ended::Lost(LossReason::Unreachable));
    assert!(
        simulation.store.0.is_held("a"),
        "the lease at the store ends after the local deadline"
    );
    assert!(matches!(
        guard.release().await,
        Released::AlreadyLost(LossReason::Unreachable)
    ));
}

#[tokio::test]
async fn a_lease_is_kept_when_a_renewal_succeeds_after_failures() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    simulation.store.0.renew.refuse.store(4, SeqCst);
    simulation.pass(TTL * 2).await;
    assert!(guard.is_valid());
    assert!(simulation.store.0.renew.calls.load(SeqCst) >= 8);
}

#[tokio::test]
async fn a_renewal_without_an_answer_does_not_raise_the_deadline() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .renew(Renew::Manual)
        .acquire()
        .await
        .unwrap();
    simulation.pass(Duration::from_secs(3)).await;
    simulation.store.0.renew.lose_reply.store(1, SeqCst);
    let before = guard.remaining();
    assert_eq!(
        guard.extend(TTL).await.unwrap_err().kind(),
        ErrorKind::OutcomeUnknown
    );
    assert!(guard.remaining() <= before && guard.is_valid());
    guard.extend(TTL).await.unwrap();
    assert_eq!(guard.remaining(), Duration::from_secs(9));
}

#[tokio::test]
async fn a_guard_is_invalid_at_once_after_a_suspend() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    // After a suspend the boot-time clock has jumped, and no timer has fired yet.
    simulation.clock.advance(Duration::from_secs(3600));
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn all_waiters_get_the_first_reason_of_a_loss() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let watch = guard.watch();
            tokio::spawn(async move { watch.ended().await })
        })
        .collect();
    simulation.store.0.delete("a");
    simulation.pass(Duration::from_secs(4)).await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), Ended::Lost(LossReason::Removed));
    }
    assert_eq!(guard.lost().await, LossReason::Removed);
    assert_eq!(guard.lost().await, LossReason::Removed);
    assert_eq!(guard.extend(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_grant_after_its_deadline_is_released_and_the_attempt_repeated() {
    let simulation = simulation().await;
    let ttl = Duration::from_secs(2);
    simulation.store.0.acquire.delay_ms.store(1900, SeqCst);
    let acquire = simulation.locker.lock("a").ttl(ttl).acquire();
    let clock = simulation.clock.clone();
    let store = Arc::clone(&simulation.store.0);
    let drive = async {
        eventually("the first attempt", || {
            store.acquire.calls.load(SeqCst) == 1
        })
        .await;
        store.acquire.delay_ms.store(0, SeqCst);
        loop {
            clock.advance(Duration::from_millis(100));
            pause().await;
        }
    };
    let guard = tokio::select! {
        guard = acquire => guard.unwrap(),
        () = drive => unreachable!(),
    };
    assert!(guard.is_valid());
    assert_eq!(
        simulation.store.0.grants("a").len(),
        2,
        "the late grant was released before the second try"
    );
}

#[tokio::test]
async fn an_acquire_fails_when_every_grant_comes_after_its_deadline() {
    let simulation = simulation().await;
    simulation.store.0.acquire.delay_ms.store(1900, SeqCst);
    let acquire = simulation
        .locker
        .lock("a")
        .ttl(Duration::from_secs(2))
        .acquire();
    let clock = simulation.clock.clone();
    let drive = async {
        loop {
            clock.advance(Duration::from_millis(100));
            pause().await;
        }
    };
    let error = tokio::select! {
        guard = acquire => guard.unwrap_err(),
        () = drive => unreachable!(),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!simulation.store.0.is_held("a"), "no lock stays held");
}

#[tokio::test]
async fn a_lease_with_manual_renewal_is_lost_at_its_deadline() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .renew(Renew::Manual)
        .acquire()
        .await
        .unwrap();
    simulation.pass(Duration::from_secs(9)).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(simulation.store.0.renew.calls.load(SeqCst), 0);
}

#[tokio::test]
async fn clock_returns_the_clock_of_the_locker() {
    let simulation = simulation().await;
    assert_eq!(simulation.locker.clock().now(), simulation.clock.now());
}

#[tokio::test]
async fn a_shorter_extension_without_an_answer_lowers_the_deadline() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .renew(Renew::Manual)
        .acquire()
        .await
        .unwrap();
    simulation.store.0.renew.lose_reply.store(1, SeqCst);
    assert!(guard.extend(Duration::from_secs(1)).await.is_err());
    assert!(guard.remaining() <= Duration::from_millis(900));
    // The shorter extension, of 1 s, may still reach the store after the longer one. So the
    // deadline after the longer extension counts with 1 s only.
    guard.extend(TTL).await.unwrap();
    assert!(guard.remaining() <= Duration::from_millis(900));
}

#[tokio::test]
async fn a_lease_is_renewed_in_time_after_a_shorter_extension_without_an_answer() {
    let simulation = simulation().await;
    let guard = simulation
        .locker
        .lock("a")
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    simulation.store.0.renew.lose_reply.store(1, SeqCst);
    assert!(guard.extend(Duration::from_secs(1)).await.is_err());
    simulation.pass(TTL).await;
    assert!(guard.is_valid(), "the store answers again, so it is kept");
}

#[tokio::test]
async fn a_renewal_that_waits_for_an_extension_is_skipped() {
    for ttl in [TTL * 360, TTL * 9 / 10] {
        let simulation = simulation().await;
        let guard = simulation
            .locker
            .lock("a")
            .ttl(TTL)
            .acquire()
            .await
            .unwrap();
        simulation.pass(TTL * 3 / 10).await;
        // The next background renewal becomes due while the extension is in flight.
        simulation.store.0.renew.delay_ms.store(1000, SeqCst);
        let extended = tokio::spawn(async move { (guard.extend(ttl).await, guard) });
        eventually("the extension is on its way", || {
            simulation.store.0.renew.calls.load(SeqCst) == 1
        })
        .await;
        simulation.pass(Duration::from_millis(1100)).await;
        eventually("extended", || extended.is_finished()).await;
        let (answer, guard) = extended.await.unwrap();
        answer.unwrap();
        simulation.store.0.renew.delay_ms.store(0, SeqCst);
        simulation.pass(Duration::from_millis(1100)).await;
        assert_eq!(guard.ttl().duration(), ttl);
        assert_eq!(
            simulation.store.0.renew.calls.load(SeqCst),
            1,
            "an extension is a renewal: the next is due a third of its TTL later"
        );
        assert!(guard.remaining() > ttl * 9 / 10 - Duration::from_millis(2500));
    }
}
