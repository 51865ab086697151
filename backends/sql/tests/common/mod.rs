//! Tests of the trait `DistLock` without a `Locker`, the same for every dialect.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, DistLock, Grant, HandOver, HolderLabel, Lease, LockName, OwnerId,
    ReleaseOutcome, Ttl,
};
use distlock_harness::eventually_async;

pub(crate) fn request(name: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(
        LockName::new(name).unwrap(),
        OwnerId::new(),
        Ttl::new(ttl).unwrap(),
        HolderLabel::new("tester").unwrap(),
    )
}

pub(crate) async fn take(lock: &dyn DistLock, request: &AcquireRequest) -> Grant {
    match lock.try_acquire(request).await.unwrap() {
        Attempt::Acquired(grant) => grant,
        Attempt::Busy(holder) => panic!("{} is held by {holder:?}", request.name),
    }
}

pub(crate) fn lease(request: &AcquireRequest, grant: &Grant) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(grant.token))
}

/// The hint of another process becomes the hint of several processes when a contender of this
/// process waits. The other process may hold the lock itself, and a holder ignores its own hint.
/// `mark_as` sets a hint on the row for an hour, and `marked_as` reads the hint.
pub(crate) async fn a_hint_of_another_process_becomes_that_of_several(
    lock: &dyn DistLock,
    mark_as: impl AsyncFn(i64),
    marked_as: impl AsyncFn() -> i64,
) {
    let (ttl, soon) = (Duration::from_secs(120), Duration::from_secs(60));
    let holder = request("wanted", ttl);
    let grant = take(lock, &holder).await;
    mark_as(-7).await;
    let mut contender = lock.contend(&request("wanted", ttl)).await.unwrap();
    let attempt = contender.attempt().await.unwrap();
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    let several = async || (marked_as().await == 0).then_some(());
    tokio::select! {
        done = eventually_async("it is known that several wait", soon, several) => done.unwrap(),
        () = contender.wait(ttl) => panic!("woken without a reason"),
    }
    contender.leave().await.unwrap();
    let released = lock.release(&lease(&holder, &grant)).await.unwrap();
    let told = ReleaseOutcome::Released {
        others_waiting: Some(true),
    };
    assert_eq!(released, told);
}

/// Each hand-over of a lock takes one statement. `reaper` is the largest number of statements of
/// the reaper's first run, which may happen during the test; the number includes the opening of a
/// connection.
pub(crate) async fn a_hand_over_takes_one_statement(
    lock: &dyn DistLock,
    reaper: u64,
    statements: impl Fn() -> u64,
) {
    const TIMES: u64 = 50;
    let ttl = Duration::from_secs(120);
    let mut holder = request("passed on", ttl);
    let mut grant = take(lock, &holder).await;
    let before = statements();
    for _ in 0..TIMES {
        let next = request("passed on", ttl);
        let handed = lock.hand_over(&lease(&holder, &grant), &next).await;
        let HandOver::Done(granted) = handed.unwrap() else {
            panic!("not handed over")
        };
        assert!(granted.token > grant.token);
        (holder, grant) = (next, granted);
    }
    let spent = statements() - before;
    assert!((TIMES..=TIMES + reaper).contains(&spent), "{spent}");
}
