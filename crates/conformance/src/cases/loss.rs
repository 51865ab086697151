//! Property: a holder learns of a loss in time, once, and with its reason.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Ended, ErrorKind, Forced, Guard, LossReason, Moment, Released, Renew,
};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    history::History,
    spec::{Spec, case},
    support::{
        Context, SLACK, StallMeter, acquire_free, acquire_hold_release, join, now, release_clean,
        sleep, sleep_until, soon, start, within,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        loss::expiry_is_reported_in_time,
        "a guard of an expired lease reports Expired at most 250 ms after its deadline"
    ),
    case!(
        loss::waiting_alone_reports_the_loss_in_time,
        "lost() and ended() resolve at most 250 ms after the deadline, also when no task asks \
         the guard anything else"
    ),
    case!(
        loss::late_question_is_answered_at_once,
        "lost() and ended() resolve at once when they are first called after the deadline"
    ),
    case!(
        loss::forced_release_is_reported,
        "a guard of a force-released lock learns of it by its deadline, as Removed where the \
         store cannot tell"
    ),
    case!(
        loss::takeover_is_reported,
        "a guard reports TakenOver or Removed after another owner got its lock"
    ),
    case!(
        loss::loss_keeps_its_first_reason,
        "a loss stays, with its first reason"
    ),
    case!(
        loss::all_waiters_learn_of_the_loss,
        "forty waiters and watchers all learn of the loss"
    ),
    case!(
        loss::no_loss_without_cause,
        "a guard that is held and released properly never reports a loss"
    ),
    case!(
        loss::run_drops_the_work,
        "run drops its work on a loss and answers Lost"
    ),
    case!(
        loss::run_returns_the_value,
        "run returns the value of its work and frees the lock"
    ),
    case!(
        loss::work_can_ask_about_its_lock,
        "the work under run can ask about its lock"
    ),
    case!(
        loss::same_client_can_take_the_lock_again,
        "after a loss the same client can take the lock again"
    ),
    case!(
        loss::validity_ends_at_the_deadline,
        "a guard is not valid after its deadline, whether or not its loss was reported"
    ),
];

/// The longest delay of the report of a loss, in running time after the deadline.
const NOTICE: Duration = Duration::from_millis(250);

/// Waits for the loss of a guard, and checks that the loss was reported within [`NOTICE`] after the
/// deadline.
async fn expect_loss_by_deadline(
    guard: &Guard,
    deadline: Moment,
    stalls: &StallMeter,
) -> Outcome<LossReason> {
    let reason = soon("the loss is reported", guard.lost()).await?;
    let late = stalls.running(deadline, now()).await;
    ensure!(
        late <= NOTICE,
        "reported {late:?} of running time after the deadline"
    );
    ensure!(
        !guard.is_valid() && guard.remaining().is_zero(),
        "not valid any more"
    );
    Ok(reason)
}

async fn expiry_is_reported_in_time(cx: Context) -> Outcome {
    let stalls = StallMeter::start();
    let (locker, ttl) = (cx.locker().await?, cx.short_ttl());
    let rounds = (0..5).map(|round| {
        locker
            .lock(cx.name(&format!("{round}")))
            .ttl(ttl)
            .renew(Renew::Manual)
            .acquire()
    });
    for guard in futures_util::future::try_join_all(rounds).await? {
        let deadline = now() + guard.remaining();
        let reason = expect_loss_by_deadline(&guard, deadline, &stalls).await?;
        ensure_eq!(reason, LossReason::Expired, "the reason");
        ensure!(
            now() + Duration::from_millis(1) >= deadline,
            "reported before the deadline"
        );
    }
    Ok(())
}

/// Takes a lock that is not renewed. Returns its guard and the deadline of the guard.
async fn acquire_unrenewed(cx: &Context, name: &str) -> Outcome<(Guard, Moment)> {
    let request = cx.locker().await?.lock(cx.name(name)).ttl(cx.short_ttl());
    let guard = request.renew(Renew::Manual).acquire().await?;
    let deadline = now() + guard.remaining();
    Ok((guard, deadline))
}

/// Here no task asks whether the guard is valid or how much time remains. Such a question would
/// notice the loss and wake the waiters.
async fn waiting_alone_reports_the_loss_in_time(cx: Context) -> Outcome {
    let stalls = StallMeter::start();
    // The guards must exist until the end, because the drop of a guard releases the lock, and then
    // nothing is lost.
    let mut guards = Vec::new();
    let (mut told, mut deadlines) = (Vec::new(), Vec::new());
    for (name, waiters) in [("one waiter", 1), ("five waiters", 5)] {
        let (guard, deadline) = acquire_unrenewed(&cx, name).await?;
        let guard = Arc::new(guard);
        for _ in 0..waiters {
            let guard = Arc::clone(&guard);
            told.push(start(async move {
                let reason = guard.lost().await;
                Ok((Ended::Lost(reason), now()))
            }));
            deadlines.push(deadline);
        }
        guards.push(guard);
    }
    for (name, watchers) in [("one watcher", 1), ("five watchers", 5)] {
        let (guard, deadline) = acquire_unrenewed(&cx, name).await?;
        for _ in 0..watchers {
            let watch = guard.watch();
            told.push(start(async move { Ok((watch.ended().await, now())) }));
            deadlines.push(deadline);
        }
        guards.push(Arc::new(guard));
    }
    let told = soon("all waiters learn of the loss", join(told)).await??;
    for ((ended, at), deadline) in told.into_iter().zip(deadlines) {
        ensure_eq!(ended, Ended::Lost(LossReason::Expired), "the reported end");
        ensure!(
            at + Duration::from_millis(1) >= deadline,
            "reported before the deadline"
        );
        let late = stalls.running(deadline, at).await;
        ensure!(
            late <= NOTICE,
            "reported {late:?} of running time after the deadline"
        );
    }
    drop(guards);
    Ok(())
}

async fn late_question_is_answered_at_once(cx: Context) -> Outcome {
    let stalls = StallMeter::start();
    let (by_guard, first) = acquire_unrenewed(&cx, "guard").await?;
    let (by_watch, second) = acquire_unrenewed(&cx, "watch").await?;
    sleep_until(first.max(second) + 2 * NOTICE).await;
    for _ in 0..2 {
        let asked = now();
        let reason = soon("the guard tells", by_guard.lost()).await?;
        let ended = soon("the watch tells", by_watch.watch().ended()).await?;
        let took = stalls.running(asked, now()).await;
        ensure_eq!(reason, LossReason::Expired, "the reason");
        ensure_eq!(ended, Ended::Lost(reason), "what a watcher sees");
        ensure!(took <= NOTICE, "reported only after {took:?}");
    }
    Ok(())
}

async fn forced_release_is_reported(cx: Context) -> Outcome {
    let stalls = StallMeter::start();
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.short_ttl(), cx.name("a"));
    let guard = acquire_free(&holder, &name, ttl).await?;
    other.force_release(&name, guard.token()).await?;
    // The guard may believe that it holds the lock until its deadline, which a renewal may have
    // raised just before the forced release.
    let reason = expect_loss_by_deadline(&guard, now() + guard.remaining(), &stalls).await?;
    let expected = if cx.capabilities().tells_force_release {
        LossReason::ForceReleased
    } else {
        LossReason::Removed
    };
    ensure_eq!(reason, expected, "the reason");
    // A guard that has not noticed the forced release reports the loss as the result of its own
    // release.
    let guard = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    other.force_release(&name, guard.token()).await?;
    match guard.release().await {
        Released::AlreadyLost(reason) => ensure_eq!(reason, expected, "the reason of the release"),
        other => fail!("the release of a lock that was forced away said {other:?}"),
    }
    // A forced release of a lock that its holder has released says that the lock is not held.
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let token = guard.token();
    release_clean(guard).await?;
    let forced = other.force_release(&name, token).await?;
    ensure_eq!(forced, Forced::NotHeld, "forcing a free lock");
    Ok(())
}

async fn takeover_is_reported(cx: Context) -> Outcome {
    let stalls = StallMeter::start();
    let (holder, other) = cx.two_lockers().await?;
    let (ttl, name) = (cx.short_ttl(), cx.name("a"));
    let guard = acquire_free(&holder, &name, ttl).await?;
    other.force_release(&name, guard.token()).await?;
    let next = acquire_free(&other, &name, cx.long_ttl()).await?;
    let reason = expect_loss_by_deadline(&guard, now() + guard.remaining(), &stalls).await?;
    ensure!(
        matches!(reason, LossReason::TakenOver | LossReason::Removed),
        "the reason is {reason:?}"
    );
    ensure!(
        next.is_valid() && next.token() > guard.token(),
        "the next holder is the later one"
    );
    release_clean(next).await
}

/// Takes a lock, lets its lease expire, and returns the lost guard.
async fn acquire_and_lose(cx: &Context, name: &str) -> Outcome<Guard> {
    let locker = cx.locker().await?;
    let guard = locker
        .lock(name)
        .ttl(cx.short_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    soon("the loss is reported", guard.lost()).await?;
    Ok(guard)
}

async fn loss_keeps_its_first_reason(cx: Context) -> Outcome {
    let name = cx.name("a");
    let guard = acquire_and_lose(&cx, &name).await?;
    let other = cx.locker().await?;
    // A takeover would be a second reason. The guard must keep the first one.
    sleep(cx.freed_within(cx.short_ttl())).await;
    let next = acquire_free(&other, &name, cx.long_ttl()).await?;
    for _ in 0..3 {
        ensure_eq!(guard.lost().await, LossReason::Expired, "the reason");
        ensure!(!guard.is_valid(), "never valid again");
        expect_error("check", guard.check(), &[ErrorKind::Lost])?;
    }
    expect_error("reenter", guard.reenter(), &[ErrorKind::Lost])?;
    match guard.release().await {
        Released::AlreadyLost(LossReason::Expired) => {}
        other => fail!("the release of a lost lock said {other:?}"),
    }
    ensure!(next.is_valid(), "the next holder is not touched");
    release_clean(next).await
}

async fn all_waiters_learn_of_the_loss(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let guard = locker
        .lock(cx.name("a"))
        .ttl(cx.short_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let watchers: Vec<_> = (0..40)
        .map(|_| {
            let watch = guard.watch();
            start(async move { Ok(watch.ended().await) })
        })
        .collect();
    let (one, two) = soon("both waiters learn of the loss", async {
        tokio::join!(guard.lost(), guard.lost())
    })
    .await?;
    ensure_eq!(
        (one, two),
        (LossReason::Expired, LossReason::Expired),
        "what waiters saw"
    );
    for ended in soon("watchers learn of the loss", join(watchers)).await?? {
        ensure_eq!(
            ended,
            Ended::Lost(LossReason::Expired),
            "what a watcher saw"
        );
    }
    ensure_eq!(
        guard.watch().ended().await,
        Ended::Lost(LossReason::Expired),
        "what a late watcher sees"
    );
    Ok(())
}

async fn no_loss_without_cause(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let history = History::new();
    let tasks = (0..8_u64).map(|number| {
        let (locker, history, name) = (
            locker.clone(),
            history.clone(),
            cx.name(&number.to_string()),
        );
        let ttl = cx.kept_ttl();
        start(async move {
            for round in 0..4 {
                // The shortest hold ends at once, and the longest lasts for several renewals.
                let hold = ttl * u32::try_from(number * round).unwrap_or(0) / 16;
                let who = format!("task {number}");
                acquire_hold_release(&locker, &name, ttl, hold, &who, &history).await?;
            }
            Ok(())
        })
    });
    join(tasks.collect::<Vec<_>>()).await?;
    history.check()?;
    Ok(())
}

async fn run_drops_the_work(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let (told, mut running) = tokio::sync::mpsc::channel(1);
    let run = start({
        let (name, ttl) = (name.clone(), cx.short_ttl());
        async move {
            let answer = holder
                .lock(&name)
                .ttl(ttl)
                .run(async |held| {
                    let _ = told.send(held.token()).await;
                    std::future::pending::<()>().await;
                    drop(told);
                })
                .await;
            Ok(answer)
        }
    });
    let Some(token) = soon("the work starts", running.recv()).await? else {
        fail!("the work ended early: {:?}", join([run]).await);
    };
    other.force_release(&name, token).await?;
    ensure_eq!(
        soon("the work is dropped", running.recv()).await?,
        None,
        "a second message of the work"
    );
    let Some(answer) = soon("run ends", join([run])).await??.pop() else {
        fail!("no answer")
    };
    let error = expect_error("run", answer, &[ErrorKind::Lost])?;
    ensure!(error.is_lost(), "the predicate agrees");
    Ok(())
}

async fn run_returns_the_value(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let value = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .run(async |_| {
            matches!(
                other.lock(&name).ttl(cx.long_ttl()).try_acquire().await,
                Ok(Attempt::Busy(_))
            )
        })
        .await?;
    ensure!(value, "the lock is held while the work runs");
    release_clean(acquire_free(&other, &name, cx.long_ttl()).await?).await
}

async fn work_can_ask_about_its_lock(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let (valid, remaining, token) = locker
        .lock(&name)
        .ttl(cx.long_ttl())
        .run(async |held| {
            (
                held.is_valid() && held.check().is_ok(),
                held.remaining(),
                held.token(),
            )
        })
        .await?;
    ensure!(
        valid && !remaining.is_zero() && remaining <= cx.long_ttl(),
        "held: {valid}, for {remaining:?}"
    );
    let next = acquire_free(&locker, &name, cx.long_ttl()).await?;
    ensure!(next.token() > token, "tokens rise");
    release_clean(next).await
}

async fn same_client_can_take_the_lock_again(cx: Context) -> Outcome {
    let name = cx.name("a");
    let (holder, other) = cx.two_lockers().await?;
    let lost = acquire_free(&holder, &name, cx.short_ttl()).await?;
    other.force_release(&name, lost.token()).await?;
    soon("the loss is reported", lost.lost()).await?;
    // The same client takes the lock again while the old guard still exists.
    let again = holder
        .lock(&name)
        .ttl(cx.long_ttl())
        .wait(SLACK)
        .acquire()
        .await?;
    ensure!(
        again.is_valid() && !lost.is_valid(),
        "the new guard is valid, the old one is not"
    );
    ensure!(again.token() > lost.token(), "tokens rise");
    drop(lost);
    ensure!(
        within(Duration::from_millis(300), again.lost())
            .await
            .is_none(),
        "the old guard's end is not the new one's"
    );
    ensure!(
        matches!(
            other.lock(&name).ttl(cx.long_ttl()).try_acquire().await?,
            Attempt::Busy(_)
        ),
        "still held"
    );
    release_clean(again).await
}

async fn validity_ends_at_the_deadline(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    let guard = locker
        .lock(cx.name("a"))
        .ttl(cx.short_ttl())
        .renew(Renew::Manual)
        .acquire()
        .await?;
    let deadline = now() + guard.remaining();
    sleep_until(deadline).await;
    // No task may have reported the loss yet. The guard must be invalid all the same.
    ensure!(
        !guard.is_valid(),
        "valid {:?} after its deadline",
        now().since(deadline)
    );
    ensure!(
        guard.remaining().is_zero(),
        "{:?} remain",
        guard.remaining()
    );
    expect_error("check", guard.check(), &[ErrorKind::Lost])?;
    Ok(())
}
