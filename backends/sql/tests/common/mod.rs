//! Locks taken below the locker, the same on every server.

use std::time::Duration;

use distlock_core::{
    AcquireRequest, Attempt, DistLock, Grant, HandOver, HolderLabel, Lease, LockName, OwnerId, Ttl,
};

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

/// A lock that goes through many hands, each time in one statement. The reaper's first turn, which is at most so many with the
/// connection that it may open, can come in between.
pub(crate) async fn passes_on_in_one_statement(
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
