//! Property: the store compares the owner in every change of a lock.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, DistLock, ErrorKind, FencingToken, HandOver, HolderLabel, Lease, LockName,
    OwnerId, ReleaseOutcome, Renewal, Renewed, Ttl,
};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    spec::{Spec, case},
    support::{Context, SOON, eventually, now, request, sleep_until, soon, within},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        ownership::other_owner_cannot_renew,
        "a renewal by another owner is refused and changes nothing"
    ),
    case!(
        ownership::other_owner_cannot_release,
        "a release by another owner changes nothing"
    ),
    case!(
        ownership::other_owner_cannot_hand_over,
        "a hand-over by another owner changes nothing",
        HandOver
    ),
    case!(
        ownership::other_owner_cannot_acquire,
        "an attempt of another owner is busy and changes nothing"
    ),
    case!(
        ownership::repeated_acquire_keeps_the_token,
        "an owner that asks again gets the same token, and the lease starts anew"
    ),
    case!(
        ownership::renewal_creates_nothing,
        "a renewal of a free lock is refused and leaves it free"
    ),
    case!(
        ownership::renewal_keeps_the_token,
        "a renewal answers with the token of the grant"
    ),
    case!(
        ownership::hand_over_is_one_step,
        "a hand-over gives the lock to the next owner with a higher token",
        HandOver
    ),
    case!(
        ownership::hand_over_needs_a_live_lease,
        "an expired lock is not handed over",
        HandOver
    ),
    case!(
        ownership::hand_over_is_unsupported,
        "where there is no hand-over in one step, asking for one is Unsupported and changes \
         nothing",
        NoHandOver
    ),
    case!(
        ownership::repeated_attempt_keeps_the_token,
        "a contender that was granted the lock is granted it again, with the same token"
    ),
    case!(
        ownership::contender_gets_the_lock_on_release,
        "a contender is granted the lock after its holder's release"
    ),
    case!(
        ownership::queue_entry_serves_another_owner,
        "a contender takes the lock for another owner than the one that has joined the queue",
        EntryOfAnyOwner
    ),
    case!(
        ownership::other_owner_at_an_entry_is_unsupported,
        "where a queue entry holds the lock, an attempt for another owner is Unsupported and \
         changes nothing",
        EntryOfOneOwner
    ),
    case!(
        ownership::contender_that_left_blocks_nobody,
        "a contender that left blocks no other client"
    ),
    case!(
        ownership::owner_id_is_never_shown,
        "the owner's identity is not shown in any description of the lock"
    ),
    case!(
        ownership::reopened_handle_shares_the_store,
        "a reopened handle sees and changes the same locks"
    ),
];

/// A lock that one owner has taken through the backend, so nothing renews the lock.
struct DirectHold {
    backend: Arc<dyn DistLock>,
    lease: Lease,
    /// The owner of the request. The lease has another one where the backend chooses it.
    asked_by: OwnerId,
    token: FencingToken,
    ttl: Duration,
}

impl DirectHold {
    /// Takes the lock, which must be free.
    async fn new(cx: &Context, tail: &str, ttl: Duration) -> Outcome<Self> {
        let (backend, name, owner) = (cx.backend().await?, cx.name(tail), OwnerId::new());
        let Some(grant) = backend
            .try_acquire(&request(&name, owner, ttl)?)
            .await?
            .acquired()
        else {
            fail!("the lock should be free");
        };
        let (token, asked_by) = (grant.token, owner);
        let owner = grant.owner.unwrap_or(asked_by);
        let lease = Lease::new(LockName::new(name)?, owner, Some(token));
        Ok(Self {
            backend,
            lease,
            asked_by,
            token,
            ttl,
        })
    }

    /// A lease with another owner and the right token, as another client could forge it.
    fn forged_lease(&self) -> Lease {
        Lease::new(self.lease.name.clone(), OwnerId::new(), Some(self.token))
    }

    fn renewal(&self) -> Outcome<Renewal> {
        Ok(Renewal::plain(Ttl::new(self.ttl)?))
    }

    /// A request of `owner` for the same lock.
    fn request_by(&self, owner: OwnerId) -> Outcome<AcquireRequest> {
        request(self.lease.name.as_str(), owner, self.ttl)
    }

    /// Checks that the owner still holds the lock, with the same token.
    async fn ensure_unchanged(&self) -> Outcome {
        let held = self.backend.inspect(&self.lease.name).await?.held;
        ensure_eq!(
            held.and_then(|held| held.token),
            Some(self.token),
            "the token in the store"
        );
        match self.backend.renew(&self.lease, &self.renewal()?).await? {
            Renewed::Extended { token, .. } => ensure_eq!(token, self.token, "the owner's token"),
            Renewed::NotHeld(reason) => fail!("the owner has lost the lock: {reason}"),
        }
        Ok(())
    }

    async fn release(self) -> Outcome {
        match self.backend.release(&self.lease).await? {
            ReleaseOutcome::Released { .. } => Ok(()),
            ReleaseOutcome::NotHeld => fail!("the owner could not release the lock"),
        }
    }
}

fn without_token(lease: &Lease) -> Lease {
    Lease::new(lease.name.clone(), lease.owner, None)
}

async fn other_owner_cannot_renew(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    for lease in [held.forged_lease(), without_token(&held.forged_lease())] {
        let answer = held.backend.renew(&lease, &held.renewal()?).await?;
        ensure!(
            matches!(answer, Renewed::NotHeld(_)),
            "a stranger's renewal: {answer:?}"
        );
    }
    held.ensure_unchanged().await?;
    held.release().await
}

async fn other_owner_cannot_release(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    for lease in [held.forged_lease(), without_token(&held.forged_lease())] {
        ensure_eq!(
            held.backend.release(&lease).await?,
            ReleaseOutcome::NotHeld,
            "a stranger's release"
        );
    }
    held.ensure_unchanged().await?;
    held.release().await
}

async fn other_owner_cannot_hand_over(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let answer = held
        .backend
        .hand_over(&held.forged_lease(), &held.request_by(OwnerId::new())?)
        .await?;
    match answer {
        HandOver::NotHeld(_) => {}
        other => fail!("a stranger's hand-over: {other:?}"),
    }
    held.ensure_unchanged().await?;
    held.release().await
}

async fn other_owner_cannot_acquire(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    for _ in 0..3 {
        let answer = held
            .backend
            .try_acquire(&held.request_by(OwnerId::new())?)
            .await?;
        ensure!(answer.acquired().is_none(), "granted to a second owner");
    }
    held.ensure_unchanged().await?;
    held.release().await
}

async fn repeated_acquire_keeps_the_token(cx: Context) -> Outcome {
    let ttl = cx.kept_ttl();
    let held = DirectHold::new(&cx, "a", ttl).await?;
    let start = now();
    // Each repeated request restarts the lease, so the lock stays held for longer than its first
    // TTL.
    while now().since(start) < 2 * ttl {
        let Some(again) = held
            .backend
            .try_acquire(&held.request_by(held.asked_by)?)
            .await?
            .acquired()
        else {
            fail!("an owner is refused its own lock");
        };
        ensure_eq!(again.token, held.token, "the token of a repeated grant");
        sleep_until(now() + ttl / 4).await;
    }
    held.ensure_unchanged().await?;
    held.release().await
}

async fn renewal_creates_nothing(cx: Context) -> Outcome {
    let (backend, name) = (cx.backend().await?, cx.lock_name("never held")?);
    let lease = Lease::new(name.clone(), OwnerId::new(), None);
    let renewal = Renewal::plain(Ttl::new(cx.long_ttl())?);
    let answer = backend.renew(&lease, &renewal).await?;
    ensure!(
        matches!(answer, Renewed::NotHeld(_)),
        "renewal of a lock that never was: {answer:?}"
    );
    // A renewal of a released lock is refused too.
    let held = DirectHold::new(&cx, "released", cx.long_ttl()).await?;
    let (lease, token) = (held.lease.clone(), held.token);
    held.release().await?;
    let answer = backend.renew(&lease, &renewal).await?;
    ensure!(
        matches!(answer, Renewed::NotHeld(_)),
        "renewal of released token {token}: {answer:?}"
    );
    for name in [&name, &lease.name] {
        ensure!(
            backend.inspect(name).await?.held.is_none(),
            "{name:?} is free"
        );
    }
    Ok(())
}

async fn renewal_keeps_the_token(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    for lease in [held.lease.clone(), without_token(&held.lease)] {
        match held.backend.renew(&lease, &held.renewal()?).await? {
            Renewed::Extended {
                token, valid_for, ..
            } => {
                ensure_eq!(token, held.token, "the token of a renewal");
                ensure!(!valid_for.is_zero(), "valid for {valid_for:?}");
            }
            Renewed::NotHeld(reason) => fail!("an owner's renewal was refused: {reason}"),
        }
    }
    held.release().await
}

async fn hand_over_is_one_step(cx: Context) -> Outcome {
    let mut held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    for _ in 0..3 {
        let mut next = held.request_by(OwnerId::new())?;
        next.holder = HolderLabel::new("the next one")?;
        match held.backend.hand_over(&held.lease, &next).await? {
            HandOver::Done(grant) => {
                ensure!(
                    grant.token > held.token,
                    "token {} was handed over as {}",
                    held.token,
                    grant.token
                );
                let answer = held.backend.renew(&held.lease, &held.renewal()?).await?;
                ensure!(
                    matches!(answer, Renewed::NotHeld(_)),
                    "the former owner can still renew: {answer:?}"
                );
                ensure_eq!(
                    held.backend.release(&held.lease).await?,
                    ReleaseOutcome::NotHeld,
                    "the former owner's release"
                );
                held.lease = Lease::new(held.lease.name, next.owner, Some(grant.token));
                held.token = grant.token;
            }
            other => fail!("an owner's hand-over: {other:?}"),
        }
        held.ensure_unchanged().await?;
        let shown = held.backend.inspect(&held.lease.name).await?.held;
        ensure_eq!(
            shown.map(|held| held.holder).as_deref(),
            Some("the next one"),
            "the label after a hand-over"
        );
    }
    held.release().await
}

async fn hand_over_needs_a_live_lease(cx: Context) -> Outcome {
    let ttl = cx.short_ttl();
    let held = DirectHold::new(&cx, "a", ttl).await?;
    sleep_until(now() + cx.freed_within(ttl)).await;
    let answer = held
        .backend
        .hand_over(&held.lease, &held.request_by(OwnerId::new())?)
        .await?;
    match answer {
        HandOver::NotHeld(_) => {}
        other => fail!("the hand-over of an expired lock: {other:?}"),
    }
    ensure!(
        held.backend.inspect(&held.lease.name).await?.held.is_none(),
        "still free"
    );
    Ok(())
}

async fn hand_over_is_unsupported(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let next = held.request_by(OwnerId::new())?;
    for lease in [&held.lease, &held.forged_lease()] {
        match held.backend.hand_over(lease, &next).await? {
            HandOver::Unsupported => {}
            other => fail!("a hand-over that the store does not claim to have: {other:?}"),
        }
        held.ensure_unchanged().await?;
    }
    held.release().await
}

async fn repeated_attempt_keeps_the_token(cx: Context) -> Outcome {
    let (backend, name, owner) = (cx.backend().await?, cx.name("a"), OwnerId::new());
    let mut contender = backend
        .contend(&request(&name, owner, cx.long_ttl())?)
        .await?;
    let Some(first) = contender.attempt().await?.acquired() else {
        fail!("the lock should be free")
    };
    let Some(again) = contender.attempt().await?.acquired() else {
        fail!("an owner is refused its own lock")
    };
    ensure_eq!(again.token, first.token, "the token of a repeated grant");
    contender.leave().await?;
    let owner = first.owner.unwrap_or(owner);
    let lease = Lease::new(LockName::new(&name)?, owner, Some(first.token));
    ensure_eq!(
        backend
            .inspect(&lease.name)
            .await?
            .held
            .and_then(|held| held.token),
        Some(first.token),
        "leaving the queue does not release what was granted"
    );
    ensure!(
        matches!(
            backend.release(&lease).await?,
            ReleaseOutcome::Released { .. }
        ),
        "released by its owner"
    );
    Ok(())
}

async fn contender_gets_the_lock_on_release(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let other = cx.backend().await?;
    let owner = OwnerId::new();
    let mut contender = other.contend(&held.request_by(owner)?).await?;
    ensure!(
        contender.attempt().await?.acquired().is_none(),
        "granted to a second owner"
    );
    let (token, name) = (held.token, held.lease.name.clone());
    // The case drops this wait after 20 ms. The drop must not lose the wake-up that the release
    // causes.
    let _ = within(
        Duration::from_millis(20),
        contender.wait(Duration::from_secs(5)),
    )
    .await;
    held.release().await?;
    let granted = soon("the contender is granted the lock", async {
        loop {
            if let Some(grant) = contender.attempt().await?.acquired() {
                return Outcome::Ok(grant);
            }
            contender.wait(Duration::from_secs(1)).await;
        }
    })
    .await??;
    ensure!(granted.token > token, "tokens rise");
    contender.leave().await?;
    let owner = granted.owner.unwrap_or(owner);
    let lease = Lease::new(name, owner, Some(granted.token));
    ensure!(
        matches!(
            other.release(&lease).await?,
            ReleaseOutcome::Released { .. }
        ),
        "released by its owner"
    );
    Ok(())
}

async fn queue_entry_serves_another_owner(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let (backend, joined, asked_by) = (cx.backend().await?, OwnerId::new(), OwnerId::new());
    let mut contender = backend.contend(&held.request_by(joined)?).await?;
    ensure!(
        contender.attempt_as(asked_by).await?.acquired().is_none(),
        "granted to a second owner"
    );
    let (before, name, ttl) = (held.token, held.lease.name.clone(), held.ttl);
    held.release().await?;
    // A store that reserves a free lock for the first queue entry has reserved it for this one. So
    // no second attempt is needed.
    let Some(grant) = contender.attempt_as(asked_by).await?.acquired() else {
        fail!("the lock is free, and nobody else waits for it");
    };
    let token = grant.token;
    ensure!(token > before, "tokens rise");
    contender.leave().await?;
    let owner = grant.owner.unwrap_or(asked_by);
    let next = DirectHold {
        lease: Lease::new(name.clone(), owner, Some(token)),
        backend,
        asked_by,
        token,
        ttl,
    };
    next.ensure_unchanged().await?;
    let stranger = Lease::new(name, joined, None);
    let answer = next.backend.renew(&stranger, &next.renewal()?).await?;
    ensure!(
        matches!(answer, Renewed::NotHeld(_)),
        "a renewal by the owner that only joined the queue: {answer:?}"
    );
    next.release().await
}

async fn other_owner_at_an_entry_is_unsupported(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let other = cx.backend().await?;
    let mut contender = other.contend(&held.request_by(OwnerId::new())?).await?;
    let attempt = contender.attempt_as(OwnerId::new()).await;
    expect_error("attempt_as", attempt, &[ErrorKind::Unsupported])?;
    held.ensure_unchanged().await?;
    contender.leave().await?;
    held.release().await
}

async fn contender_that_left_blocks_nobody(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let other = cx.backend().await?;
    let mut contender = other.contend(&held.request_by(OwnerId::new())?).await?;
    ensure!(
        contender.attempt().await?.acquired().is_none(),
        "granted to a second owner"
    );
    contender.leave().await?;
    let name = held.lease.name.clone();
    eventually("nobody waits", SOON, || async {
        Ok(other.inspect(&name).await?.waiters.unwrap_or(0) == 0)
    })
    .await?;
    let third = held.request_by(OwnerId::new())?;
    held.release().await?;
    let Some(grant) = other.try_acquire(&third).await?.acquired() else {
        fail!("the lock should be free for a third owner");
    };
    let owner = grant.owner_after(&third);
    other
        .release(&Lease::new(name, owner, Some(grant.token)))
        .await?;
    Ok(())
}

async fn owner_id_is_never_shown(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let uuid = held.lease.owner.as_uuid();
    let secrets = [uuid.hyphenated().to_string(), uuid.simple().to_string()];
    let busy = held
        .backend
        .try_acquire(&held.request_by(OwnerId::new())?)
        .await?;
    let shown = [
        format!("{:?}", held.lease),
        format!("{:?}", held.request_by(held.lease.owner)?),
        format!("{:?}", held.backend.inspect(&held.lease.name).await?),
        format!("{:?}", held.backend.list(cx.prefix(), None, 10).await?),
        format!("{busy:?}"),
        format!("{:?}", held.backend),
    ];
    for text in shown {
        ensure!(
            !secrets
                .iter()
                .any(|secret| text.to_lowercase().contains(secret.as_str())),
            "the owner is shown in {text}"
        );
    }
    held.release().await
}

async fn reopened_handle_shares_the_store(cx: Context) -> Outcome {
    let held = DirectHold::new(&cx, "a", cx.long_ttl()).await?;
    let second = held.backend.reopen().await?;
    ensure_eq!(
        second.capabilities(),
        held.backend.capabilities(),
        "capabilities of the second handle"
    );
    ensure!(
        second
            .try_acquire(&held.request_by(OwnerId::new())?)
            .await?
            .acquired()
            .is_none(),
        "granted to a second owner"
    );
    let renewed = second.renew(&held.lease, &held.renewal()?).await?;
    ensure!(
        matches!(renewed, Renewed::Extended { .. }),
        "the owner's renewal by the second handle: {renewed:?}"
    );
    let released = second.release(&held.lease).await?;
    ensure!(
        matches!(released, ReleaseOutcome::Released { .. }),
        "the owner's release by the second handle: {released:?}"
    );
    ensure!(
        held.backend.inspect(&held.lease.name).await?.held.is_none(),
        "free for the first handle too"
    );
    second.close().await;
    // The first handle still works after the second one was closed.
    held.backend.inspect(&held.lease.name).await?;
    Ok(())
}
