//! Property: the tokens of one name rise in the order of grants, whatever happened in between. A
//! fenced resource refuses an earlier holder by its token.

use distlock_core::{Epoch, Fence, FenceGuard, FenceRefusal, FencingToken, Guard, Locker};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    history::History,
    spec::{Spec, case},
    support::{
        Context, acquire_free, acquire_hold_release, acquire_within, inspect_lock, join,
        release_clean, start,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        fencing::token_rises_across_release,
        "the token rises with every grant after a release"
    ),
    case!(
        fencing::token_rises_between_clients,
        "the token rises when clients take turns"
    ),
    case!(
        fencing::token_rises_across_expiry,
        "the token rises when an expired lock is taken over",
        DeadHolder
    ),
    case!(
        fencing::token_rises_across_force_release,
        "the token rises after a forced release"
    ),
    case!(
        fencing::token_rises_across_hand_over,
        "the token rises when a lock is handed on inside a client"
    ),
    case!(
        fencing::token_rises_across_reopening,
        "the token rises after every client was closed"
    ),
    case!(
        fencing::token_rises_under_load,
        "the token rises in the order of grants while six tasks compete"
    ),
    case!(
        fencing::token_rises_between_processes,
        "the token rises when a process takes over from another",
        Processes
    ),
    case!(
        fencing::token_rises_over_all_names,
        "where the scope is global, tokens of all names form one rising order",
        GlobalTokens
    ),
    case!(
        fencing::token_fits_into_53_bits,
        "tokens are at least 1 and below 2^53"
    ),
    case!(
        fencing::guard_has_the_stores_token,
        "the guard's token is the one the store shows"
    ),
    case!(
        fencing::epoch_is_shared,
        "all clients of a store see one epoch"
    ),
    case!(
        fencing::resource_refuses_the_former_holder,
        "a fenced resource refuses the former holder and lets the present one through"
    ),
    case!(
        fencing::resource_refuses_equal_token_of_another_owner,
        "a fenced resource refuses an equal token of another owner"
    ),
    case!(
        fencing::resource_refuses_lower_token_of_new_epoch,
        "a fenced resource refuses a lower token of a new epoch until it is reset"
    ),
];

/// Checks that each token is higher than the previous token.
fn ensure_rising(tokens: &[FencingToken]) -> Outcome {
    match tokens.windows(2).find(|pair| pair[0] >= pair[1]) {
        None => Ok(()),
        Some(pair) => fail!(
            "token {} was followed by {} in {tokens:?}",
            pair[0],
            pair[1]
        ),
    }
}

/// Takes and releases a lock. Returns the token of the grant.
async fn acquire_and_release(locker: &Locker, name: &str, cx: &Context) -> Outcome<FencingToken> {
    let guard = acquire_free(locker, name, cx.long_ttl()).await?;
    let token = guard.token();
    release_clean(guard).await?;
    Ok(token)
}

async fn token_rises_across_release(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let mut tokens = Vec::new();
    for _ in 0..30 {
        tokens.push(acquire_and_release(&locker, &name, &cx).await?);
    }
    ensure_rising(&tokens)
}

async fn token_rises_between_clients(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let mut tokens = Vec::new();
    for turn in 0..20 {
        let locker = if turn % 2 == 0 { &one } else { &two };
        tokens.push(acquire_and_release(locker, &name, &cx).await?);
    }
    ensure_rising(&tokens)
}

async fn token_rises_across_expiry(cx: Context) -> Outcome {
    let (locker, name, ttl) = (cx.locker().await?, cx.name("a"), cx.short_ttl());
    let mut tokens = Vec::new();
    for _ in 0..2 {
        tokens.push(cx.acquire_and_crash(&name, ttl).await?.token);
        let guard = acquire_within(&locker, &name, cx.freed_within(ttl)).await?;
        tokens.push(guard.token());
        release_clean(guard).await?;
    }
    ensure_rising(&tokens)
}

async fn token_rises_across_force_release(cx: Context) -> Outcome {
    let (operator, name) = (cx.locker().await?, cx.name("a"));
    let mut tokens = Vec::new();
    let mut forced = Vec::new();
    for _ in 0..6 {
        // Each round uses another client. After a forced release, the former client believes that
        // it holds the lock until it learns of the loss. So the former client could not take the
        // lock again at once.
        let guard = acquire_free(&cx.locker().await?, &name, cx.long_ttl()).await?;
        tokens.push(guard.token());
        operator.force_release(&name, guard.token()).await?;
        forced.push(guard);
    }
    ensure_rising(&tokens)
}

async fn token_rises_across_hand_over(cx: Context) -> Outcome {
    let (locker, name) = (cx.locker().await?, cx.name("a"));
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let first = guard.token();
    let history = History::new();
    let tasks = (0..10).map(|number| {
        let (locker, name, history, ttl) =
            (locker.clone(), name.clone(), history.clone(), cx.long_ttl());
        start(async move {
            acquire_hold_release(
                &locker,
                &name,
                ttl,
                std::time::Duration::ZERO,
                &format!("task {number}"),
                &history,
            )
            .await
        })
    });
    let tasks: Vec<_> = tasks.collect();
    release_clean(guard).await?;
    join(tasks).await?;
    history.check()?;
    let lowest = history.holds().iter().map(|hold| hold.token).min();
    ensure!(
        lowest > Some(first.get()),
        "the first hand-over gave {lowest:?} after {first}"
    );
    Ok(())
}

async fn token_rises_across_reopening(cx: Context) -> Outcome {
    let name = cx.name("a");
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let store = cx.store().await?;
        tokens.push(acquire_and_release(&store.locker(), &name, &cx).await?);
        store.close().await;
    }
    ensure_rising(&tokens)
}

async fn token_rises_under_load(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let history = History::new();
    let tasks = (0..6).map(|number| {
        let locker = if number % 2 == 0 { &one } else { &two }.clone();
        let (name, history, ttl) = (cx.name("a"), history.clone(), cx.long_ttl());
        start(async move {
            for _ in 0..6 {
                acquire_hold_release(
                    &locker,
                    &name,
                    ttl,
                    std::time::Duration::ZERO,
                    &format!("task {number}"),
                    &history,
                )
                .await?;
            }
            Ok(())
        })
    });
    join(tasks.collect::<Vec<_>>()).await?;
    ensure_eq!(history.holds().len(), 36, "number of holds");
    history.check()?;
    Ok(())
}

async fn token_rises_between_processes(cx: Context) -> Outcome {
    let name = cx.name("a");
    let mut one = cx.worker().await?;
    let mut two = cx.worker().await?;
    let mut last = 0;
    for turn in 0..6 {
        let worker = if turn % 2 == 0 { &mut one } else { &mut two };
        let held = worker
            .acquire(&name, cx.long_ttl(), std::time::Duration::from_secs(5))
            .await?;
        ensure!(
            held.token > last,
            "token {last} was followed by {} in another process",
            held.token
        );
        last = held.token;
        worker.release().await?;
    }
    Ok(())
}

async fn token_rises_over_all_names(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let mut tokens = Vec::new();
    for turn in 0..12 {
        let locker = if turn % 2 == 0 { &one } else { &two };
        let name = cx.name(&turn.to_string());
        tokens.push(acquire_and_release(locker, &name, &cx).await?);
    }
    ensure_rising(&tokens)
}

async fn token_fits_into_53_bits(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    for number in 0..5 {
        let token = acquire_and_release(&locker, &cx.name(&number.to_string()), &cx)
            .await?
            .get();
        ensure!((1..1 << 53).contains(&token), "token {token}");
    }
    Ok(())
}

async fn guard_has_the_stores_token(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let shown = inspect_lock(&other, &name).await?;
    ensure_eq!(
        shown.held.and_then(|held| held.token),
        Some(guard.token()),
        "the token that others see"
    );
    ensure_eq!(guard.fence().token, guard.token(), "the fence's token");
    ensure_eq!(guard.watch().token(), guard.token(), "the watch's token");
    let token = guard.token();
    release_clean(guard).await?;
    if let Some(last) = inspect_lock(&other, &name).await?.last_token {
        ensure_eq!(last, token, "the last token of a free lock");
    }
    Ok(())
}

async fn epoch_is_shared(cx: Context) -> Outcome {
    let (one, two) = cx.two_lockers().await?;
    let (a, b) = (
        acquire_free(&one, &cx.name("a"), cx.long_ttl()).await?,
        acquire_free(&two, &cx.name("b"), cx.long_ttl()).await?,
    );
    ensure_eq!(a.epoch(), b.epoch(), "epochs of two clients");
    ensure_eq!(a.fence().epoch, a.epoch(), "the fence's epoch");
    if let Some(epoch) = one.health().await?.epoch {
        ensure_eq!(epoch, a.epoch(), "the epoch that the health check shows");
    }
    release_clean(a).await?;
    release_clean(b).await
}

/// Takes a lock, force-releases it, and takes it with another client. Returns the guards of the
/// former and of the present holder.
async fn take_former_and_present_guard(cx: &Context) -> Outcome<(Guard, Guard)> {
    let (one, two) = cx.two_lockers().await?;
    let name = cx.name("a");
    let old = acquire_free(&one, &name, cx.long_ttl()).await?;
    two.force_release(&name, old.token()).await?;
    let new = acquire_free(&two, &name, cx.long_ttl()).await?;
    Ok((old, new))
}

async fn resource_refuses_the_former_holder(cx: Context) -> Outcome {
    let (old, new) = take_former_and_present_guard(&cx).await?;
    let mut resource = FenceGuard::new();
    for (fence, allowed) in [
        (old.fence(), true),
        (old.fence(), true),
        (new.fence(), true),
        (old.fence(), false),
        (new.fence(), true),
    ] {
        let answer = resource.check(&fence);
        ensure_eq!(
            answer.is_ok(),
            allowed,
            "token {} ({answer:?})",
            fence.token
        );
    }
    match resource.check(&old.fence()) {
        Err(FenceRefusal::Older { seen, offered }) => {
            ensure_eq!(
                (seen, offered),
                (new.token(), old.token()),
                "what the refusal says"
            );
        }
        other => fail!("the former holder got {other:?}"),
    }
    release_clean(new).await
}

async fn resource_refuses_equal_token_of_another_owner(cx: Context) -> Outcome {
    let (old, new) = take_former_and_present_guard(&cx).await?;
    ensure!(
        old.fence().owner != new.fence().owner,
        "two acquisitions have two owners"
    );
    let mut resource = FenceGuard::new();
    ensure!(
        resource.check(&new.fence()).is_ok(),
        "the present holder passes"
    );
    let twin = Fence::new(new.token(), old.fence().owner, new.epoch());
    match resource.check(&twin) {
        Err(FenceRefusal::SameTokenOtherOwner { token }) => {
            ensure_eq!(token, new.token(), "what the refusal says");
        }
        other => fail!("a twin got {other:?}"),
    }
    release_clean(new).await
}

async fn resource_refuses_lower_token_of_new_epoch(cx: Context) -> Outcome {
    let (old, new) = take_former_and_present_guard(&cx).await?;
    let mut resource = FenceGuard::new();
    ensure!(
        resource.check(&new.fence()).is_ok(),
        "the present holder passes"
    );
    // A store that was restored from a backup may grant a lower token in a new epoch.
    let restored = Fence::new(old.token(), old.fence().owner, Epoch::new("restored"));
    for _ in 0..2 {
        match resource.check(&restored) {
            Err(FenceRefusal::LowerInNewEpoch { .. }) => {}
            other => fail!("a lower token of a new epoch got {other:?}"),
        }
    }
    resource.reset_to(&restored.epoch);
    ensure!(
        resource.check(&restored).is_ok(),
        "accepted after the reset"
    );
    ensure!(
        resource.check(&new.fence()).is_err(),
        "the old history is over"
    );
    release_clean(new).await
}
