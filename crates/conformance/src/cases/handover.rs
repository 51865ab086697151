//! Property: the tasks of one client hand a lock over in order, and still let other clients get it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::{LeaseKind, Locker, Released};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    history::History,
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, acquire_hold_release, acquire_within, expect_busy,
        inspect_lock, join, now, release_clean, sleep, soon, start, within,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        handover::first_come_first_served,
        "waiting tasks of one client get the lock in the order in which they asked"
    ),
    case!(
        handover::each_task_gets_its_own_token,
        "every task that gets a lock by hand-over has its own token and label"
    ),
    case!(
        handover::hand_over_excludes_other_clients,
        "a lock that is handed over never has two holders, other clients included"
    ),
    case!(
        handover::busy_tasks_let_another_client_in,
        "a waiting client gets the lock although another client's tasks keep it busy"
    ),
    case!(
        handover::lone_task_lets_another_client_in,
        "a waiting client gets the lock although one task of another takes it again at once"
    ),
    case!(
        handover::limit_of_zero_serves_all_tasks,
        "with a limit of zero tasks still all get the lock"
    ),
    case!(
        handover::cancelled_waiter_is_skipped,
        "a cancelled waiter is skipped"
    ),
    case!(
        handover::lost_lock_is_not_handed_over,
        "a lock that was lost is not handed to the next task"
    ),
    case!(
        handover::next_task_gets_its_own_ttl,
        "the next task's lease is the one it asked for"
    ),
];

async fn first_come_first_served(cx: Context) -> Outcome {
    const TASKS: usize = 8;
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for turn in 0..TASKS {
        let (locker, name, served) = (locker.clone(), name.clone(), Arc::clone(&served));
        let mut waiting = Box::pin(async move {
            let guard = acquire_within(&locker, &name, Duration::from_secs(30)).await?;
            let order = served.fetch_add(1, Ordering::SeqCst);
            release_clean(guard).await?;
            Ok((turn, order))
        });
        // This first poll puts the task into the local queue, so the order of asking is certain.
        ensure!(
            within(Duration::from_millis(20), &mut waiting)
                .await
                .is_none(),
            "the lock is held"
        );
        tasks.push(start(waiting));
    }
    release_clean(guard).await?;
    for (turn, order) in soon("all tasks are served", join(tasks)).await?? {
        ensure_eq!(order, turn, "the place at which task {turn} was served");
    }
    Ok(())
}

async fn each_task_gets_its_own_token(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let first = guard.token();
    let tasks = (0..5).map(|number| {
        let (locker, other, name, ttl) =
            (locker.clone(), other.clone(), name.clone(), cx.long_ttl());
        start(async move {
            let label = format!("task {number}");
            let guard = locker
                .lock(&name)
                .ttl(ttl)
                .holder(&label)
                .meta(&label)
                .acquire()
                .await?;
            // A store whose leases end with sessions may grant the lock to the next task before the
            // node of the former holder is removed. Other clients see the former holder until then,
            // so the inspection is repeated.
            let mut held = inspect_lock(&other, &name).await?.held;
            if other.capabilities().lease == LeaseKind::Session {
                let ours = Some(guard.token());
                let end = now() + SOON;
                while held.as_ref().is_none_or(|held| held.token != ours) && now() < end {
                    held = inspect_lock(&other, &name).await?.held;
                }
            }
            let Some(held) = held else { fail!("not held") };
            ensure_eq!(held.holder, label, "the label that others see");
            ensure_eq!(
                held.meta.as_deref(),
                Some(label.as_str()),
                "the text that others see"
            );
            ensure_eq!(held.token, Some(guard.token()), "the token that others see");
            let fence = guard.fence();
            release_clean(guard).await?;
            Ok((fence.token, fence.owner))
        })
    });
    let tasks: Vec<_> = tasks.collect();
    sleep(Duration::from_millis(100)).await;
    release_clean(guard).await?;
    let mut fences = soon("all tasks are served", join(tasks)).await??;
    fences.sort_unstable();
    for pair in fences.windows(2) {
        ensure!(
            pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1,
            "two tasks with one token or owner: {pair:?}"
        );
    }
    ensure!(fences[0].0 > first, "tokens rise");
    Ok(())
}

/// Starts tasks that take, hold and release a lock again and again until they are stopped.
fn keep_busy(
    locker: &Locker,
    name: &str,
    ttl: Duration,
    tasks: usize,
    history: &History,
) -> BusyTasks {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tasks = (0..tasks)
        .map(|number| {
            let (locker, name, history, stop) = (
                locker.clone(),
                name.to_owned(),
                history.clone(),
                Arc::clone(&stop),
            );
            start(async move {
                let who = format!("busy task {number}");
                while !stop.load(Ordering::SeqCst) {
                    acquire_hold_release(
                        &locker,
                        &name,
                        ttl,
                        Duration::from_millis(1),
                        &who,
                        &history,
                    )
                    .await?;
                }
                Ok(())
            })
        })
        .collect();
    BusyTasks { stop, tasks }
}

/// The tasks that [`keep_busy`] has started.
struct BusyTasks {
    stop: Arc<std::sync::atomic::AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Outcome>>,
}

impl BusyTasks {
    /// Stops the tasks, and waits for their ends. It is a failure when one of the tasks has failed.
    async fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::SeqCst);
        soon("the busy tasks end", join(self.tasks))
            .await?
            .map(drop)
    }
}

async fn hand_over_excludes_other_clients(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, history) = (cx.name("a"), History::new());
    let busy = [
        keep_busy(&one, &name, cx.long_ttl(), 4, &history),
        keep_busy(&two, &name, cx.long_ttl(), 4, &history),
    ];
    sleep(Duration::from_millis(1500)).await;
    for busy in busy {
        busy.stop().await?;
    }
    ensure!(
        history.holds().len() > 8,
        "hardly anything happened: {} holds",
        history.holds().len()
    );
    history.check()?;
    Ok(())
}

async fn busy_tasks_let_another_client_in(cx: Context) -> Outcome {
    ensure_waiting_client_is_served(&cx, 4).await
}

async fn lone_task_lets_another_client_in(cx: Context) -> Outcome {
    ensure_waiting_client_is_served(&cx, 1).await
}

/// Checks that a client gets a lock, three times, while tasks of another client take the same lock
/// again and again.
async fn ensure_waiting_client_is_served(cx: &Context, busy_tasks: usize) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (name, history) = (cx.name("a"), History::new());
    let busy = keep_busy(&one, &name, cx.long_ttl(), busy_tasks, &history);
    sleep(Duration::from_millis(100)).await;
    for turn in 0..3 {
        let guard = match within(2 * SOON, acquire_within(&two, &name, 2 * SOON)).await {
            Some(Ok(guard)) => guard,
            other => fail!("turn {turn}: starved: {other:?}"),
        };
        release_clean(guard).await?;
    }
    busy.stop().await?;
    history.check()?;
    Ok(())
}

async fn limit_of_zero_serves_all_tasks(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let locker = Locker::builder(store.backend()).hand_over_limit(0).build();
    let (name, history) = (cx.name("a"), History::new());
    let tasks = (0..5).map(|number| {
        let (locker, name, history, ttl) =
            (locker.clone(), name.clone(), history.clone(), cx.long_ttl());
        start(async move {
            for _ in 0..3 {
                acquire_hold_release(
                    &locker,
                    &name,
                    ttl,
                    Duration::ZERO,
                    &format!("task {number}"),
                    &history,
                )
                .await?;
            }
            Ok(())
        })
    });
    match within(2 * SOON, join(tasks.collect::<Vec<_>>())).await {
        Some(done) => done?,
        None => fail!("not all tasks were served within {:?}", 2 * SOON),
    };
    ensure_eq!(history.holds().len(), 15, "number of holds");
    history.check()?;
    locker.close().await;
    Ok(())
}

async fn cancelled_waiter_is_skipped(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    for round in 0..10_u64 {
        let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
        let wait = || {
            let (locker, name) = (locker.clone(), name.clone());
            start(async move {
                release_clean(acquire_within(&locker, &name, Duration::from_secs(30)).await?).await
            })
        };
        let doomed = wait();
        sleep(Duration::from_millis(10)).await;
        let patient = wait();
        sleep(Duration::from_millis(10)).await;
        let release = start(release_clean(guard));
        sleep(Duration::from_micros(round * 100)).await;
        doomed.abort();
        drop(doomed.await);
        soon("the task behind it is served", join([patient, release])).await??;
    }
    Ok(())
}

async fn lost_lock_is_not_handed_over(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let lost = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let waiting = start({
        let (locker, name) = (locker.clone(), name.clone());
        async move { acquire_within(&locker, &name, Duration::from_secs(30)).await }
    });
    sleep(Duration::from_millis(100)).await;
    other.force_release(&name, lost.token()).await?;
    // The lock is free now. Either this client gets the lock, or the waiting task does.
    let outsider = other
        .lock(&name)
        .ttl(cx.long_ttl())
        .try_acquire()
        .await?
        .acquired();
    match lost.release().await {
        Released::AlreadyLost(_) => {}
        other => fail!("the release of a lock that was forced away said {other:?}"),
    }
    if let Some(outsider) = outsider {
        sleep(Duration::from_millis(300)).await;
        ensure!(
            outsider.is_valid() && !waiting.is_finished(),
            "the waiting task got a lock that another holds"
        );
        expect_busy(&locker, &name).await?;
        release_clean(outsider).await?;
    }
    match soon("the waiting task is served", join([waiting]))
        .await??
        .pop()
    {
        Some(guard) => release_clean(guard).await,
        None => fail!("no guard"),
    }
}

async fn next_task_gets_its_own_ttl(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&locker, &name, cx.kept_ttl()).await?;
    let waiting = start({
        let (locker, name) = (locker.clone(), name.clone());
        async move { acquire_within(&locker, &name, Duration::from_secs(30)).await }
    });
    sleep(Duration::from_millis(100)).await;
    release_clean(guard).await?;
    let Some(next) = soon("the waiting task is served", join([waiting]))
        .await??
        .pop()
    else {
        fail!("no guard");
    };
    ensure!(
        next.remaining() > cx.kept_ttl(),
        "{:?} remain of {:?}",
        next.remaining(),
        next.ttl()
    );
    if let Some(left) = inspect_lock(&other, &name)
        .await?
        .held
        .and_then(|held| held.expires_in)
    {
        ensure!(
            left >= next.remaining(),
            "the store ends it after {left:?}, the guard after {:?}",
            next.remaining()
        );
    }
    release_clean(next).await
}
