//! Property: an automatically renewed lease lasts until its holder releases the lock, even when the
//! runtime of the holder is blocked or dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{ErrorKind, Guard, Renew};

use crate::{
    Failure, Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, acquire_within, eventually, expect_busy, inspect_lock, join,
        now, release_clean, sleep, soon, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        renewal::renewed_guard_outlasts_several_ttls,
        "a guard stays valid, with the same token, for several times its TTL"
    ),
    case!(
        renewal::many_guards_are_renewed,
        "thirty guards of one client are all kept"
    ),
    case!(
        renewal::renewal_extends_the_visible_lease,
        "renewal extends the lease that other clients see",
        VisibleExpiry
    ),
    case!(
        renewal::manual_guard_is_not_renewed,
        "with manual renewal nothing is renewed"
    ),
    case!(
        renewal::manual_extension_keeps_the_lock,
        "a lock can be kept by extending it by hand"
    ),
    case!(
        renewal::extend_raises_the_deadline,
        "an extension raises the deadline, and the store knows"
    ),
    case!(
        renewal::extend_may_shorten_the_lease,
        "an extension to less lowers the deadline"
    ),
    case!(
        renewal::extend_out_of_range_is_refused,
        "an extension out of range is refused and changes nothing"
    ),
    case!(
        renewal::extend_after_a_loss_fails,
        "a lost lock cannot be extended"
    ),
    case!(
        renewal::renewal_keeps_holder_and_meta,
        "label, text and token stay beside a renewed lock"
    ),
    case!(
        renewal::blocked_runtime_keeps_its_locks,
        "a caller whose runtime is blocked for two TTLs keeps its lock"
    ),
    case!(
        renewal::dropped_runtime_keeps_its_locks,
        "a guard outlives the runtime it was taken on"
    ),
    case!(
        renewal::renewal_stops_with_the_release,
        "nothing is renewed after a release"
    ),
];

async fn renewed_guard_outlasts_several_ttls(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let guard = acquire_free(&holder, &name, ttl).await?;
    let (token, start) = (guard.token(), now());
    while now().since(start) < 3 * ttl {
        expect_busy(&other, &name).await?;
        ensure!(guard.is_valid(), "lost after {:?}", now().since(start));
        ensure!(guard.remaining() <= ttl, "valid for longer than its lease");
        sleep(Duration::from_millis(50)).await;
    }
    ensure_eq!(guard.token(), token, "the token of a renewed lock");
    release_clean(guard).await
}

async fn many_guards_are_renewed(cx: Context) -> Outcome {
    let (locker, ttl) = (cx.locker().await?, cx.kept_ttl());
    let takes = (0..30).map(|number| {
        let (locker, name) = (locker.clone(), cx.name(&number.to_string()));
        start(async move { acquire_free(&locker, &name, ttl).await })
    });
    let guards = join(takes.collect::<Vec<_>>()).await?;
    sleep(2 * ttl).await;
    for guard in &guards {
        ensure!(guard.is_valid(), "{:?} was lost", guard.name());
    }
    let releases = guards.into_iter().map(|guard| start(release_clean(guard)));
    join(releases.collect::<Vec<_>>()).await.map(drop)
}

async fn renewal_extends_the_visible_lease(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let guard = acquire_free(&holder, &name, ttl).await?;
    let Some(first) = inspect_lock(&other, &name)
        .await?
        .held
        .and_then(|held| held.expires_in)
    else {
        fail!("held, and no expiry is shown");
    };
    ensure!(first <= ttl, "expires in {first:?}");
    sleep(ttl).await;
    let asked = now();
    let Some(later) = inspect_lock(&other, &name)
        .await?
        .held
        .and_then(|held| held.expires_in)
    else {
        fail!("not held any more");
    };
    // A store may read its clock at the beginning of an inspection and the lease at the end. A
    // renewal in between makes the shown time longer, by at most the time of the inspection, so the
    // bound includes that time.
    ensure!(
        !later.is_zero() && later <= ttl + now().since(asked),
        "expires in {later:?} after one TTL"
    );
    release_clean(guard).await
}

async fn manual_guard_is_not_renewed(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.short_ttl(), cx.name("a"));
    let guard = holder
        .lock(&name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let next = acquire_within(&other, &name, cx.freed_within(ttl)).await?;
    ensure!(!guard.is_valid(), "nobody renewed it");
    release_clean(next).await
}

async fn manual_extension_keeps_the_lock(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let guard = holder
        .lock(&name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let start = now();
    while now().since(start) < 3 * ttl {
        guard.extend(ttl).await?;
        expect_busy(&other, &name).await?;
        sleep(ttl / 5).await;
    }
    ensure!(guard.is_valid(), "kept by hand");
    release_clean(guard).await
}

async fn extend_raises_the_deadline(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let guard = holder
        .lock(&name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .acquire()
        .await?;
    guard.extend(cx.long_ttl()).await?;
    ensure!(
        guard.remaining() > ttl,
        "{:?} remain after an extension to {:?}",
        guard.remaining(),
        cx.long_ttl()
    );
    ensure!(
        cx.is_expected_lease(guard.ttl().duration(), cx.long_ttl()),
        "the guard tells {:?} for {:?}",
        guard.ttl(),
        cx.long_ttl()
    );
    sleep(cx.lease_over_after(ttl)).await;
    ensure!(
        guard.is_valid(),
        "the first lease is over, the extension is not"
    );
    expect_busy(&other, &name).await?;
    release_clean(guard).await
}

async fn extend_may_shorten_the_lease(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    guard.extend(cx.short_ttl()).await?;
    ensure!(
        guard.remaining() <= cx.short_ttl(),
        "{:?} remain after an extension to {:?}",
        guard.remaining(),
        cx.short_ttl()
    );
    let next = acquire_within(&other, &name, cx.freed_within(cx.short_ttl())).await?;
    ensure!(!guard.is_valid(), "two holders");
    release_clean(next).await
}

async fn extend_out_of_range_is_refused(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let guard = acquire_free(&locker, &cx.name("a"), cx.long_ttl()).await?;
    let remaining = guard.remaining();
    for ttl in [
        Duration::ZERO,
        cx.capabilities().min_ttl - Duration::from_millis(1),
        Duration::from_secs(24 * 60 * 60) + Duration::from_millis(1),
        Duration::MAX,
    ] {
        let answer = guard.extend(ttl).await;
        expect_error(
            &format!("extend to {ttl:?}"),
            answer,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    ensure!(
        guard.is_valid() && guard.remaining() + Duration::from_secs(5) > remaining,
        "nothing has changed"
    );
    release_clean(guard).await
}

async fn extend_after_a_loss_fails(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.short_ttl(), cx.name("a"));
    let guard = holder
        .lock(&name)
        .ttl(ttl)
        .renew(Renew::Manual)
        .acquire()
        .await?;
    soon("it is lost", guard.lost()).await?;
    expect_error(
        "extend after a loss",
        guard.extend(cx.long_ttl()).await,
        &[ErrorKind::Lost],
    )?;
    ensure!(!guard.is_valid(), "lost for good");
    // A refused extension must also leave the lease in the store unchanged.
    release_clean(acquire_within(&other, &name, cx.freed_within(ttl)).await?).await
}

async fn renewal_keeps_holder_and_meta(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.kept_ttl(), cx.name("a"));
    let attempt = holder
        .lock(&name)
        .ttl(ttl)
        .holder("grace")
        .meta("shard 7")
        .try_acquire()
        .await?;
    let Some(guard) = attempt.acquired() else {
        fail!("the lock should be free")
    };
    sleep(2 * ttl).await;
    guard.extend(2 * ttl).await?;
    let Some(held) = inspect_lock(&other, &name).await?.held else {
        fail!("not held any more")
    };
    ensure_eq!(held.holder, "grace", "the label");
    ensure_eq!(held.meta.as_deref(), Some("shard 7"), "the text");
    ensure_eq!(held.token, Some(guard.token()), "the token");
    release_clean(guard).await
}

/// Takes the lock `a` on a new thread with a runtime of its own, and calls `work` there with the
/// runtime and the guard. Returns the result of `work`.
async fn acquire_on_own_runtime<T: Send + 'static>(
    cx: &Context,
    work: impl FnOnce(tokio::runtime::Runtime, Guard) -> T + Send + 'static,
) -> Outcome<T> {
    let (cx, ttl) = (cx.clone(), cx.kept_ttl());
    let (answer, answered) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let result = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::from)
            .and_then(|runtime| {
                let guard = runtime.block_on(async {
                    let store = cx.store().await?;
                    store.ready().await?;
                    acquire_free(&store.locker(), &cx.name("a"), ttl).await
                })?;
                Ok(work(runtime, guard))
            });
        let _ = answer.send(result);
    });
    match answered.await {
        Ok(result) => result,
        Err(_) => fail!("the thread ended early"),
    }
}

async fn blocked_runtime_keeps_its_locks(cx: Context) -> Outcome {
    let (other, ttl) = (cx.locker().await?, cx.kept_ttl());
    let (sender, held) = tokio::sync::oneshot::channel();
    let releases = Arc::new(AtomicBool::new(false));
    let blocked = start({
        let (cx, releases) = (cx.clone(), Arc::clone(&releases));
        async move {
            acquire_on_own_runtime(&cx, move |runtime, guard| {
                let _ = sender.send(());
                runtime.block_on(async {
                    block_thread(2 * ttl);
                    let valid = guard.is_valid();
                    releases.store(true, Ordering::SeqCst);
                    (valid, guard.release().await)
                })
            })
            .await
        }
    });
    let name = cx.name("a");
    if soon("the lock is held", held).await?.is_ok() {
        while !blocked.is_finished() {
            if let distlock_core::Attempt::Acquired(guard) =
                other.lock(&name).ttl(ttl).try_acquire().await?
            {
                // After the release, and until the other thread has ended, any client may get the
                // lock.
                ensure!(
                    releases.load(Ordering::SeqCst),
                    "granted with token {} while the runtime was blocked",
                    guard.token()
                );
                release_clean(guard).await?;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    match join([blocked]).await?.pop() {
        Some((true, distlock_core::Released::Clean)) => Ok(()),
        other => fail!("validity and release after a blocked runtime: {other:?}"),
    }
}

async fn dropped_runtime_keeps_its_locks(cx: Context) -> Outcome {
    let (other, ttl, name) = (cx.locker().await?, cx.kept_ttl(), cx.name("a"));
    let guard = acquire_on_own_runtime(&cx, |runtime, guard| {
        drop(runtime);
        guard
    })
    .await?;
    let start = now();
    while now().since(start) < 2 * ttl {
        ensure!(guard.is_valid(), "lost after {:?}", now().since(start));
        expect_busy(&other, &name).await?;
        sleep(Duration::from_millis(50)).await;
    }
    // The release in the background must not need the dropped runtime either.
    drop(guard);
    release_clean(acquire_within(&other, &name, SOON).await?).await
}

async fn renewal_stops_with_the_release(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let ttl = cx.kept_ttl();
    for round in 0..6_u64 {
        let name = cx.name(&round.to_string());
        let guard = acquire_free(&holder, &name, ttl).await?;
        // The release is sent at about the time of the first renewal, so that the two requests may
        // overlap.
        sleep(ttl / 3 + Duration::from_millis(round * 2)).await;
        release_clean(guard).await?;
        eventually("free after the release", SOON, || async {
            Ok(inspect_lock(&other, &name).await?.held.is_none())
        })
        .await?;
    }
    sleep(ttl).await;
    ensure_eq!(
        other.list(cx.prefix()).await?.len(),
        0,
        "locks that came back"
    );
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the point is to block the runtime, as a careless caller would"
)]
fn block_thread(time: Duration) {
    std::thread::sleep(time);
}
