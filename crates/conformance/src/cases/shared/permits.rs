//! The permits of a semaphore are numbered, and their holders have no more than the capacity.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use distlock_core::{ErrorKind, sync::Mutex};
use distlock_recipes::shared::Semaphore;
use tokio::task::JoinSet;

use super::steps::{SETTLED, again_and_again, die, leave, refused, take};
use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error},
    spec::{Spec, case},
    support::{Context, SOON, join, sleep, start},
};

pub(super) const CASES: &[Spec] = &[
    case!(
        shared::permits_have_numbers,
        "each holder of permits knows which ones it has, and nobody else has the same"
    ),
    case!(
        shared::the_last_permit_is_given_once,
        "of two clients that try for the last permit at once at most one gets it"
    ),
    case!(
        shared::a_large_request_is_not_starved,
        "whoever wants all permits gets them although others take single ones again and again"
    ),
    case!(
        shared::several_permits_are_released_together,
        "permits that were taken together are free together"
    ),
    case!(
        shared::another_capacity_is_refused,
        "a client with another capacity gets an error that names both"
    ),
    case!(
        shared::an_unused_semaphore_takes_any_capacity,
        "once nobody holds a permit, the capacity of the next client counts"
    ),
    case!(
        shared::a_larger_capacity_lets_a_waiter_in,
        "a waiter gets the permit that a larger capacity adds"
    ),
    case!(
        shared::a_smaller_capacity_leaves_the_holders,
        "after a smaller capacity holders keep their permits, and nobody enters above it"
    ),
    case!(
        shared::a_dead_holder_behind_a_live_one_keeps_no_permit,
        "a waiter gets the permit of a dead holder although a live one stays"
    ),
    case!(
        shared::impossible_wishes_are_refused,
        "no permits, more than the capacity, and a capacity out of range are refused"
    ),
    case!(
        shared::permits_are_never_given_twice,
        "tasks of three clients never have the same permit at the same time"
    ),
];

async fn permits_have_numbers(cx: Context) -> Outcome {
    let (here, there) = (cx.semaphore("s", 5).await?, cx.semaphore("s", 5).await?);
    let two = take(here.permits(2)).await?;
    let three = take(there.permits(3)).await?;
    ensure_eq!(two.indices(), [0, 1], "the first permits");
    ensure_eq!(three.indices(), [2, 3, 4], "the next permits");
    ensure_eq!(here.free_permits().await?, 0, "free permits");
    refused("a permit above the capacity", here.permits(1)).await?;
    leave(two).await?;
    ensure_eq!(there.free_permits().await?, 2, "free permits");
    let one = take(there.permits(1)).await?;
    ensure_eq!(one.indices(), [0], "the lowest permit");
    leave(one).await?;
    leave(three).await
}

async fn the_last_permit_is_given_once(cx: Context) -> Outcome {
    for round in 0..8 {
        let name = format!("s{round}");
        let (one, two) = (cx.semaphore(&name, 1).await?, cx.semaphore(&name, 1).await?);
        let (one, two) = tokio::join!(one.permits(1).try_acquire(), two.permits(1).try_acquire());
        let got = [one?.acquired(), two?.acquired()];
        ensure!(got.iter().flatten().count() <= 1, "both got it: {got:?}");
        for guard in got.into_iter().flatten() {
            leave(guard).await?;
        }
    }
    Ok(())
}

async fn a_large_request_is_not_starved(cx: Context) -> Outcome {
    let mut small = JoinSet::new();
    for _ in 0..4 {
        let semaphore = cx.semaphore("s", 3).await?;
        small.spawn(again_and_again(move || semaphore.permits(1)));
    }
    sleep(SETTLED).await;
    let all = take(cx.semaphore("s", 3).await?.permits(3)).await?;
    ensure_eq!(all.indices(), [0, 1, 2], "all permits");
    small.shutdown().await;
    leave(all).await
}

async fn several_permits_are_released_together(cx: Context) -> Outcome {
    let (here, there) = (cx.semaphore("s", 4).await?, cx.semaphore("s", 4).await?);
    for _ in 0..4 {
        leave(take(here.permits(3)).await?).await?;
        leave(take(there.permits(4)).await?).await?;
    }
    ensure_eq!(here.free_permits().await?, 4, "free permits");
    Ok(())
}

async fn another_capacity_is_refused(cx: Context) -> Outcome {
    let (eight, nine) = (cx.semaphore("s", 8).await?, cx.semaphore("s", 9).await?);
    let held = take(eight.permits(1)).await?;
    let refused = nine.permits(1).acquire().await;
    let error = expect_error("another capacity", refused, &[ErrorKind::InvalidArgument])?;
    let names_both = ["8", "9"].iter().all(|it| error.message().contains(it));
    ensure!(names_both, "the error names not both: {error}");
    ensure!(held.is_valid(), "the holder is lost");
    leave(held).await
}

async fn an_unused_semaphore_takes_any_capacity(cx: Context) -> Outcome {
    for capacity in [1, 7, 3] {
        let semaphore = cx.semaphore("s", capacity).await?;
        leave(take(semaphore.permits(capacity)).await?).await?;
    }
    Ok(())
}

async fn a_larger_capacity_lets_a_waiter_in(cx: Context) -> Outcome {
    let (here, there) = (cx.semaphore("s", 1).await?, cx.semaphore("s", 1).await?);
    let held = take(here.permits(1)).await?;
    let waiter = here.clone();
    let waiting = start(async move { take(waiter.permits(1)).await });
    cx.until_waited_for("sem", "s").await?;
    there.resize(2).await?;
    // A client that was not told gets an error. The one that was goes on.
    here.resize(2).await?;
    let mut got = Vec::new();
    match waiting.await {
        Ok(Ok(guard)) => got.push(guard),
        // It has read the record between the two.
        _ => got.push(take(here.permits(1)).await?),
    }
    ensure_eq!(got[0].indices(), [1], "the new permit");
    for guard in got.into_iter().chain([held]) {
        leave(guard).await?;
    }
    Ok(())
}

async fn a_smaller_capacity_leaves_the_holders(cx: Context) -> Outcome {
    let semaphore = cx.semaphore("s", 4).await?;
    let (one, three) = (
        take(semaphore.permits(1)).await?,
        take(semaphore.permits(3)).await?,
    );
    semaphore.resize(2).await?;
    ensure!(one.is_valid() && three.is_valid(), "a holder is lost");
    leave(one).await?;
    refused("a permit above the smaller capacity", semaphore.permits(1)).await?;
    leave(three).await?;
    let two = take(semaphore.permits(2)).await?;
    ensure_eq!(two.indices(), [0, 1], "the permits of the smaller capacity");
    leave(two).await
}

async fn a_dead_holder_behind_a_live_one_keeps_no_permit(cx: Context) -> Outcome {
    let dying = cx.store().await?;
    let live = take(cx.semaphore("s", 2).await?.permits(1)).await?;
    let dead = Semaphore::new(&dying, &cx.name("s"), 2)?;
    let dead = take(dead.permits(1).ttl(cx.short_ttl())).await?;
    die(&dying, dead).await;
    let wait = cx.freed_within(cx.short_ttl()) + SOON;
    let next = cx
        .semaphore("s", 2)
        .await?
        .permits(1)
        .wait(wait)
        .acquire()
        .await?;
    ensure_eq!(next.indices(), [1], "the permit of the dead");
    leave(next).await?;
    leave(live).await
}

async fn impossible_wishes_are_refused(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let kinds = [ErrorKind::InvalidArgument];
    for capacity in [0, 30_001] {
        let made = Semaphore::new(&store, &cx.name("s"), capacity);
        expect_error("a capacity", made, &kinds)?;
    }
    let two = cx.semaphore("s", 2).await?;
    for count in [0, 3] {
        expect_error("permits", two.permits(count).acquire().await, &kinds)?;
        expect_error("permits", two.permits(count).try_acquire().await, &kinds)?;
    }
    Ok(())
}

async fn permits_are_never_given_twice(cx: Context) -> Outcome {
    let taken = Arc::new(Mutex::new(BTreeSet::new()));
    let mut tasks = Vec::new();
    for client in 0..3 {
        let semaphore = cx.semaphore("s", 4).await?;
        for task in 0..3 {
            let (semaphore, taken) = (semaphore.clone(), Arc::clone(&taken));
            tasks.push(start(async move {
                for round in 0..4 {
                    let wanted = semaphore.permits(1 + (client + task + round) % 3);
                    let guard = wanted.wait(SOON * 4).acquire().await?;
                    let indices = guard.indices();
                    let are_new = {
                        let mut taken = taken.lock();
                        let count = taken.len();
                        taken.extend(&indices);
                        taken.len() == count + indices.len()
                    };
                    ensure!(are_new, "somebody has one of {indices:?}");
                    sleep(Duration::from_millis(2)).await;
                    taken.lock().retain(|index| !indices.contains(index));
                    leave(guard).await?;
                }
                Ok(())
            }));
        }
    }
    join(tasks).await?;
    Ok(())
}
