//! Property: a set of locks is taken as a whole or not at all, and sets named in different orders
//! never deadlock.

use std::time::Duration;

use distlock_core::{ErrorKind, Guard, Released};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SLACK, SOON, acquire_free, acquire_within, expect_busy, inspect_lock, join, now,
        release_clean, sleep, soon, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        multi_lock::set_holds_all_its_locks,
        "all locks of a set are held, and all are released"
    ),
    case!(
        multi_lock::sorts_and_removes_duplicates,
        "the guards of a set are sorted by name, each name once"
    ),
    case!(
        multi_lock::failed_set_leaves_no_lock_held,
        "a set that cannot be acquired in time leaves none of its locks held"
    ),
    case!(
        multi_lock::opposite_orders_never_deadlock,
        "sets named in opposite orders never deadlock"
    ),
    case!(
        multi_lock::wait_counts_for_the_whole_set,
        "the wait counts for the whole set"
    ),
    case!(
        multi_lock::loss_names_the_lock,
        "the loss of one lock of a set is reported with its name"
    ),
    case!(
        multi_lock::dropped_set_frees_all_locks,
        "dropping a set frees all of its locks"
    ),
    case!(
        multi_lock::set_with_invalid_name_takes_no_lock,
        "a set with an invalid name is refused before anything is taken"
    ),
    case!(
        multi_lock::empty_set_is_refused,
        "a set without names is an invalid argument"
    ),
];

async fn set_holds_all_its_locks(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let names = ["a", "b", "c"].map(|tail| cx.name(tail));
    let set = locker.lock_all(&names).ttl(cx.long_ttl()).acquire().await?;
    ensure!(set.is_valid(), "all are held");
    for name in &names {
        expect_busy(&other, name).await?;
    }
    for (name, released) in set.release().await {
        ensure!(
            matches!(released, Released::Clean),
            "release of {name:?}: {released:?}"
        );
    }
    for name in &names {
        release_clean(acquire_free(&other, name, cx.long_ttl()).await?).await?;
    }
    Ok(())
}

async fn sorts_and_removes_duplicates(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let names = ["b", "a ", "b", "Z", "a", "b", "é"].map(|tail| cx.name(tail));
    let set = locker.lock_all(&names).ttl(cx.long_ttl()).acquire().await?;
    let held: Vec<_> = set
        .guards()
        .iter()
        .map(|guard| guard.name().as_str().to_owned())
        .collect();
    let expected = ["Z", "a", "a ", "b", "é"].map(|tail| cx.name(tail));
    ensure_eq!(held, expected.to_vec(), "the names of the guards");
    ensure_eq!(set.release().await.len(), 5, "released locks");
    Ok(())
}

async fn failed_set_leaves_no_lock_held(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    // Another client holds the last lock, so the set has taken the other locks before the set
    // fails.
    let names = ["a", "b", "c"].map(|tail| cx.name(tail));
    let guard = acquire_free(&holder, &names[2], cx.long_ttl()).await?;
    let answer = other
        .lock_all(&names)
        .ttl(cx.long_ttl())
        .wait(Duration::from_millis(300))
        .acquire()
        .await;
    let error = expect_error("a set with a held lock", answer, &[ErrorKind::Timeout])?;
    ensure_eq!(
        error.name().map(distlock_core::LockName::as_str),
        Some(names[2].as_str()),
        "the lock that the error names"
    );
    for name in &names[..2] {
        ensure!(
            inspect_lock(&holder, name).await?.held.is_none(),
            "{name:?} is still held"
        );
    }
    ensure!(guard.is_valid(), "the holder is not disturbed");
    release_clean(guard).await
}

async fn opposite_orders_never_deadlock(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let ascending = ["a", "b", "c"].map(|tail| cx.name(tail));
    let mut descending = ascending.clone();
    descending.reverse();
    let tasks = (0..4).map(|number| {
        let locker = if number % 2 == 0 { &one } else { &two }.clone();
        let names = if number < 2 {
            ascending.clone()
        } else {
            descending.clone()
        };
        let ttl = cx.long_ttl();
        start(async move {
            for _ in 0..6 {
                let set = locker
                    .lock_all(&names)
                    .ttl(ttl)
                    .wait(Duration::from_secs(40))
                    .acquire()
                    .await?;
                ensure!(set.is_valid(), "all are held");
                for (name, released) in set.release().await {
                    ensure!(
                        matches!(released, Released::Clean),
                        "release of {name:?}: {released:?}"
                    );
                }
            }
            Ok(())
        })
    });
    join(tasks.collect::<Vec<_>>()).await.map(drop)
}

async fn wait_counts_for_the_whole_set(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let names = ["a", "b"].map(|tail| cx.name(tail));
    let wait = Duration::from_millis(1500);
    let (first, second) = (
        acquire_free(&holder, &names[0], cx.long_ttl()).await?,
        acquire_free(&holder, &names[1], cx.long_ttl()).await?,
    );
    let waiting = start({
        let (other, names, ttl) = (other.clone(), names.clone(), cx.long_ttl());
        async move {
            let asked = now();
            let answer = other.lock_all(&names).ttl(ttl).wait(wait).acquire().await;
            expect_error("a set with a held lock", answer, &[ErrorKind::Timeout])?;
            Ok(now().since(asked))
        }
    });
    // The first lock becomes free in the middle of the wait. For the second lock, only the rest of
    // the wait must be left.
    sleep(wait / 2).await;
    release_clean(first).await?;
    let Some(waited) = join([waiting]).await?.pop() else {
        fail!("no answer")
    };
    ensure!(
        waited >= wait && waited < wait + SLACK.min(wait),
        "gave up after {waited:?} instead of {wait:?}"
    );
    release_clean(second).await
}

async fn loss_names_the_lock(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let names = ["a", "b", "c"].map(|tail| cx.name(tail));
    let set = locker.lock_all(&names).ttl(cx.kept_ttl()).acquire().await?;
    let Some(victim) = set
        .guards()
        .iter()
        .find(|guard| guard.name().as_str() == names[1])
    else {
        fail!("no such guard");
    };
    other.force_release(&names[1], victim.token()).await?;
    let (name, _) = soon("the loss is reported", set.lost()).await?;
    ensure_eq!(name.as_str(), names[1], "the lost lock");
    ensure!(!set.is_valid(), "the set is not whole");
    ensure_eq!(
        set.guards().iter().filter(|guard| guard.is_valid()).count(),
        2,
        "locks that are left"
    );
    for (name, released) in set.release().await {
        let lost = name.as_str() == names[1];
        ensure_eq!(
            matches!(released, Released::AlreadyLost(_)),
            lost,
            "release of {name:?} ({released:?})"
        );
    }
    Ok(())
}

async fn dropped_set_frees_all_locks(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let names = ["a", "b", "c"].map(|tail| cx.name(tail));
    let set = locker.lock_all(&names).ttl(cx.long_ttl()).acquire().await?;
    ensure_eq!(
        set.guards()
            .iter()
            .filter(|guard| Guard::is_valid(guard))
            .count(),
        3,
        "held locks"
    );
    drop(set);
    for name in &names {
        release_clean(acquire_within(&other, name, SOON).await?).await?;
    }
    Ok(())
}

async fn set_with_invalid_name_takes_no_lock(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    for bad in [String::new(), "x".repeat(256), "a\nb".to_owned()] {
        let names = [cx.name("a"), bad, cx.name("b")];
        let answer = locker.lock_all(&names).ttl(cx.long_ttl()).acquire().await;
        expect_error(
            "a set with an invalid name",
            answer,
            &[ErrorKind::InvalidName],
        )?;
    }
    ensure_eq!(
        locker.list(cx.prefix()).await?.len(),
        0,
        "locks that were taken"
    );
    Ok(())
}

async fn empty_set_is_refused(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let answer = locker
        .lock_all(Vec::<String>::new())
        .ttl(cx.long_ttl())
        .acquire()
        .await;
    expect_error("an empty set", answer, &[ErrorKind::InvalidArgument])?;
    Ok(())
}
