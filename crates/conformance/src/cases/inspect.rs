//! Property: every client can inspect locks and force-release them.

use std::time::Duration;

use distlock_core::{DistLock, FencingToken, Forced, Lease, OwnerId};

use crate::{
    Failure, Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, acquire_within, eventually, expect_busy, inspect_lock, join,
        now, release_clean, request, sleep, soon, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        inspect::unknown_lock_is_free,
        "a lock that nobody ever took is free"
    ),
    case!(
        inspect::held_lock_shows_its_holder,
        "label, text, token and remaining time of a held lock are shown"
    ),
    case!(
        inspect::default_label_names_the_process,
        "without a label the holder is user@host:pid"
    ),
    case!(inspect::released_lock_is_free, "a released lock is free"),
    case!(
        inspect::inspection_changes_nothing,
        "looking at a lock does not prolong, shorten or take it",
        DeadHolder
    ),
    case!(
        inspect::list_shows_held_locks_in_order,
        "the list shows held locks only, in the byte order of their names"
    ),
    case!(
        inspect::list_pages_without_gaps,
        "pages of a list neither repeat nor miss a lock"
    ),
    case!(
        inspect::list_of_an_unused_prefix_is_empty,
        "the list under a prefix that nobody uses is empty"
    ),
    case!(
        inspect::waiters_are_shown,
        "number and labels of the waiters are shown, and a look does not disturb them",
        StoreQueue
    ),
    case!(
        inspect::store_without_a_queue_shows_no_waiters,
        "a store without a queue does not claim to know its waiters",
        NoStoreQueue
    ),
    case!(
        inspect::forced_release_frees_the_lock,
        "a forced release frees the lock at once"
    ),
    case!(
        inspect::forced_release_checks_the_token,
        "a forced release with another token changes nothing and returns the present token"
    ),
    case!(
        inspect::forced_release_of_a_free_lock_says_not_held,
        "a forced release of a free lock says so"
    ),
    case!(
        inspect::forced_release_of_an_expired_lock_says_not_held,
        "a forced release of an expired lock says that it is not held",
        DeadHolder
    ),
    case!(
        inspect::health_check_finds_nothing_broken,
        "the health check names the server and finds nothing broken"
    ),
    case!(
        inspect::requests_are_counted_per_client,
        "a client counts the requests of its own handles, and of no other client"
    ),
];

async fn unknown_lock_is_free(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("never seen"));
    let info = inspect_lock(&locker, &name).await?;
    ensure_eq!(info.name.as_str(), name, "the name");
    ensure!(info.held.is_none(), "held by {:?}", info.held);
    ensure_eq!(info.last_token, None, "the last token");
    Ok(())
}

async fn held_lock_shows_its_holder(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let meta = "{\"shard\": 7, \"note\": \"ünïcode 🔒 'quoted'\"}\nsecond line\ttab";
    let attempt = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .holder("ada@engine 🔒")
        .meta(meta)
        .try_acquire()
        .await?;
    let Some(guard) = attempt.acquired() else {
        fail!("the lock should be free")
    };
    for locker in [&holder, &other] {
        let info = inspect_lock(locker, &name).await?;
        ensure_eq!(info.last_token, Some(guard.token()), "the last token");
        let Some(held) = info.held else {
            fail!("held and shown as free")
        };
        ensure_eq!(held.holder, "ada@engine 🔒", "the label");
        ensure_eq!(held.meta.as_deref(), Some(meta), "the text");
        ensure_eq!(held.token, Some(guard.token()), "the token");
        if let Some(left) = held.expires_in {
            ensure!(
                left <= cx.long_ttl() && left + SOON > cx.long_ttl(),
                "expires in {left:?} of {:?}",
                cx.long_ttl()
            );
        }
        if let Some(epoch) = info.epoch {
            ensure_eq!(epoch, guard.epoch(), "the epoch");
        }
    }
    release_clean(guard).await
}

async fn default_label_names_the_process(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let Some(held) = inspect_lock(&locker, &name).await?.held else {
        fail!("held and shown as free")
    };
    let label = &held.holder;
    ensure!(
        label.contains('@') && label.ends_with(&format!(":{}", std::process::id())),
        "the label is {label:?}"
    );
    ensure_eq!(held.meta, None, "the text");
    release_clean(guard).await
}

async fn released_lock_is_free(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .meta("left behind?")
        .acquire()
        .await?;
    release_clean(guard).await?;
    for locker in [&holder, &other] {
        let info = inspect_lock(locker, &name).await?;
        ensure!(info.held.is_none(), "held by {:?}", info.held);
    }
    ensure_eq!(other.list(cx.prefix()).await?.len(), 0, "listed locks");
    Ok(())
}

async fn inspection_changes_nothing(cx: Context) -> Outcome {
    let (other, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let dead = cx.acquire_and_crash(&name, ttl).await?;
    // The case inspects and lists the lock again and again. The lock must still expire on time.
    eventually("it expires", cx.freed_within(ttl), || async {
        other.list(cx.prefix()).await?;
        Ok(inspect_lock(&other, &name).await?.held.is_none())
    })
    .await?;
    ensure!(
        now().since(dead.asked) + Duration::from_millis(100) >= ttl * 8 / 10,
        "expired after {:?} of {ttl:?}",
        now().since(dead.asked)
    );
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn list_shows_held_locks_in_order(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let mut guards = Vec::new();
    for tail in ["m", "b", "Z", "a", "é", "b/1", "b-1"] {
        guards.push(acquire_free(&holder, &cx.name(tail), cx.long_ttl()).await?);
    }
    release_clean(acquire_free(&holder, &cx.name("released"), cx.long_ttl()).await?).await?;
    let expected: Vec<_> = ["Z", "a", "b", "b-1", "b/1", "m", "é"]
        .iter()
        .map(|tail| cx.name(tail))
        .collect();
    let listed = other.list(cx.prefix()).await?;
    let names: Vec<_> = listed.iter().map(|info| info.name.as_str()).collect();
    ensure_eq!(
        names,
        expected.iter().map(String::as_str).collect::<Vec<_>>(),
        "listed names"
    );
    for info in &listed {
        let token = info.held.as_ref().and_then(|held| held.token);
        let guard = guards.iter().find(|guard| *guard.name() == info.name);
        ensure_eq!(
            token,
            guard.map(distlock_core::Guard::token),
            "the token of {:?}",
            info.name
        );
    }
    for guard in guards {
        release_clean(guard).await?;
    }
    Ok(())
}

async fn list_pages_without_gaps(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let mut guards = Vec::new();
    for number in 0..23 {
        guards.push(acquire_free(&holder, &cx.name(&format!("{number:03}")), cx.long_ttl()).await?);
    }
    for limit in [1, 5, 23, 100] {
        let mut seen = Vec::new();
        loop {
            let page = other.list_page(cx.prefix(), seen.last(), limit).await?;
            ensure!(
                page.len() <= limit as usize,
                "a page of {} for a limit of {limit}",
                page.len()
            );
            if page.is_empty() {
                break;
            }
            seen.extend(page.into_iter().map(|info| info.name));
        }
        let expected: Vec<_> = guards.iter().map(|guard| guard.name().clone()).collect();
        ensure_eq!(seen, expected, "names in pages of {limit}");
    }
    ensure_eq!(
        other.list(cx.prefix()).await?.len(),
        23,
        "names in the whole list"
    );
    for guard in guards {
        release_clean(guard).await?;
    }
    Ok(())
}

async fn list_of_an_unused_prefix_is_empty(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let guard = acquire_free(&locker, &cx.name("a"), cx.long_ttl()).await?;
    ensure_eq!(
        locker.list(&cx.name("b")).await?.len(),
        0,
        "locks under another prefix"
    );
    ensure_eq!(
        locker.list(&cx.name("aa")).await?.len(),
        0,
        "locks under a longer prefix"
    );
    ensure_eq!(
        locker.list(&cx.name("a")).await?.len(),
        1,
        "locks under the name itself"
    );
    ensure!(
        locker
            .list("")
            .await?
            .iter()
            .any(|info| info.name == *guard.name()),
        "the empty prefix lists everything"
    );
    release_clean(guard).await
}

async fn waiters_are_shown(cx: Context) -> Outcome {
    let (holder, waiting) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let before = inspect_lock(&holder, &name).await?;
    if before.waiters.is_none() {
        // For example a database user without rights on the queue's table. Then contenders wait
        // without a queue.
        release_clean(guard).await?;
        return Err(Failure::not_applicable(
            "the queue of this store cannot be read with these credentials",
        ));
    }
    ensure_eq!(before.waiters, Some(0), "waiters at first");
    ensure!(before.queue.is_empty(), "the queue at first");
    let wait = |label: &'static str| {
        let lock = waiting.lock(&name).ttl(cx.long_ttl()).holder(label);
        start(async move { release_clean(lock.wait(4 * SOON).acquire().await?).await })
    };
    let leaving = wait("the one that leaves 🔒");
    eventually("the waiter is shown", SOON, || async {
        Ok(inspect_lock(&holder, &name).await?.waiters == Some(1))
    })
    .await?;
    for _ in 0..20 {
        let info = inspect_lock(&holder, &name).await?;
        ensure_eq!(info.waiters, Some(1), "waiters after another look");
        let labels: Vec<_> = info.queue.iter().map(|it| it.holder.as_str()).collect();
        ensure_eq!(
            labels,
            ["the one that leaves 🔒"],
            "the labels of the waiters"
        );
        ensure!(info.queue[0].token.is_none(), "a waiter has no grant");
    }
    leaving.abort();
    eventually("the waiter is gone", SOON, || async {
        let info = inspect_lock(&holder, &name).await?;
        Ok(info.waiters == Some(0) && info.queue.is_empty())
    })
    .await?;
    // The looks have not disturbed the queue: the next waiter is served.
    let served = wait("the next one");
    eventually("the next waiter is shown", SOON, || async {
        Ok(inspect_lock(&holder, &name).await?.waiters == Some(1))
    })
    .await?;
    release_clean(guard).await?;
    soon("the waiter is served", join([served])).await??;
    eventually("nobody waits", SOON, || async {
        let info = inspect_lock(&holder, &name).await?;
        Ok(info.waiters == Some(0) && info.held.is_none())
    })
    .await
}

async fn store_without_a_queue_shows_no_waiters(cx: Context) -> Outcome {
    let (holder, waiting) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let waiter = start({
        let (waiting, name) = (waiting.clone(), name.clone());
        async move { acquire_within(&waiting, &name, Duration::from_secs(20)).await }
    });
    sleep(Duration::from_millis(200)).await;
    ensure_eq!(
        inspect_lock(&holder, &name).await?.waiters,
        None,
        "waiters of a store that cannot tell"
    );
    waiter.abort();
    release_clean(guard).await
}

async fn forced_release_frees_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    ensure_eq!(
        other.force_release(&name, guard.token()).await?,
        Forced::Released,
        "the answer"
    );
    ensure!(
        inspect_lock(&other, &name).await?.held.is_none(),
        "shown as free"
    );
    let next = acquire_free(&other, &name, cx.long_ttl()).await?;
    ensure!(next.token() > guard.token(), "tokens rise");
    // The drop of the former guard sends a release in the background. This release must not free
    // the lock of the next holder.
    drop(guard);
    sleep(Duration::from_millis(200)).await;
    expect_busy(&holder, &name).await?;
    release_clean(next).await
}

async fn forced_release_checks_the_token(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let token = guard.token();
    for wrong in [1, token.get() - 1, token.get() + 1, FencingToken::LIMIT - 1] {
        let answer = other
            .force_release(&name, FencingToken::new(wrong)?)
            .await?;
        ensure_eq!(
            answer,
            Forced::OtherToken(token),
            "the answer for token {wrong}"
        );
    }
    expect_busy(&other, &name).await?;
    ensure!(guard.is_valid(), "the holder is not disturbed");
    release_clean(guard).await
}

async fn forced_release_of_a_free_lock_says_not_held(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    ensure_eq!(
        locker.force_release(&name, FencingToken::new(1)?).await?,
        Forced::NotHeld,
        "a lock that never was"
    );
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let token = guard.token();
    release_clean(guard).await?;
    ensure_eq!(
        locker.force_release(&name, token).await?,
        Forced::NotHeld,
        "a lock that was released"
    );
    Ok(())
}

async fn forced_release_of_an_expired_lock_says_not_held(cx: Context) -> Outcome {
    let (locker, ttl, name) = (cx.locker().await?, cx.short_ttl(), cx.name("a"));
    let dead = cx.acquire_and_crash(&name, ttl).await?;
    eventually("it expires", cx.freed_within(ttl), || async {
        Ok(inspect_lock(&locker, &name).await?.held.is_none())
    })
    .await?;
    ensure_eq!(
        locker.force_release(&name, dead.token).await?,
        Forced::NotHeld,
        "the answer"
    );
    Ok(())
}

async fn health_check_finds_nothing_broken(cx: Context) -> Outcome {
    let health = cx.locker().await?.health().await?;
    ensure!(!health.server.trim().is_empty(), "the server has no name");
    ensure!(!health.findings.is_empty(), "nothing was looked at");
    for finding in &health.findings {
        ensure!(
            !finding.check.is_empty() && !finding.detail.is_empty(),
            "an empty finding: {finding:?}"
        );
        ensure!(
            finding.verdict != distlock_core::Verdict::Fail,
            "broken: {finding:?}"
        );
    }
    Ok(())
}

async fn requests_are_counted_per_client(cx: Context) -> Outcome {
    const CYCLES: u64 = 50;
    async fn cycles(backend: &dyn DistLock, name: &str, ttl: Duration) -> Outcome {
        for _ in 0..CYCLES {
            let owner = OwnerId::new();
            let asked = request(name, owner, ttl)?;
            let Some(grant) = backend.try_acquire(&asked).await?.acquired() else {
                fail!("{name:?} should be free");
            };
            let owner = grant.owner_after(&asked);
            backend
                .release(&Lease::new(asked.name, owner, Some(grant.token)))
                .await?;
        }
        Ok(())
    }
    let (busy, idle) = (cx.backend().await?, cx.backend().await?);
    let count = |backend: &dyn DistLock| {
        backend
            .requests_sent()
            .ok_or_else(|| Failure::not_applicable("this store counts no requests"))
    };
    let (before, unrelated) = (count(&*busy)?, count(&*idle)?);
    cycles(&*busy, &cx.name("a"), cx.long_ttl()).await?;
    let (now, others) = (count(&*busy)? - before, count(&*idle)? - unrelated);
    // A cycle sends two requests, one after the other, so one batch cannot carry both.
    ensure!(
        now >= 2 * CYCLES,
        "{CYCLES} cycles counted as {now} requests"
    );
    // An idle client may send a few requests too, from its background tasks.
    ensure!(
        others < CYCLES,
        "{CYCLES} cycles of one client counted as {others} requests of another"
    );
    let again = busy.reopen().await?;
    let before = count(&*busy)?;
    cycles(&*again, &cx.name("b"), cx.long_ttl()).await?;
    let now = count(&*busy)? - before;
    again.close().await;
    ensure!(
        now >= 2 * CYCLES,
        "{CYCLES} cycles of a reopened handle counted as {now} requests"
    );
    Ok(())
}
