//! Property: a lock is re-entrant where the caller requests re-entrance, and nowhere else.

use std::time::Duration;

use distlock_core::{ErrorKind, Guard, Renew, Scope};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SLACK, acquire_free, expect_busy, inspect_lock, join, now, release_clean, sleep,
        soon, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        reentrancy::plain_lock_is_not_reentrant,
        "a task that holds a lock cannot take it again, like any other task"
    ),
    case!(
        reentrancy::reentered_guard_shares_the_lease,
        "a re-entered guard has the same token and deadline"
    ),
    case!(
        reentrancy::last_release_frees,
        "of nested guards only the last release frees the lock"
    ),
    case!(
        reentrancy::dropped_guard_counts_as_released,
        "dropping a nested guard counts as its release"
    ),
    case!(
        reentrancy::scope_can_take_its_lock_again,
        "a scope takes the lock that it holds again"
    ),
    case!(
        reentrancy::clone_is_the_same_scope,
        "a clone of a scope is the same scope"
    ),
    case!(
        reentrancy::other_scopes_are_excluded,
        "another scope is excluded, also of the same client"
    ),
    case!(
        reentrancy::plain_callers_are_excluded,
        "a caller without a scope is excluded"
    ),
    case!(
        reentrancy::reentry_never_shortens_the_lease,
        "taking a lock again with a shorter TTL does not shorten its lease"
    ),
    case!(
        reentrancy::loss_reaches_all_nested_guards,
        "a loss reaches every nested guard"
    ),
    case!(
        reentrancy::scope_starts_anew_after_the_release,
        "a scope that released its lock takes it anew, with a higher token"
    ),
    case!(
        reentrancy::tasks_of_one_scope_share_the_lock,
        "eight tasks of one scope hold the lock together"
    ),
    case!(
        reentrancy::scope_waits_within_its_limit,
        "tasks of one scope that wait for a lock give up in time"
    ),
    case!(
        reentrancy::deep_nesting_is_counted,
        "fifty nested guards free the lock with the last one, in any order"
    ),
];

async fn plain_lock_is_not_reentrant(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    expect_busy(&locker, &name).await?;
    let answer = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .wait(Duration::from_millis(200))
        .acquire()
        .await;
    expect_error("a second acquire", answer, &[ErrorKind::Timeout])?;
    release_clean(guard).await
}

async fn reentered_guard_shares_the_lease(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let outer = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let inner = outer.reenter()?;
    ensure_eq!(inner.token(), outer.token(), "the token");
    ensure_eq!(inner.fence(), outer.fence(), "the fence");
    ensure_eq!(inner.name(), outer.name(), "the name");
    outer.extend(cx.long_ttl() * 2).await?;
    ensure!(
        inner.remaining() > cx.longest_lease(cx.long_ttl() * 2) * 3 / 5,
        "an extension reaches the nested guard: {:?}",
        inner.remaining()
    );
    release_clean(inner).await?;
    ensure!(outer.is_valid(), "the outer guard stays");
    release_clean(outer).await
}

async fn last_release_frees(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let outer = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let (middle, inner) = (outer.reenter()?, outer.reenter()?);
    // The case releases the outer guard first, because the order of releases must not matter.
    for guard in [outer, inner] {
        release_clean(guard).await?;
        expect_busy(&other, &name).await?;
    }
    ensure!(middle.is_valid(), "the last guard is valid");
    release_clean(middle).await?;
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn dropped_guard_counts_as_released(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let outer = acquire_free(&locker, &name, cx.long_ttl()).await?;
    drop(outer.reenter()?);
    drop(outer.reenter()?);
    sleep(Duration::from_millis(200)).await;
    ensure!(outer.is_valid(), "the outer guard stays");
    expect_busy(&other, &name).await?;
    release_clean(outer).await?;
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

/// Takes a lock with one attempt of a scope, which must be granted.
async fn acquire_in_scope(
    cx: &Context,
    locker: &distlock_core::Locker,
    name: &str,
    scope: &Scope,
) -> Outcome<Guard> {
    match locker
        .lock(name)
        .ttl(cx.long_ttl())
        .reentrant(scope)
        .try_acquire()
        .await?
        .acquired()
    {
        Some(guard) => Ok(guard),
        None => fail!("{name:?} is refused to a scope"),
    }
}

async fn scope_can_take_its_lock_again(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, scope) = (cx.name("a"), Scope::new());
    let outer = acquire_in_scope(&cx, &locker, &name, &scope).await?;
    let inner = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .reentrant(&scope)
        .acquire()
        .await?;
    ensure_eq!(inner.token(), outer.token(), "the token");
    release_clean(outer).await?;
    expect_busy(&other, &name).await?;
    ensure!(inner.is_valid(), "the nested guard stays");
    release_clean(inner).await?;
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn clone_is_the_same_scope(cx: Context) -> Outcome {
    let (locker, name, scope) = (cx.locker().await?, cx.name("a"), Scope::new());
    let outer = acquire_in_scope(&cx, &locker, &name, &scope).await?;
    let inner = acquire_in_scope(&cx, &locker.clone(), &name, &scope.clone()).await?;
    ensure_eq!(inner.token(), outer.token(), "the token");
    release_clean(inner).await?;
    release_clean(outer).await
}

async fn other_scopes_are_excluded(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, mine, theirs) = (cx.name("a"), Scope::new(), Scope::new());
    let guard = acquire_in_scope(&cx, &locker, &name, &mine).await?;
    for locker in [&locker, &other] {
        let attempt = locker
            .lock(&name)
            .ttl(cx.long_ttl())
            .reentrant(&theirs)
            .try_acquire()
            .await?;
        ensure!(attempt.acquired().is_none(), "granted to another scope");
    }
    // A scope has an effect within one client only. In the store another client is another owner,
    // even with the same scope.
    let attempt = other
        .lock(&name)
        .ttl(cx.long_ttl())
        .reentrant(&mine)
        .try_acquire()
        .await?;
    ensure!(attempt.acquired().is_none(), "granted to another client");
    release_clean(guard).await
}

async fn plain_callers_are_excluded(cx: Context) -> Outcome {
    let (locker, name, scope) = (cx.locker().await?, cx.name("a"), Scope::new());
    let guard = acquire_in_scope(&cx, &locker, &name, &scope).await?;
    expect_busy(&locker, &name).await?;
    release_clean(guard).await?;
    let plain = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let attempt = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .reentrant(&scope)
        .try_acquire()
        .await?;
    ensure!(
        attempt.acquired().is_none(),
        "a scope joins nobody who does not belong to it"
    );
    release_clean(plain).await
}

async fn reentry_never_shortens_the_lease(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, scope) = (cx.name("a"), Scope::new());
    let outer = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .renew(Renew::Manual)
        .reentrant(&scope)
        .acquire()
        .await?;
    let before = outer.remaining();
    let inner = locker
        .lock(&name)
        .ttl(cx.short_ttl())
        .renew(Renew::Manual)
        .reentrant(&scope)
        .acquire()
        .await?;
    ensure!(
        inner.remaining() + SLACK > before,
        "{before:?} became {:?}",
        inner.remaining()
    );
    release_clean(inner).await?;
    sleep(cx.lease_over_after(cx.short_ttl())).await;
    ensure!(outer.is_valid(), "the outer lease goes on");
    expect_busy(&other, &name).await?;
    release_clean(outer).await
}

async fn loss_reaches_all_nested_guards(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, scope) = (cx.name("a"), Scope::new());
    let outer = locker
        .lock(&name)
        .ttl(cx.short_ttl())
        .reentrant(&scope)
        .acquire()
        .await?;
    let entered = locker
        .lock(&name)
        .ttl(cx.short_ttl())
        .reentrant(&scope)
        .acquire()
        .await?;
    let reentered = outer.reenter()?;
    other.force_release(&name, outer.token()).await?;
    let reason = soon("the outer guard learns of the loss", outer.lost()).await?;
    for guard in [&entered, &reentered] {
        ensure_eq!(
            soon("a nested guard learns of the loss", guard.lost()).await?,
            reason,
            "the reason"
        );
        ensure!(!guard.is_valid(), "lost");
    }
    // The scope can take the lock again while the lost guards still exist.
    let again = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .reentrant(&scope)
        .acquire()
        .await?;
    ensure!(
        again.is_valid() && again.token() > outer.token(),
        "taken anew"
    );
    drop((outer, entered, reentered));
    expect_busy(&other, &name).await?;
    release_clean(again).await
}

async fn scope_starts_anew_after_the_release(cx: Context) -> Outcome {
    let (locker, name, scope) = (cx.locker().await?, cx.name("a"), Scope::new());
    let mut last = None;
    for _ in 0..4 {
        let guard = acquire_in_scope(&cx, &locker, &name, &scope).await?;
        ensure!(
            last < Some(guard.token()),
            "{last:?} was followed by {}",
            guard.token()
        );
        last = Some(guard.token());
        release_clean(guard).await?;
    }
    Ok(())
}

async fn tasks_of_one_scope_share_the_lock(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, scope) = (cx.name("a"), Scope::new());
    let tasks = (0..8).map(|_| {
        let (locker, name, scope, ttl) =
            (locker.clone(), name.clone(), scope.clone(), cx.long_ttl());
        start(async move {
            Ok(locker
                .lock(&name)
                .ttl(ttl)
                .reentrant(&scope)
                .acquire()
                .await?)
        })
    });
    let guards = soon("all tasks enter", join(tasks.collect::<Vec<_>>())).await??;
    let tokens: Vec<_> = guards.iter().map(Guard::token).collect();
    ensure!(
        tokens.iter().all(|token| *token == tokens[0]),
        "one lease, but tokens {tokens:?}"
    );
    for guard in guards {
        ensure!(
            inspect_lock(&other, &name).await?.held.is_some(),
            "held until the last release"
        );
        release_clean(guard).await?;
    }
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn scope_waits_within_its_limit(cx: Context) -> Outcome {
    let (holder, locker) = cx.two_lockers().await?;
    let (name, scope, wait) = (cx.name("a"), Scope::new(), Duration::from_millis(1500));
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    // Tasks that wait one after the other would need at least twice the wait. The limit is longer
    // than one wait and shorter than two.
    let limit = wait + Duration::from_millis(1200);
    let tasks = (0..3).map(|_| {
        let (locker, name, scope, ttl) =
            (locker.clone(), name.clone(), scope.clone(), cx.long_ttl());
        start(async move {
            let asked = now();
            let answer = locker
                .lock(&name)
                .ttl(ttl)
                .wait(wait)
                .reentrant(&scope)
                .acquire()
                .await;
            expect_error("a scope's wait", answer, &[ErrorKind::Timeout])?;
            Ok(now().since(asked))
        })
    });
    for waited in join(tasks.collect::<Vec<_>>()).await? {
        ensure!(
            waited >= wait && waited < limit,
            "gave up after {waited:?} instead of {wait:?}"
        );
    }
    release_clean(guard).await
}

async fn deep_nesting_is_counted(cx: Context) -> Outcome {
    let (locker, other) = cx.two_lockers().await?;
    let (name, scope) = (cx.name("a"), Scope::new());
    let mut guards = vec![acquire_in_scope(&cx, &locker, &name, &scope).await?];
    while guards.len() < 50 {
        guards.push(acquire_in_scope(&cx, &locker, &name, &scope).await?);
    }
    let seed = fastrand::u64(..);
    fastrand::Rng::with_seed(seed).shuffle(&mut guards);
    let last = guards.pop();
    for guard in guards {
        release_clean(guard).await?;
    }
    expect_busy(&other, &name).await?;
    let Some(last) = last else { fail!("no guard") };
    ensure!(last.is_valid(), "seed {seed}: the last of fifty is valid");
    release_clean(last).await?;
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}
