//! Helpers that the tests of this backend share.

pub(crate) mod slot_migration;

use std::{future::Future, sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, DistLock, Grant, HolderLabel, LockName, Locker, OwnerId, Result,
    Store, SystemClock, Ttl,
};
use distlock_kv::KvLock;
use distlock_redis::{Redis, RedisConfig};

/// A time limit for everything that does not wait for a lease.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) async fn redis(url: &str) -> Result<Redis> {
    Redis::open(RedisConfig::from_url(url)?, Arc::new(SystemClock)).await
}

pub(crate) async fn open(url: String) -> Result<Store> {
    let redis = redis(&url).await?;
    Ok(Store::new(redis.lock(), redis.records()))
}

pub(crate) async fn over_records(url: String) -> Result<Store> {
    let records = open(url).await?.records();
    Ok(Store::new(
        Arc::new(KvLock::new(Arc::clone(&records))?),
        records,
    ))
}

/// Returns the number of commands that the store has sent.
pub(crate) fn commands_of(store: &Redis) -> u64 {
    store.lock().requests_sent().expect("Redis counts")
}

/// Returns a locker whose keeper thread is connected.
pub(crate) async fn locker(url: &str) -> Locker {
    let redis = redis(url).await.expect("opens");
    let locker = Locker::new(redis.lock());
    locker.ready().await.expect("connects");
    locker
}

pub(crate) fn request(name: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest::new(
        LockName::new(name).expect("a name"),
        OwnerId::new(),
        Ttl::new(ttl).expect("a ttl"),
        HolderLabel::new("test").expect("a label"),
    )
}

pub(crate) async fn take(lock: &dyn DistLock, request: &AcquireRequest) -> Grant {
    match lock.try_acquire(request).await.expect("answers") {
        Attempt::Acquired(grant) => grant,
        Attempt::Busy(holder) => panic!("held by {holder:?}"),
    }
}

/// Waits for `future`, and fails with `what` if it takes too long.
pub(crate) async fn within<T>(time: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {time:?}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Runs the conformance suite, or the part of it that the environment variable `CASE` names.
pub(crate) async fn conforms(subject: distlock_conformance::Subject) {
    let filter = std::env::var("CASE").ok();
    let results = distlock_conformance::run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    let names: Vec<_> = failed.iter().map(|result| result.name).collect();
    assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}
