//! Property: a lease ends when its time has passed. The lock of a dead holder becomes free. The
//! guard of a living holder becomes invalid before another owner gets the lock.

use std::time::Duration;

use distlock_core::{
    Attempt, DistLock, Lease, OwnerId, Released, Renew, Renewal, Renewed, Ttl, margin,
};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{
        Context, acquire_free, acquire_within, expect_busy, inspect_lock, join, now, release_clean,
        request, sleep_until, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        expiry::dead_holder_frees_at_its_ttl,
        "a dead holder's lock is granted to a waiter once its TTL is over, not before",
        DeadHolder
    ),
    case!(
        expiry::dead_holder_excludes_until_its_ttl,
        "a dead holder's lock is refused until its TTL is over",
        DeadHolder
    ),
    case!(
        expiry::dead_process_frees_at_its_ttl,
        "the lock of a killed process is granted to a waiter within one TTL",
        Processes
    ),
    case!(
        expiry::no_grant_before_the_holders_deadline,
        "nobody is granted a lock while the old guard still says that it is valid"
    ),
    case!(
        expiry::deadline_lies_within_the_lease,
        "a fresh guard is valid for the TTL less the margin, counted from the request"
    ),
    case!(
        expiry::remaining_time_falls,
        "the remaining time falls while nothing is renewed"
    ),
    case!(
        expiry::expired_lock_is_shown_as_free,
        "an expired lock is shown as free and is not listed",
        DeadHolder
    ),
    case!(
        expiry::expired_owner_cannot_renew,
        "the owner of an expired lock cannot renew it, also when nobody took it"
    ),
    case!(
        expiry::late_release_harms_nobody,
        "a release after expiry does not touch the next holder"
    ),
    case!(
        expiry::lease_of_a_day_is_granted,
        "a lease of 24 hours is granted and shown as such"
    ),
];

async fn dead_holder_frees_at_its_ttl(cx: Context) -> Outcome {
    let (waiter, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let dead = cx.acquire_and_crash(&name, ttl).await?;
    let guard = acquire_within(&waiter, &name, cx.freed_within(ttl)).await?;
    let after = now().since(dead.asked);
    ensure!(
        after >= ttl - margin(ttl),
        "granted {after:?} after a grant for {ttl:?}"
    );
    ensure!(
        after < cx.freed_within(ttl),
        "granted only {after:?} after a grant for {ttl:?}"
    );
    ensure!(guard.token() > dead.token, "tokens rise");
    release_clean(guard).await
}

async fn dead_holder_excludes_until_its_ttl(cx: Context) -> Outcome {
    let (other, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let dead = cx.acquire_and_crash(&name, ttl).await?;
    let certain = dead.asked + (ttl - margin(ttl));
    let mut tries = 0;
    loop {
        let attempt = other.lock(&name).ttl(cx.long_ttl()).try_acquire().await?;
        let answered = now();
        if let Attempt::Acquired(guard) = attempt {
            ensure!(
                answered >= certain,
                "granted {:?} too early",
                certain.since(answered)
            );
            ensure!(tries > 0, "it was never held");
            return release_clean(guard).await;
        }
        tries += 1;
        ensure!(
            answered.since(dead.asked) < cx.freed_within(ttl),
            "still refused {:?} after a grant for {ttl:?}",
            answered.since(dead.asked)
        );
        sleep_until(answered + Duration::from_millis(20)).await;
    }
}

async fn dead_process_frees_at_its_ttl(cx: Context) -> Outcome {
    let (waiter, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let mut worker = cx.worker().await?;
    let held = worker.acquire(&name, ttl, Duration::ZERO).await?;
    expect_busy(&waiter, &name).await?;
    worker.kill().await?;
    let killed = now();
    let guard = acquire_within(&waiter, &name, cx.freed_within(ttl)).await?;
    ensure!(
        now().since(killed) < cx.freed_within(ttl),
        "granted only {:?} after the kill",
        now().since(killed)
    );
    ensure!(guard.token().get() > held.token, "tokens rise");
    release_clean(guard).await
}

async fn no_grant_before_the_holders_deadline(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let ttl = cx.short_ttl();
    let rounds = (0..6).map(|round| {
        let (holder, other, name) = (holder.clone(), other.clone(), cx.name(&round.to_string()));
        let limit = cx.freed_within(ttl);
        start(async move {
            let guard = holder
                .lock(&name)
                .ttl(ttl)
                .renew(Renew::Manual)
                .acquire()
                .await?;
            let next = acquire_within(&other, &name, limit).await?;
            ensure!(
                !guard.is_valid(),
                "two holders: the old guard is valid for {:?}",
                guard.remaining()
            );
            ensure!(
                next.is_valid() && next.token() > guard.token(),
                "the next holder is the later one"
            );
            release_clean(next).await
        })
    });
    join(rounds.collect::<Vec<_>>()).await.map(drop)
}

async fn deadline_lies_within_the_lease(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    for ttl in [cx.short_ttl(), cx.long_ttl()] {
        let asked = now();
        let guard = acquire_free(&locker, &cx.name(&format!("{ttl:?}")), ttl).await?;
        let answered = now();
        let remaining = guard.remaining();
        let (latest, most) = (asked + ttl, ttl - margin(ttl));
        // The deadline counts from the moment before the request was sent, so the round trip is
        // part of the lease.
        ensure!(
            answered + remaining <= latest.max(answered) + answered.since(asked),
            "valid beyond its lease"
        );
        ensure!(
            remaining <= most,
            "{remaining:?} of {ttl:?} remain, at most {most:?} may"
        );
        ensure!(guard.is_valid(), "a fresh guard is valid");
        ensure!(
            cx.is_expected_lease(guard.ttl().duration(), ttl),
            "the guard tells {:?} for {ttl:?}",
            guard.ttl()
        );
        release_clean(guard).await?;
    }
    Ok(())
}

async fn remaining_time_falls(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let guard = locker
        .lock(cx.name("a"))
        .ttl(cx.long_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let (before, first) = (now(), guard.remaining());
    sleep_until(before + Duration::from_millis(50)).await;
    let second = guard.remaining();
    ensure!(
        first >= second + Duration::from_millis(50),
        "{first:?} became {second:?} in 50 ms"
    );
    release_clean(guard).await
}

async fn expired_lock_is_shown_as_free(cx: Context) -> Outcome {
    let (locker, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let dead = cx.acquire_and_crash(&name, ttl).await?;
    ensure!(
        inspect_lock(&locker, &name).await?.held.is_some(),
        "held at first"
    );
    sleep_until(dead.asked + cx.freed_within(ttl)).await;
    let info = inspect_lock(&locker, &name).await?;
    ensure!(
        info.held.is_none(),
        "expired and still shown as held: {info:?}"
    );
    ensure_eq!(locker.list(cx.prefix()).await?.len(), 0, "listed locks");
    Ok(())
}

async fn expired_owner_cannot_renew(cx: Context) -> Outcome {
    let (backend, ttl) = (cx.backend().await?, cx.short_ttl());
    let asked = now();
    let lease = acquire_directly(&*backend, &cx.name("a"), ttl).await?;
    sleep_until(asked + cx.freed_within(ttl)).await;
    let renewed = backend
        .renew(&lease, &Renewal::plain(Ttl::new(ttl)?))
        .await?;
    ensure!(
        matches!(renewed, Renewed::NotHeld(_)),
        "revived: {renewed:?}"
    );
    ensure!(
        backend.inspect(&lease.name).await?.held.is_none(),
        "it stays free"
    );
    Ok(())
}

/// Takes a lock through the backend, so nothing renews the lock.
async fn acquire_directly(backend: &dyn DistLock, name: &str, ttl: Duration) -> Outcome<Lease> {
    let wanted = request(name, OwnerId::new(), ttl)?;
    let Some(grant) = backend.try_acquire(&wanted).await?.acquired() else {
        fail!("the lock should be free");
    };
    let owner = grant.owner_after(&wanted);
    Ok(Lease::new(wanted.name, owner, Some(grant.token)))
}

async fn late_release_harms_nobody(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.short_ttl(), cx.name("a"));
    let late = holder
        .lock(&name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let next = acquire_within(&other, &name, cx.freed_within(ttl)).await?;
    match late.release().await {
        Released::AlreadyLost(_) => {}
        other => fail!("a release after expiry said {other:?}"),
    }
    ensure!(next.is_valid(), "the next holder still holds");
    expect_busy(&holder, &name).await?;
    release_clean(next).await
}

async fn lease_of_a_day_is_granted(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (day, name) = (Duration::from_secs(24 * 60 * 60), cx.name("a"));
    let guard = acquire_free(&holder, &name, day).await?;
    ensure!(
        guard.remaining() > cx.short_ttl() && guard.remaining() <= day - margin(day),
        "{:?} remain",
        guard.remaining()
    );
    expect_busy(&other, &name).await?;
    if let Some(left) = inspect_lock(&other, &name)
        .await?
        .held
        .and_then(|holder| holder.expires_in)
    {
        ensure!(left <= day, "expires in {left:?}");
    }
    release_clean(guard).await
}
