//! Property: a future may be dropped at any point. The dropped future leaves at most a lease, which
//! expires.

use std::time::Duration;

use distlock_core::Renew;

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, acquire_within, eventually, inspect_lock, join, poll_at_most,
        release_clean, sleep, soon, start, within,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        cancellation::acquire_dropped_after_any_poll,
        "an acquire that is dropped after its n-th poll leaves nothing beyond one lease"
    ),
    case!(
        cancellation::acquire_dropped_at_any_time,
        "an acquire that is dropped at any time leaves nothing beyond one lease"
    ),
    case!(
        cancellation::try_acquire_dropped_after_any_poll,
        "a try_acquire that is dropped after its n-th poll leaves nothing beyond one lease"
    ),
    case!(
        cancellation::dropped_local_waiter_stops_no_other,
        "a waiter that is dropped in its own client's queue does not stop those behind it"
    ),
    case!(
        cancellation::dropped_waiter_leaves_no_queue_entry,
        "a waiter that is dropped leaves no queue entry in the store"
    ),
    case!(
        cancellation::waiter_dropped_when_served_frees_the_lock,
        "a waiter that is dropped at the moment of the release does not keep the lock taken"
    ),
    case!(
        cancellation::aborted_tasks_leave_nothing,
        "tasks that are aborted while waiting or holding leave nothing"
    ),
    case!(
        cancellation::aborted_holder_frees_the_lock,
        "a task that is aborted while it holds frees the lock"
    ),
    case!(
        cancellation::release_dropped_after_any_poll,
        "a release that is dropped after its n-th poll still frees the lock"
    ),
    case!(
        cancellation::extend_dropped_after_any_poll,
        "a dropped extension leaves a guard that is valid no longer than its lease"
    ),
    case!(
        cancellation::lock_all_dropped_after_any_poll,
        "a lock_all that is dropped after its n-th poll keeps none of its locks"
    ),
    case!(
        cancellation::dropped_run_frees_the_lock,
        "a run that is dropped drops its work and frees the lock"
    ),
];

/// A case drops one future before its first poll, the next future after one poll, and so on, for
/// this many futures. An acquire is polled fewer times on every backend, so the case reaches each
/// await.
const POLLS: usize = 24;

/// Checks that another client gets every lock within one lease and some slack, counted from this
/// call. The caller has dropped its operations before.
async fn ensure_all_become_free(cx: &Context, names: Vec<String>, ttl: Duration) -> Outcome {
    let other = cx.locker().await?;
    let limit = cx.freed_within(ttl);
    let checks = names.into_iter().map(|name| {
        let other = other.clone();
        start(async move { release_clean(acquire_within(&other, &name, limit).await?).await })
    });
    join(checks.collect::<Vec<_>>()).await.map(drop)
}

async fn acquire_dropped_after_any_poll(cx: Context) -> Outcome {
    let (locker, ttl) = (cx.locker().await?, cx.short_ttl());
    let mut names = Vec::new();
    for polls in 0..POLLS {
        let name = cx.name(&polls.to_string());
        drop(poll_at_most(polls, locker.lock(&name).ttl(ttl).acquire()).await);
        names.push(name);
    }
    ensure_all_become_free(&cx, names, ttl).await
}

async fn acquire_dropped_at_any_time(cx: Context) -> Outcome {
    let (locker, ttl) = (cx.locker().await?, cx.short_ttl());
    let mut names = Vec::new();
    // The first futures are dropped before the request is written, the last ones long after the
    // answer.
    for step in 0..40_u32 {
        let name = cx.name(&step.to_string());
        let time = Duration::from_micros(u64::from(step * step) * 8);
        drop(within(time, locker.lock(&name).ttl(ttl).acquire()).await);
        names.push(name);
    }
    ensure_all_become_free(&cx, names, ttl).await
}

async fn try_acquire_dropped_after_any_poll(cx: Context) -> Outcome {
    let (locker, ttl) = (cx.locker().await?, cx.short_ttl());
    let mut names = Vec::new();
    for polls in 0..POLLS {
        let name = cx.name(&polls.to_string());
        drop(poll_at_most(polls, locker.lock(&name).ttl(ttl).try_acquire()).await);
        names.push(name);
    }
    ensure_all_become_free(&cx, names, ttl).await
}

async fn dropped_local_waiter_stops_no_other(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let name = cx.name("a");
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let wait = |name: String| {
        let locker = locker.clone();
        start(async move {
            release_clean(acquire_within(&locker, &name, Duration::from_secs(25)).await?).await
        })
    };
    let first = wait(name.clone());
    let second = wait(name.clone());
    let third = wait(name.clone());
    sleep(Duration::from_millis(100)).await;
    // The first waiter has the local turn and asks the store. The second waiter is in the middle of
    // the local queue.
    first.abort();
    second.abort();
    sleep(Duration::from_millis(50)).await;
    release_clean(guard).await?;
    soon("the third waiter is served", join([third]))
        .await?
        .map(drop)
}

async fn dropped_waiter_leaves_no_queue_entry(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    for time in [0, 5, 50, 400] {
        let waiting = other.lock(&name).ttl(cx.long_ttl()).acquire();
        ensure!(
            within(Duration::from_millis(time), waiting).await.is_none(),
            "a held lock is not granted"
        );
    }
    eventually("no waiter is left in the store", SOON, || async {
        Ok(inspect_lock(&holder, &name).await?.waiters.unwrap_or(0) == 0)
    })
    .await?;
    release_clean(guard).await?;
    let third = cx.locker().await?;
    release_clean(acquire_within(&third, &name, SOON).await?).await
}

async fn waiter_dropped_when_served_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    for round in 0..16_u64 {
        let name = cx.name(&round.to_string());
        // In half of the rounds the waiter uses the holder's own client, in the other half another
        // client.
        let waiter = if round % 2 == 0 { &holder } else { &other };
        let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
        let doomed = start({
            let (waiter, name, ttl) = (waiter.clone(), name.clone(), cx.long_ttl());
            async move { Ok(waiter.lock(&name).ttl(ttl).acquire().await?) }
        });
        sleep(Duration::from_millis(20)).await;
        let release = start(release_clean(guard));
        sleep(Duration::from_micros(round * 150)).await;
        doomed.abort();
        join([release]).await?;
        // A task that ended before the abort has its guard in its result, which is dropped here.
        drop(doomed.await);
        // The lease lasts for at least 30 s, so the lock can be free within 8 s only after a
        // clean-up.
        let third = cx.locker().await?;
        release_clean(acquire_within(&third, &name, SOON).await?).await?;
    }
    Ok(())
}

async fn aborted_tasks_leave_nothing(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut doomed = Vec::new();
    for number in 0..40 {
        let (locker, name, ttl) = (
            if number % 2 == 0 { &one } else { &two }.clone(),
            name.clone(),
            cx.long_ttl(),
        );
        let hold = Duration::from_millis(random.u64(0..20));
        doomed.push(start(async move {
            loop {
                let guard = locker.lock(&name).ttl(ttl).acquire().await?;
                sleep(hold).await;
                let () = release_clean(guard).await?;
            }
            #[expect(unreachable_code, reason = "gives the task its type")]
            Ok(())
        }));
    }
    random.shuffle(&mut doomed);
    for task in doomed {
        sleep(Duration::from_millis(random.u64(0..25))).await;
        ensure!(
            !task.is_finished(),
            "seed {seed}: a task ended by itself: {:?}",
            task.await
        );
        task.abort();
    }
    let third = cx.locker().await?;
    match within(SOON, acquire_within(&third, &name, SOON)).await {
        Some(Ok(guard)) => release_clean(guard).await,
        other => fail!("seed {seed}: the lock is not free: {other:?}"),
    }
}

async fn aborted_holder_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let (sender, holds) = tokio::sync::oneshot::channel();
    let task = start({
        let (name, ttl) = (name.clone(), cx.long_ttl());
        async move {
            let guard = acquire_free(&holder, &name, ttl).await?;
            let _ = sender.send(());
            guard.lost().await;
            Ok(())
        }
    });
    if soon("the task holds", holds).await?.is_err() {
        return join([task]).await.map(drop);
    }
    task.abort();
    release_clean(acquire_within(&other, &name, SOON).await?).await
}

async fn release_dropped_after_any_poll(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let mut names = Vec::new();
    for polls in 0..POLLS {
        let name = cx.name(&polls.to_string());
        let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
        drop(poll_at_most(polls, guard.release()).await);
        names.push(name);
    }
    // The leases last for at least 30 s, so a lock that is free within 8 s was released in the
    // background.
    for name in names {
        release_clean(acquire_within(&other, &name, SOON).await?).await?;
    }
    Ok(())
}

async fn extend_dropped_after_any_poll(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let ttl = cx.short_ttl();
    for polls in [0, 1, 2, 3, 5, 8] {
        let name = cx.name(&polls.to_string());
        let guard = locker
            .lock(&name)
            .ttl(ttl)
            .renew(Renew::Manual)
            .acquire()
            .await?;
        drop(poll_at_most(polls, guard.extend(2 * ttl)).await);
        let waiter = start({
            let (other, name, old) = (other.clone(), name.clone(), guard.watch());
            let limit = cx.freed_within(2 * ttl);
            async move {
                let next = acquire_within(&other, &name, limit).await?;
                ensure!(
                    !old.is_valid(),
                    "two holders: the old guard is valid for {:?}",
                    old.remaining()
                );
                Ok(next)
            }
        });
        let reason = soon("the guard is lost", guard.lost()).await?;
        ensure!(!guard.is_valid(), "lost ({reason}), so not valid");
        let Some(next) = join([waiter]).await?.pop() else {
            fail!("no guard")
        };
        ensure!(next.token() > guard.token(), "tokens rise");
        release_clean(next).await?;
    }
    Ok(())
}

async fn lock_all_dropped_after_any_poll(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let mut names = Vec::new();
    for polls in 0..POLLS {
        let set: Vec<_> = ["x", "y", "z"]
            .iter()
            .map(|tail| cx.name(&format!("{polls} {tail}")))
            .collect();
        drop(poll_at_most(polls, locker.lock_all(&set).ttl(cx.long_ttl()).acquire()).await);
        names.extend(set);
    }
    for name in names {
        release_clean(acquire_within(&other, &name, SOON).await?).await?;
    }
    Ok(())
}

async fn dropped_run_frees_the_lock(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let (sender, mut started) = tokio::sync::mpsc::channel::<()>(1);
    let mut run = Box::pin(locker.lock(&name).ttl(cx.long_ttl()).run(async |_| {
        // The channel closes when this future is dropped.
        let _sender = sender;
        std::future::pending::<()>().await;
    }));
    ensure!(
        within(Duration::from_millis(300), &mut run).await.is_none(),
        "the work does not end"
    );
    ensure_eq!(
        inspect_lock(&other, &name).await?.held.is_some(),
        true,
        "the lock is held while the work runs"
    );
    drop(run);
    ensure_eq!(
        started.recv().await,
        None,
        "the work is dropped with the run"
    );
    release_clean(acquire_within(&other, &name, SOON).await?).await
}
