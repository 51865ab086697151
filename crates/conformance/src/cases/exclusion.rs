//! Property: two holders never believe at the same time that they hold one name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{Attempt, Locker};
use tokio::sync::Barrier;

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    history::History,
    spec::{Spec, case},
    support::{
        Context, acquire_free, acquire_hold_release, expect_busy, join, now, release_clean, start,
    },
    worker::{Ask, Command, ReleaseReport, Reply},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        exclusion::two_tasks_never_overlap,
        "two tasks of one client never hold a lock together"
    ),
    case!(
        exclusion::many_tasks_never_overlap,
        "sixteen tasks of one client never hold a lock together"
    ),
    case!(
        exclusion::two_clients_never_overlap,
        "tasks of two clients never hold a lock together"
    ),
    case!(
        exclusion::counter_under_the_lock_is_exact,
        "a counter that is read and written under the lock loses no update"
    ),
    case!(
        exclusion::race_has_one_winner,
        "of eight clients that ask at once exactly one gets a free lock"
    ),
    case!(
        exclusion::holder_excludes_every_client,
        "a held lock is refused to its own client and to others"
    ),
    case!(
        exclusion::other_names_are_free,
        "a held lock excludes nobody from other names"
    ),
    case!(
        exclusion::many_names_are_held_at_once,
        "sixty-four names can be held at once"
    ),
    case!(
        exclusion::processes_never_overlap,
        "three processes never hold a lock together",
        Processes
    ),
    case!(
        exclusion::five_processes_at_a_barrier,
        "of five processes that start together (wait 5 s, hold 2 s) exactly three get the lock, \
         one after the other",
        Processes
    ),
];

/// Runs one task for each locker. Each task takes and releases the lock `cycles` times. Checks that
/// the holds of all tasks do not overlap, and returns the holds.
async fn run_competing_tasks(
    lockers: &[Locker],
    name: &str,
    cycles: usize,
    ttl: Duration,
) -> Outcome<History> {
    let history = History::new();
    let tasks = lockers.iter().cloned().enumerate().map(|(number, locker)| {
        let (name, history) = (name.to_owned(), history.clone());
        start(async move {
            let who = format!("task {number}");
            for _ in 0..cycles {
                acquire_hold_release(&locker, &name, ttl, Duration::ZERO, &who, &history).await?;
            }
            Ok(())
        })
    });
    join(tasks.collect::<Vec<_>>()).await?;
    ensure_eq!(
        history.holds().len(),
        lockers.len() * cycles,
        "number of holds"
    );
    history.check()?;
    Ok(history)
}

async fn two_tasks_never_overlap(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    run_competing_tasks(&[locker.clone(), locker], &cx.name("a"), 25, cx.long_ttl()).await?;
    Ok(())
}

async fn many_tasks_never_overlap(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let lockers = vec![locker; 16];
    run_competing_tasks(&lockers, &cx.name("a"), 5, cx.long_ttl()).await?;
    Ok(())
}

async fn two_clients_never_overlap(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let lockers = [one.clone(), two.clone(), one, two];
    run_competing_tasks(&lockers, &cx.name("a"), 8, cx.long_ttl()).await?;
    Ok(())
}

async fn counter_under_the_lock_is_exact(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("counter");
    // The lock alone guards the value. Each task reads the value, pauses and writes the value plus
    // one, so an update is lost when two holders overlap.
    let value = Arc::new(AtomicU32::new(0));
    let tasks = [one.clone(), two.clone(), one, two].map(|locker| {
        let (name, value, ttl) = (name.clone(), Arc::clone(&value), cx.long_ttl());
        start(async move {
            for _ in 0..6 {
                let guard = locker.lock(&name).ttl(ttl).acquire().await?;
                let read = value.load(Ordering::SeqCst);
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                value.store(read + 1, Ordering::SeqCst);
                release_clean(guard).await?;
            }
            Ok(())
        })
    });
    join(tasks).await?;
    ensure_eq!(value.load(Ordering::SeqCst), 24, "the counter");
    Ok(())
}

async fn race_has_one_winner(cx: Context) -> Outcome {
    const CLIENTS: usize = 8;
    let mut lockers = Vec::new();
    for _ in 0..CLIENTS {
        lockers.push(cx.locker().await?);
    }
    for round in 0..4 {
        let name = cx.name(&format!("race {round}"));
        let barrier = Arc::new(Barrier::new(CLIENTS));
        let tasks = lockers.iter().cloned().map(|locker| {
            let (name, barrier, ttl) = (name.clone(), Arc::clone(&barrier), cx.long_ttl());
            start(async move {
                barrier.wait().await;
                let attempt = locker.lock(&name).ttl(ttl).try_acquire().await?;
                Ok(attempt.acquired())
            })
        });
        let winners = join(tasks.collect::<Vec<_>>()).await?;
        let winners: Vec<_> = winners.into_iter().flatten().collect();
        ensure_eq!(winners.len(), 1, "winners in round {round}");
        for winner in winners {
            release_clean(winner).await?;
        }
    }
    Ok(())
}

async fn holder_excludes_every_client(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    expect_busy(&other, &name).await?;
    expect_busy(&holder, &name).await?;
    ensure!(guard.is_valid(), "the holder is not disturbed");
    release_clean(guard).await?;
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn other_names_are_free(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let held = acquire_free(&holder, &cx.name("a"), cx.long_ttl()).await?;
    let free = acquire_free(&other, &cx.name("b"), cx.long_ttl()).await?;
    ensure!(held.is_valid() && free.is_valid(), "both are held");
    release_clean(free).await?;
    release_clean(held).await
}

async fn many_names_are_held_at_once(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let tasks = (0..64).map(|number| {
        let (holder, name, ttl) = (holder.clone(), cx.name(&number.to_string()), cx.long_ttl());
        start(async move { acquire_free(&holder, &name, ttl).await })
    });
    let guards = join(tasks.collect::<Vec<_>>()).await?;
    for number in [0, 31, 63] {
        expect_busy(&other, &cx.name(&number.to_string())).await?;
    }
    ensure!(
        guards.iter().all(distlock_core::Guard::is_valid),
        "all are held"
    );
    let releases = guards.into_iter().map(|guard| start(release_clean(guard)));
    join(releases.collect::<Vec<_>>()).await?;
    match other
        .lock(cx.name("63"))
        .ttl(cx.long_ttl())
        .try_acquire()
        .await?
    {
        Attempt::Acquired(guard) => release_clean(guard).await,
        Attempt::Busy(holder) => fail!("still held by {holder:?}"),
    }
}

async fn processes_never_overlap(cx: Context) -> Outcome {
    const CYCLES: u32 = 8;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(cx.worker().await?);
    }
    let command = Command::Cycles {
        ask: Ask {
            name: cx.name("a"),
            ttl: cx.long_ttl(),
            wait: Duration::from_secs(40),
            renew: true,
            fair: false,
            not_before: (now() + Duration::from_millis(200)).since_boot(),
        },
        hold: Duration::from_millis(10),
        count: CYCLES,
    };
    for worker in &mut workers {
        worker.send(&command).await?;
    }
    let history = History::new();
    for worker in &mut workers {
        let Reply::Cycles {
            holds,
            releases,
            refused,
        } = worker.reply().await?
        else {
            fail!("a worker did not answer with its cycles");
        };
        ensure!(
            refused.is_empty(),
            "every waiter gets the lock: {refused:?}"
        );
        ensure!(
            releases
                .iter()
                .all(|report| *report == ReleaseReport::Clean),
            "releases are clean: {releases:?}"
        );
        ensure_eq!(holds.len(), CYCLES as usize, "holds of one process");
        history.extend(holds);
    }
    history.check()?;
    Ok(())
}

/// All processes start at one moment, wait up to 5 s and hold for 2 s. So the grants come about 0,
/// 2 and 4 s after the start, and the two refusals after 5 s.
async fn five_processes_at_a_barrier(cx: Context) -> Outcome {
    let wait = Duration::from_secs(5);
    let mut workers = Vec::new();
    for _ in 0..5 {
        workers.push(cx.worker().await?);
    }
    // All workers are connected by now, so they can start at one moment in the near future.
    let barrier = (now() + Duration::from_millis(500)).since_boot();
    let command = Command::Cycles {
        ask: Ask {
            name: cx.name("a"),
            ttl: cx.capabilities().min_ttl.max(Duration::from_secs(10)),
            wait,
            renew: true,
            fair: false,
            not_before: barrier,
        },
        hold: Duration::from_secs(2),
        count: 1,
    };
    for worker in &mut workers {
        worker.send(&command).await?;
    }
    let history = History::new();
    let mut refusals = Vec::new();
    for worker in &mut workers {
        let Reply::Cycles {
            holds,
            releases,
            refused,
        } = worker.reply().await?
        else {
            fail!("a worker did not answer with its cycle");
        };
        ensure!(
            releases
                .iter()
                .all(|report| *report == ReleaseReport::Clean),
            "releases are clean: {releases:?}"
        );
        history.extend(holds);
        refusals.extend(refused);
    }
    history.check()?;
    let granted: Vec<_> = history
        .holds()
        .iter()
        .map(|hold| hold.from.saturating_sub(barrier))
        .collect();
    ensure_eq!(granted.len(), 3, "grants (at {granted:?})");
    ensure_eq!(refusals.len(), 2, "refusals ({refusals:?})");
    for refusal in &refusals {
        ensure_eq!(refusal.kind, "Timeout", "kind of the refusal");
        let after = refusal.answered.saturating_sub(refusal.asked);
        ensure!(
            after >= wait && after < wait + Duration::from_millis(900),
            "refused after {after:?}, expected about {wait:?}"
        );
    }
    for (turn, after) in granted.iter().enumerate() {
        let earliest = Duration::from_secs(2) * u32::try_from(turn).unwrap_or(u32::MAX);
        ensure!(
            *after >= earliest && *after < earliest + Duration::from_millis(950),
            "grant {turn} came {after:?} after the start, expected about {earliest:?}"
        );
    }
    Ok(())
}
