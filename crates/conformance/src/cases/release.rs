//! Property: a release frees the lock once, only for its owner, and reports its result.

use std::time::Duration;

use distlock_core::{Ended, ErrorKind, Lease, LockName, OwnerId, ReleaseOutcome, Released};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SLACK, SOON, acquire_free, acquire_within, eventually, expect_busy, inspect_lock,
        join, now, release_clean, request, sleep, soon, start, within,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        release::clean_release_frees_the_lock,
        "a released lock is free at once, and the answer is Clean"
    ),
    case!(
        release::lock_can_be_taken_many_times,
        "a lock can be taken and released many times"
    ),
    case!(
        release::repeated_release_is_harmless,
        "the store answers a repeated release with NotHeld and changes nothing"
    ),
    case!(
        release::release_needs_no_token,
        "an owner that never received its grant can release the lock"
    ),
    case!(
        release::dropped_guard_frees_the_lock,
        "dropping a guard frees the lock in the background"
    ),
    case!(
        release::panic_frees_the_lock,
        "a task that panics while it holds frees the lock"
    ),
    case!(
        release::close_waits_for_background_releases,
        "close waits for background releases"
    ),
    case!(
        release::aborted_task_is_released_by_the_close,
        "after the abort of a task and a close, the lock of that task is free"
    ),
    case!(
        release::closed_locker_refuses,
        "a closed locker refuses with Closed, and ends its waiters"
    ),
    case!(release::close_is_idempotent, "a locker can be closed twice"),
    case!(
        release::release_after_force_is_already_lost,
        "the release of a force-released lock says AlreadyLost"
    ),
    case!(
        release::watchers_see_the_release,
        "every watcher of a guard sees its release as a release"
    ),
    case!(
        release::min_hold_outlasts_the_release,
        "a lock with a minimum hold is free to others only after that time"
    ),
    case!(
        release::close_does_not_disturb_other_clients,
        "closing one client does not disturb another's locks"
    ),
];

async fn clean_release_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    release_clean(acquire_free(&holder, &name, cx.long_ttl()).await?).await?;
    ensure!(
        inspect_lock(&other, &name).await?.held.is_none(),
        "shown as free"
    );
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn lock_can_be_taken_many_times(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    for _ in 0..50 {
        release_clean(acquire_free(&locker, &name, cx.long_ttl()).await?).await?;
    }
    Ok(())
}

async fn repeated_release_is_harmless(cx: Context) -> Outcome {
    let (backend, name) = (cx.backend().await?, cx.name("a"));
    let (first, second) = (OwnerId::new(), OwnerId::new());
    let Some(grant) = backend
        .try_acquire(&request(&name, first, cx.long_ttl())?)
        .await?
        .acquired()
    else {
        fail!("the lock should be free");
    };
    let first = grant.owner.unwrap_or(first);
    let lease = Lease::new(LockName::new(&name)?, first, Some(grant.token));
    ensure!(
        matches!(
            backend.release(&lease).await?,
            ReleaseOutcome::Released { .. }
        ),
        "the first release frees"
    );
    ensure_eq!(
        backend.release(&lease).await?,
        ReleaseOutcome::NotHeld,
        "the second release"
    );
    let Some(next) = backend
        .try_acquire(&request(&name, second, cx.long_ttl())?)
        .await?
        .acquired()
    else {
        fail!("the lock should be free");
    };
    ensure_eq!(
        backend.release(&lease).await?,
        ReleaseOutcome::NotHeld,
        "a release by a former owner"
    );
    let held = backend.inspect(&lease.name).await?.held;
    ensure_eq!(
        held.and_then(|held| held.token),
        Some(next.token),
        "the token that stands in the store"
    );
    let second = next.owner.unwrap_or(second);
    let lease = Lease::new(LockName::new(&name)?, second, Some(next.token));
    ensure!(
        matches!(
            backend.release(&lease).await?,
            ReleaseOutcome::Released { .. }
        ),
        "the owner's release frees"
    );
    Ok(())
}

async fn release_needs_no_token(cx: Context) -> Outcome {
    let (backend, name, owner) = (cx.backend().await?, cx.name("a"), OwnerId::new());
    let asked = request(&name, owner, cx.long_ttl())?;
    let Some(grant) = backend.try_acquire(&asked).await?.acquired() else {
        fail!("the lock should be free");
    };
    let lease = Lease::new(LockName::new(&name)?, grant.owner_after(&asked), None);
    ensure!(
        matches!(
            backend.release(&lease).await?,
            ReleaseOutcome::Released { .. }
        ),
        "released by owner alone"
    );
    ensure!(backend.inspect(&lease.name).await?.held.is_none(), "free");
    Ok(())
}

async fn dropped_guard_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    drop(acquire_free(&holder, &name, cx.long_ttl()).await?);
    release_clean(acquire_within(&other, &name, SOON).await?).await?;
    // The drop must also work on a thread without a runtime.
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let thread = std::thread::spawn(move || drop(guard));
    release_clean(acquire_within(&other, &name, SOON).await?).await?;
    ensure!(
        thread.join().is_ok(),
        "dropping outside of a runtime is fine"
    );
    Ok(())
}

async fn panic_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let task = tokio::spawn(async move {
        let _guard = guard;
        // This call unwinds the stack like a panic, but prints no message.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    ensure!(task.await.is_err(), "the task panics");
    release_clean(acquire_within(&other, &name, SOON).await?).await
}

async fn close_waits_for_background_releases(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let mut guards = Vec::new();
    for number in 0..12 {
        guards.push(acquire_free(&holder, &cx.name(&number.to_string()), cx.long_ttl()).await?);
    }
    drop(guards);
    soon("close", holder.close()).await?;
    let left = other.list(cx.prefix()).await?;
    ensure!(left.is_empty(), "still held after close: {left:?}");
    Ok(())
}

async fn aborted_task_is_released_by_the_close(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let task = start({
        let (holder, name, ttl) = (holder.clone(), name.clone(), cx.long_ttl());
        async move { Ok(acquire_free(&holder, &name, ttl).await?.lost().await) }
    });
    eventually("the task holds", SOON, || async {
        Ok(inspect_lock(&other, &name).await?.held.is_some())
    })
    .await?;
    task.abort();
    soon("close", holder.close()).await?;
    let held = inspect_lock(&other, &name).await?.held;
    ensure!(held.is_none(), "still held after close: {held:?}");
    Ok(())
}

async fn closed_locker_refuses(cx: Context) -> Outcome {
    let (holder, closing) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let waiting = start({
        let (closing, name, ttl) = (closing.clone(), name.clone(), cx.long_ttl());
        async move { Ok(closing.lock(&name).ttl(ttl).acquire().await) }
    });
    sleep(Duration::from_millis(200)).await;
    soon("close", closing.close()).await?;
    let Some(ended) = soon("the waiter ends", join([waiting])).await??.pop() else {
        fail!("no answer");
    };
    expect_error("a wait that was going on", ended, &[ErrorKind::Closed])?;
    let free = cx.name("free");
    expect_error(
        "acquire",
        closing.lock(&free).ttl(cx.long_ttl()).acquire().await,
        &[ErrorKind::Closed],
    )?;
    expect_error(
        "try_acquire",
        closing.lock(&free).ttl(cx.long_ttl()).try_acquire().await,
        &[ErrorKind::Closed],
    )?;
    expect_error(
        "lock_all",
        closing.lock_all([&free]).ttl(cx.long_ttl()).acquire().await,
        &[ErrorKind::Closed],
    )?;
    ensure!(
        inspect_lock(&holder, &free).await?.held.is_none(),
        "nothing was taken"
    );
    release_clean(guard).await
}

async fn close_is_idempotent(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    release_clean(acquire_free(&locker, &cx.name("a"), cx.long_ttl()).await?).await?;
    for _ in 0..3 {
        soon("close", locker.close()).await?;
    }
    Ok(())
}

async fn release_after_force_is_already_lost(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    other.force_release(&name, guard.token()).await?;
    let next = acquire_free(&other, &name, cx.long_ttl()).await?;
    match guard.release().await {
        Released::AlreadyLost(_) => {}
        other => fail!("the release of a lock that was forced away said {other:?}"),
    }
    ensure!(next.is_valid(), "the next holder still holds");
    expect_busy(&holder, &name).await?;
    release_clean(next).await
}

async fn watchers_see_the_release(cx: Context) -> Outcome {
    let (holder, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let watchers: Vec<_> = (0..8)
        .map(|_| {
            let watch = guard.watch();
            start(async move { Ok(watch.ended().await) })
        })
        .collect();
    let late = guard.watch();
    ensure!(
        within(Duration::from_millis(100), late.ended())
            .await
            .is_none(),
        "not ended while held"
    );
    release_clean(guard).await?;
    for ended in soon("watchers learn of the release", join(watchers)).await?? {
        ensure_eq!(ended, Ended::Released, "what a watcher saw");
    }
    ensure_eq!(
        late.ended().await,
        Ended::Released,
        "what a late look shows"
    );
    ensure!(
        !late.is_valid() && late.remaining().is_zero(),
        "a released lock is not valid"
    );
    Ok(())
}

async fn min_hold_outlasts_the_release(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (least, name) = (
        cx.capabilities().min_ttl.max(Duration::from_millis(900)),
        cx.name("a"),
    );
    let asked = now();
    let guard = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .min_hold(least)
        .acquire()
        .await?;
    let released = start(async move { Ok(guard.release().await) });
    let next = acquire_within(&other, &name, cx.freed_within(least)).await?;
    let after = now().since(asked);
    ensure!(
        after >= least,
        "granted after {after:?}, sooner than {least:?}"
    );
    ensure!(
        after < least + cx.capabilities().ttl_granularity + 2 * SLACK,
        "granted only after {after:?}"
    );
    match join([released]).await?.pop() {
        Some(Released::Clean) => {}
        other => fail!("a release before the least time said {other:?}"),
    }
    release_clean(next).await
}

async fn close_does_not_disturb_other_clients(cx: Context) -> Outcome {
    let (closing, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let guard = acquire_free(&other, &name, ttl).await?;
    release_clean(acquire_free(&closing, &cx.name("b"), cx.long_ttl()).await?).await?;
    soon("close", closing.close()).await?;
    sleep(2 * ttl).await;
    ensure!(guard.is_valid(), "still held, still renewed");
    release_clean(guard).await
}
