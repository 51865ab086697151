//! Property: a waiter gets a lock that becomes free, and gives up in time when the lock stays held.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distlock_core::{Attempt, ErrorKind, Fairness, Guard, Locker, Wakeup};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    history::{History, Hold},
    spec::{Spec, case},
    support::{
        Context, SLACK, SOON, acquire_free, acquire_within, eventually, expect_busy, inspect_lock,
        join, now, release_clean, sleep, soon, start, within,
    },
    worker::{Ask, Command, Reply, Worker},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        waiting::try_acquire_never_waits,
        "try_acquire of a held lock answers at once, and busy is not an error"
    ),
    case!(
        waiting::zero_wait_tries_once,
        "a wait of zero takes a free lock and gives up on a held one at once"
    ),
    case!(
        waiting::gives_up_when_the_wait_is_over,
        "acquire ends with Timeout when its wait is over, not sooner"
    ),
    case!(
        waiting::local_waiter_gives_up_in_time,
        "a waiter behind a task of its own client gives up in time as well"
    ),
    case!(
        waiting::timeout_names_the_holder,
        "the error of a timeout names the lock and its holder, and how to inspect the lock"
    ),
    case!(
        waiting::busy_names_the_holder,
        "a busy answer names the holder"
    ),
    case!(
        waiting::release_serves_a_waiter_of_another_client,
        "a waiter gets the lock soon after another client's release"
    ),
    case!(
        waiting::release_serves_a_waiter_of_the_same_client,
        "a waiter gets the lock soon after its own client's release"
    ),
    case!(
        waiting::wait_forever_outlasts_the_holder,
        "a waiter without a limit gets the lock in the end"
    ),
    case!(
        waiting::endless_durations_are_accepted,
        "the longest possible duration means a wait without a limit"
    ),
    case!(
        waiting::every_waiter_is_served,
        "twelve waiters of two clients all get the lock"
    ),
    case!(
        waiting::waiter_does_not_delay_other_names,
        "a waiter for one name does not delay its client's other names"
    ),
    case!(
        waiting::free_lock_is_taken_without_delay,
        "a free lock is granted without waiting"
    ),
    case!(
        waiting::order_between_clients_is_as_promised,
        "waiting clients that ask for fairness get the lock in order of arrival",
        Order
    ),
    case!(
        waiting::eight_processes_keep_their_order,
        "of eight processes that wait in order one is killed, one stands still and one is \
         cancelled; the others are served in their order, and the stopped one when it goes on",
        Order,
        Processes
    ),
    case!(
        waiting::a_fair_task_passes_no_other_client,
        "a fair task does not pass another client that waits when a task of its own client, fair \
         or not, releases the lock",
        Order
    ),
    case!(
        waiting::a_fair_attempt_passes_no_waiter,
        "a fair attempt that does not wait is refused while a fair waiter is in the queue",
        Order
    ),
    case!(
        waiting::fairness_is_refused_where_there_is_none,
        "a store without an order refuses a fair acquire before any request",
        NoOrder
    ),
    case!(
        waiting::wake_up_is_as_promised,
        "a release reaches a waiting client within 40 ms where the store sends notifications, \
         within 2 s elsewhere"
    ),
];

async fn try_acquire_never_waits(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    for locker in [&holder, &other] {
        let asked = now();
        expect_busy(locker, &name).await?;
        ensure!(
            now().since(asked) < SLACK,
            "answered after {:?}",
            now().since(asked)
        );
    }
    release_clean(guard).await
}

async fn zero_wait_tries_once(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .wait(Duration::ZERO)
        .acquire()
        .await?;
    for locker in [&holder, &other] {
        let asked = now();
        let answer = locker
            .lock(&name)
            .ttl(cx.long_ttl())
            .wait(Duration::ZERO)
            .acquire()
            .await;
        expect_error(
            "acquire of a held lock with no wait",
            answer,
            &[ErrorKind::Timeout],
        )?;
        ensure!(
            now().since(asked) < SLACK,
            "answered after {:?}",
            now().since(asked)
        );
    }
    release_clean(guard).await
}

/// Checks that a waiter gives up when its wait has ended. With `local`, the waiter uses the
/// holder's own client.
async fn ensure_waiter_times_out(cx: &Context, local: bool) -> Outcome {
    let holder = cx.locker().await?;
    let waiter = if local {
        holder.clone()
    } else {
        cx.locker().await?
    };
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    for wait in [Duration::from_millis(1), Duration::from_millis(700)] {
        let asked = now();
        let answer = waiter
            .lock(&name)
            .ttl(cx.long_ttl())
            .wait(wait)
            .acquire()
            .await;
        let waited = now().since(asked);
        expect_error("acquire of a held lock", answer, &[ErrorKind::Timeout])?;
        ensure!(
            waited >= wait,
            "gave up after {waited:?} instead of {wait:?}"
        );
        ensure!(
            waited < wait + SLACK,
            "gave up only after {waited:?} instead of {wait:?}"
        );
    }
    ensure!(guard.is_valid(), "the holder is not disturbed");
    release_clean(guard).await
}

async fn gives_up_when_the_wait_is_over(cx: Context) -> Outcome {
    ensure_waiter_times_out(&cx, false).await
}

async fn local_waiter_gives_up_in_time(cx: Context) -> Outcome {
    ensure_waiter_times_out(&cx, true).await
}

async fn timeout_names_the_holder(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("nightly report");
    let guard = match holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .holder("ada@engine:1843")
        .try_acquire()
        .await?
    {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(holder) => fail!("held by {holder:?}"),
    };
    let fair = cx.capabilities().fairness != Fairness::None;
    for (locker, fair) in [(&holder, false), (&other, false), (&other, fair)] {
        let mut wanted = locker.lock(&name).ttl(cx.long_ttl());
        if fair {
            wanted = wanted.fair();
        }
        let answer = wanted.wait(Duration::from_millis(300)).acquire().await;
        let error = expect_error("acquire of a held lock", answer, &[ErrorKind::Timeout])?;
        let seen = error.holder().map(|holder| holder.holder.as_str());
        ensure_eq!(seen, Some("ada@engine:1843"), "the holder of the error");
        let text = error.to_string();
        ensure!(
            text.contains("ada@engine:1843"),
            "the holder is missing in {text:?}"
        );
        ensure!(
            text.contains("nightly report"),
            "the lock is missing in {text:?}"
        );
        ensure!(
            text.contains("inspect"),
            "how to inspect the lock is missing in {text:?}"
        );
        ensure!(!text.contains('\n'), "more than one line: {text:?}");
    }
    release_clean(guard).await
}

async fn busy_names_the_holder(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let attempt = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .holder("grace")
        .meta("shard 7")
        .try_acquire()
        .await?;
    let Some(guard) = attempt.acquired() else {
        fail!("the lock should be free");
    };
    let Some(info) = expect_busy(&other, &name).await? else {
        fail!("a store that can be inspected can say who holds a lock");
    };
    ensure_eq!(info.holder, "grace", "the holder");
    release_clean(guard).await
}

/// Checks that a waiter gets the lock soon after a release. With `local`, the waiter uses the
/// holder's own client.
async fn ensure_release_serves_waiter(cx: &Context, local: bool) -> Outcome {
    let holder = cx.locker().await?;
    let waiter = if local {
        holder.clone()
    } else {
        cx.locker().await?
    };
    for round in 0..3 {
        let name = cx.name(&round.to_string());
        let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
        let waiting = start({
            let (waiter, name) = (waiter.clone(), name.clone());
            async move { acquire_within(&waiter, &name, Duration::from_secs(25)).await }
        });
        sleep(Duration::from_millis(250)).await;
        ensure!(
            !waiting.is_finished(),
            "the waiter does not get what is held"
        );
        release_clean(guard).await?;
        let mut served = soon("a waiter is served", join([waiting])).await??;
        let Some(guard) = served.pop() else {
            fail!("no guard")
        };
        release_clean(guard).await?;
    }
    Ok(())
}

async fn release_serves_a_waiter_of_another_client(cx: Context) -> Outcome {
    ensure_release_serves_waiter(&cx, false).await
}

async fn release_serves_a_waiter_of_the_same_client(cx: Context) -> Outcome {
    ensure_release_serves_waiter(&cx, true).await
}

async fn wait_forever_outlasts_the_holder(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let mut waiting = Box::pin(
        other
            .lock(&name)
            .ttl(cx.long_ttl())
            .wait_forever()
            .acquire(),
    );
    ensure!(
        within(Duration::from_millis(1500), &mut waiting)
            .await
            .is_none(),
        "the waiter still waits while the lock is held"
    );
    release_clean(guard).await?;
    release_clean(soon("the waiter is served", waiting).await??).await
}

async fn endless_durations_are_accepted(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let mut waiting = Box::pin(
        other
            .lock(&name)
            .ttl(cx.long_ttl())
            .wait(Duration::MAX)
            .acquire(),
    );
    ensure!(
        within(Duration::from_millis(300), &mut waiting)
            .await
            .is_none(),
        "the waiter waits"
    );
    release_clean(guard).await?;
    release_clean(soon("the waiter is served", waiting).await??).await
}

async fn every_waiter_is_served(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&one, &name, cx.long_ttl()).await?;
    let waiters = (0..12).map(|number| {
        let (locker, name) = (
            if number % 2 == 0 { &one } else { &two }.clone(),
            name.clone(),
        );
        start(async move {
            release_clean(acquire_within(&locker, &name, Duration::from_secs(40)).await?).await
        })
    });
    let waiters: Vec<_> = waiters.collect();
    sleep(Duration::from_millis(100)).await;
    release_clean(guard).await?;
    match within(2 * SOON, join(waiters)).await {
        Some(served) => served.map(drop),
        None => fail!("twelve waiters were not served within {:?}", 2 * SOON),
    }
}

async fn waiter_does_not_delay_other_names(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("busy");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let waiting = start({
        let (other, name) = (other.clone(), name.clone());
        async move {
            let guard = acquire_within(&other, &name, Duration::from_secs(25)).await?;
            release_clean(guard).await
        }
    });
    for number in 0..20 {
        let free = cx.name(&format!("free {number}"));
        release_clean(soon("a free lock", acquire_free(&other, &free, cx.long_ttl())).await??)
            .await?;
    }
    ensure!(!waiting.is_finished(), "the waiter still waits");
    release_clean(guard).await?;
    soon("the waiter is served", join([waiting]))
        .await?
        .map(drop)
}

async fn free_lock_is_taken_without_delay(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let asked = now();
    let guard = locker
        .lock(cx.name("a"))
        .ttl(cx.long_ttl())
        .wait(Duration::from_secs(20))
        .acquire()
        .await?;
    ensure!(
        now().since(asked) < SLACK,
        "granted after {:?}",
        now().since(asked)
    );
    release_clean(guard).await
}

async fn order_between_clients_is_as_promised(cx: Context) -> Outcome {
    let (holder, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for place in 0..5_u32 {
        let client = cx.locker().await?;
        client.ready().await?;
        tasks.push(start({
            let (name, served) = (name.clone(), Arc::clone(&served));
            async move {
                let guard = acquire_fair(&client, &name).await?;
                let order = served.fetch_add(1, Ordering::SeqCst);
                release_clean(guard).await?;
                Ok((place, order))
            }
        }));
        // The next client must start to wait after this client. So the case waits until this client
        // is in the store queue. All clients of a process may share one place there, which is then
        // counted once.
        let joined = until_waiting(&holder, &name, place + 1);
        let _ = within(Duration::from_millis(300), joined).await;
    }
    release_clean(guard).await?;
    let Some(places) = within(2 * SOON, join(tasks)).await else {
        fail!("not every client was served within {:?}", 2 * SOON);
    };
    let mut places = places?;
    places.sort_unstable_by_key(|(_, order)| *order);
    let places: Vec<_> = places.into_iter().map(|(place, _)| place).collect();
    ensure_eq!(places, vec![0, 1, 2, 3, 4], "the order of being served");
    Ok(())
}

/// Takes a lock in the order of arrival.
async fn acquire_fair(client: &Locker, name: &str) -> Outcome<Guard> {
    let wanted = client.lock(name).fair().wait(Duration::from_secs(40));
    Ok(wanted.acquire().await?)
}

/// Waits until the store shows this number of waiters, or for a while where it shows none.
async fn until_waiting(client: &Locker, name: &str, count: u32) -> Outcome {
    if inspect_lock(client, name).await?.waiters.is_none() {
        sleep(Duration::from_millis(300)).await;
        return Ok(());
    }
    eventually("the waiter has joined", SOON, || async {
        let waiters = inspect_lock(client, name).await?.waiters;
        Ok(waiters.is_some_and(|waiters| waiters >= count))
    })
    .await
}

async fn a_fair_task_passes_no_other_client(cx: Context) -> Outcome {
    let (here, there) = cx.two_lockers().await?;
    there.ready().await?;
    for (name, fair) in [(cx.name("fair"), true), (cx.name("plain"), false)] {
        let guard = if fair {
            acquire_fair(&here, &name).await?
        } else {
            acquire_free(&here, &name, cx.long_ttl()).await?
        };
        // The entry of the guard leaves the queue in the background.
        eventually("the queue is empty", SOON, || async {
            let waiters = inspect_lock(&here, &name).await?.waiters;
            Ok(waiters.unwrap_or_default() == 0)
        })
        .await?;
        let served = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for client in [&there, &here] {
            tasks.push(start({
                let (client, name, served) = (client.clone(), name.clone(), Arc::clone(&served));
                async move {
                    let guard = acquire_fair(&client, &name).await?;
                    let order = served.fetch_add(1, Ordering::SeqCst);
                    release_clean(guard).await?;
                    Ok(order)
                }
            }));
            until_waiting(&here, &name, 1).await?;
        }
        release_clean(guard).await?;
        ensure_eq!(
            join(tasks).await?,
            vec![0, 1],
            "the order of being served after a guard, fair: {fair}"
        );
    }
    Ok(())
}

/// The eight waiters: seven worker processes, and between them a task of this process, which is
/// cancelled.
const WAITERS: usize = 8;
const KILLED: usize = 1;
const STOPPED: usize = 3;
const CANCELLED: usize = 5;

async fn eight_processes_keep_their_order(cx: Context) -> Outcome {
    let (holder, here, name) = (cx.locker().await?, cx.locker().await?, cx.name("a"));
    here.ready().await?;
    let mut workers = BTreeMap::new();
    for place in (0..WAITERS).filter(|place| *place != CANCELLED) {
        workers.insert(place, cx.worker().await?);
    }
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let command = Command::Cycles {
        ask: Ask {
            name: name.clone(),
            ttl: cx.long_ttl(),
            wait: Duration::from_secs(40),
            renew: true,
            fair: true,
            not_before: Duration::ZERO,
        },
        hold: Duration::from_millis(20),
        count: 1,
    };
    let mut cancelled = None;
    for (place, count) in (0..WAITERS).zip(1..) {
        if let Some(worker) = workers.get_mut(&place) {
            worker.send(&command).await?;
        } else {
            let (here, name) = (here.clone(), name.clone());
            cancelled = Some(start(async move { acquire_fair(&here, &name).await }));
        }
        // All clients of a lock server may share one place in the queue of its store.
        let joined = until_waiting(&holder, &name, count);
        let _ = within(Duration::from_millis(300), joined).await;
    }
    let (killed, stopped) = (workers.remove(&KILLED), workers.remove(&STOPPED));
    let (Some(killed), Some(mut stopped)) = (killed, stopped) else {
        fail!("these are workers");
    };
    killed.kill().await?;
    stopped.stop()?;
    if let Some(task) = cancelled {
        task.abort();
    }
    release_clean(guard).await?;
    let (mut served, history) = (Vec::new(), History::new());
    let serving = async {
        for (place, worker) in &mut workers {
            let hold = only_hold(worker).await?;
            served.push((hold.token, *place));
            history.record(hold);
        }
        Ok(())
    };
    // The places of the waiters that are gone end with their entries or sessions.
    let limit = SOON + cx.capabilities().session_timeout.unwrap_or_default();
    let in_time: Option<Outcome> = within(limit, serving).await;
    let Some(all_served) = in_time else {
        fail!("not all were served within {limit:?}: {served:?}");
    };
    all_served?;
    served.sort_unstable();
    let places: Vec<_> = served.into_iter().map(|(_, place)| place).collect();
    ensure_eq!(places, vec![0, 2, 4, 6, 7], "the order of being served");
    stopped.go_on()?;
    history.record(soon("the stopped one is served", only_hold(&mut stopped)).await??);
    history.check()?;
    Ok(())
}

/// The hold of a worker's only cycle.
async fn only_hold(worker: &mut Worker) -> Outcome<Hold> {
    let reply = worker.reply().await?;
    let Reply::Cycles { holds, .. } = &reply else {
        fail!("a worker did not answer with its cycle: {reply:?}");
    };
    match holds.as_slice() {
        [hold] => Ok(hold.clone()),
        _ => fail!("a waiter was not served: {reply:?}"),
    }
}

async fn a_fair_attempt_passes_no_waiter(cx: Context) -> Outcome {
    let ((here, there), name) = (cx.two_lockers().await?, cx.name("a"));
    there.ready().await?;
    let guard = acquire_free(&here, &name, cx.long_ttl()).await?;
    let waiting = start({
        let (there, name) = (there.clone(), name.clone());
        async move { acquire_fair(&there, &name).await }
    });
    until_waiting(&here, &name, 1).await?;
    let attempt = here.lock(&name).fair().try_acquire().await?;
    ensure!(attempt.acquired().is_none(), "a held lock was granted");
    release_clean(guard).await?;
    for guard in join([waiting]).await? {
        release_clean(guard).await?;
    }
    // The entry of a waiter leaves the queue soon after its grant.
    eventually("a fair attempt gets a free lock", SOON, || async {
        match here.lock(&name).fair().try_acquire().await?.acquired() {
            Some(guard) => release_clean(guard).await.map(|()| true),
            None => Ok(false),
        }
    })
    .await
}

async fn fairness_is_refused_where_there_is_none(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let kinds = [ErrorKind::Unsupported];
    expect_error("fair", locker.lock(&name).fair().acquire().await, &kinds)?;
    expect_error(
        "fair",
        locker.lock(&name).fair().try_acquire().await,
        &kinds,
    )?;
    Ok(())
}

async fn wake_up_is_as_promised(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let mut best = Duration::MAX;
    for round in 0..5 {
        let name = cx.name(&round.to_string());
        let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
        let waiting = start({
            let (other, name) = (other.clone(), name.clone());
            async move {
                let guard = acquire_within(&other, &name, Duration::from_secs(5)).await?;
                Ok((now(), guard))
            }
        });
        sleep(Duration::from_millis(400)).await;
        let released = now();
        release_clean(guard).await?;
        for (granted, guard) in join([waiting]).await? {
            best = best.min(granted.since(released));
            release_clean(guard).await?;
        }
    }
    // The best of five rounds counts, because a busy machine may delay each round.
    let limit = match cx.capabilities().wakeup {
        Wakeup::Push => Duration::from_millis(40),
        _ => SLACK,
    };
    ensure!(
        best < limit,
        "the quickest of five releases reached its waiter after {best:?}"
    );
    Ok(())
}
