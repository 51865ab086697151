//! Renewal and loss in simulated time: only the test moves the clock.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Clock, Ended, ErrorKind, Locker, LossReason, ManualClock, Released, Renew};
use support::{Script, ScriptedLock, eventually, pause};

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
    /// Moves time in small steps and lets the renewal thread run after each.
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
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
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
async fn a_hung_renewal_does_not_delay_the_loss() {
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
        "the store has not let go yet: the guard was first"
    );
    assert!(matches!(
        guard.release().await,
        Released::AlreadyLost(LossReason::Unreachable)
    ));
}

#[tokio::test]
async fn failing_renewals_are_repeated_and_one_success_is_enough() {
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
async fn a_lost_renewal_reply_does_not_raise_the_deadline() {
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
    // The boot-time clock jumps; no timer has fired yet.
    simulation.clock.advance(Duration::from_secs(3600));
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn loss_is_sticky_for_any_number_of_waiters() {
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
async fn a_late_grant_is_given_back_and_tried_once_more() {
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
async fn a_store_that_always_grants_too_late_is_an_error() {
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
    assert!(!simulation.store.0.is_held("a"), "nothing is left behind");
}

#[tokio::test]
async fn manual_renewal_expires_at_the_deadline() {
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
async fn the_clock_is_the_lockers() {
    let simulation = simulation().await;
    assert_eq!(simulation.locker.clock().now(), simulation.clock.now());
}

#[tokio::test]
async fn a_shorter_extension_lowers_the_deadline_even_unanswered() {
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
    // A longer extension is not believed beyond the shorter one, which may still arrive.
    guard.extend(TTL).await.unwrap();
    assert!(guard.remaining() <= Duration::from_millis(900));
}

#[tokio::test]
async fn an_unanswered_shorter_extension_is_followed_up_in_time() {
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
async fn a_renewal_that_waits_behind_an_extension_keeps_its_ttl() {
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
        // The next renewal falls due while the extension is on its way.
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
