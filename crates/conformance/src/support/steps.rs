//! The steps that most cases share: taking, refusing, releasing and inspecting a lock, and the
//! tasks of a case.

use std::{future::Future, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Guard, HolderInfo, HolderLabel, LockInfo, LockName, Locker, OwnerId,
    Released, Ttl,
};

use crate::time::{now, sleep};
use crate::{
    Failure, Outcome,
    failure::{ensure, fail},
    history::{History, Hold},
};

/// Starts a task of the case. [`join`] waits for its result.
pub(crate) fn start<T: Send + 'static>(
    future: impl Future<Output = Outcome<T>> + Send + 'static,
) -> tokio::task::JoinHandle<Outcome<T>> {
    tokio::spawn(future)
}

/// Waits for the results of tasks. Returns the first failure, and does not wait for the other tasks
/// then.
pub(crate) async fn join<T>(
    tasks: impl IntoIterator<Item = tokio::task::JoinHandle<Outcome<T>>>,
) -> Outcome<Vec<T>> {
    let results = futures_util::future::try_join_all(tasks.into_iter().map(|task| async {
        match task.await {
            Ok(outcome) => outcome,
            Err(error) => Err(Failure::new(format!("a task ended early: {error}"))),
        }
    }));
    results.await
}

/// A request for a backend, like the engine's own requests.
pub(crate) fn request(name: &str, owner: OwnerId, ttl: Duration) -> Outcome<AcquireRequest> {
    Ok(AcquireRequest::new(
        LockName::new(name)?,
        owner,
        Ttl::new(ttl)?,
        HolderLabel::new("conformance")?,
    ))
}

/// Takes a lock with one attempt, which must be granted.
pub(crate) async fn acquire_free(locker: &Locker, name: &str, ttl: Duration) -> Outcome<Guard> {
    match locker.lock(name).ttl(ttl).try_acquire().await? {
        Attempt::Acquired(guard) => Ok(guard),
        Attempt::Busy(holder) => fail!("{name:?} should be free and is held by {holder:?}"),
    }
}

/// Makes one attempt that must find the lock held.
pub(crate) async fn expect_busy(locker: &Locker, name: &str) -> Outcome<Option<HolderInfo>> {
    let ttl = locker.capabilities().default_ttl;
    match locker.lock(name).ttl(ttl).try_acquire().await? {
        Attempt::Busy(holder) => Ok(holder),
        Attempt::Acquired(guard) => fail!(
            "{name:?} should be held and was granted with token {}",
            guard.token()
        ),
    }
}

/// Takes a lock that must become free within `time`. The lease lasts for at least 30 s.
pub(crate) async fn acquire_within(locker: &Locker, name: &str, time: Duration) -> Outcome<Guard> {
    let ttl = (locker.capabilities().min_ttl * 2).max(Duration::from_secs(30));
    Ok(locker.lock(name).ttl(ttl).wait(time).acquire().await?)
}

/// Releases a guard. It is a failure when the guard had lost its lock before.
pub(crate) async fn release_clean(guard: Guard) -> Outcome {
    let name = guard.name().clone();
    match guard.release().await {
        Released::Clean => Ok(()),
        other => fail!("release of {name:?} was not clean: {other:?}"),
    }
}

/// Reads the state of a lock from the store.
pub(crate) async fn inspect_lock(locker: &Locker, name: &str) -> Outcome<LockInfo> {
    Ok(locker.inspect(name).await?)
}

/// Takes a lock, holds it for a time, records the hold under the name `who`, and releases the lock.
pub(crate) async fn acquire_hold_release(
    locker: &Locker,
    name: &str,
    ttl: Duration,
    hold: Duration,
    who: &str,
    history: &History,
) -> Outcome {
    let guard = locker
        .lock(name)
        .ttl(ttl)
        .wait(Duration::from_secs(60))
        .acquire()
        .await?;
    let from = now();
    if hold.is_zero() {
        tokio::task::yield_now().await;
    } else {
        sleep(hold).await;
    }
    ensure!(guard.is_valid(), "{who} lost {name:?} while holding it");
    history.record(Hold {
        lock: name.into(),
        who: who.into(),
        token: guard.token().get(),
        from: from.since_boot(),
        until: now().since_boot(),
    });
    release_clean(guard).await
}
