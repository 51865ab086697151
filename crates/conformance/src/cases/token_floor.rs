//! Property: a renewal can raise the token of its lock, in the step that checks the owner. Every
//! later grant of the name has a higher token, whatever happened in between.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, DistLock, ErrorKind, FencingToken, Forced, HandOver, Lease, LockName, OwnerId,
    ReleaseOutcome, Renewal, Renewed, Ttl,
};
use futures_util::future::{join_all, try_join_all};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{Context, now, request, sleep_until},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        token_floor::renewal_raises_the_token,
        "a renewal raises the token of its lock to its floor, and extends the lease",
        TokenFloor
    ),
    case!(
        token_floor::raised_token_stays,
        "later renewals, repeated grants and lower floors leave a raised token as it is",
        TokenFloor
    ),
    case!(
        token_floor::next_grant_is_above_after_a_release,
        "after a release, the token of the next grant is above the floor",
        TokenFloor
    ),
    case!(
        token_floor::next_grant_is_above_after_an_expiry,
        "after the end of the lease, the token of the next grant is above the floor",
        TokenFloor
    ),
    case!(
        token_floor::next_grant_is_above_after_a_forced_release,
        "after a forced release, the token of the next grant is above the floor",
        TokenFloor
    ),
    case!(
        token_floor::next_owner_of_a_hand_over_is_above,
        "a lock with a raised token is handed over with a token above the floor",
        TokenFloor,
        HandOver
    ),
    case!(
        token_floor::only_the_holder_raises,
        "a renewal by another owner, or of a lease that has ended, raises nothing",
        TokenFloor
    ),
    case!(
        token_floor::each_renewal_has_its_own_floor,
        "renewals that are sent at once raise each token to its own floor",
        TokenFloor
    ),
    case!(
        token_floor::missing_floor_is_unsupported,
        "a store that cannot raise tokens refuses a renewal with a floor, and changes nothing",
        NoTokenFloor
    ),
];

/// The distance of a floor from the present token. Tokens follow the store's clock in microseconds,
/// so the clock reaches such a floor only minutes after the end of a case.
const FAR: u64 = 300_000_000;

/// The distance of a floor that no renewal may raise a token to. Several names can share a counter,
/// so it is higher than all floors of other cases together.
const OUT_OF_REACH: u64 = 1000 * FAR;

/// One lock of a case, used through the backend, so nothing renews the lock.
struct Lock {
    backend: Arc<dyn DistLock>,
    name: LockName,
    ttl: Duration,
}

/// A lock that is held, and its token.
struct Held {
    lock: Lock,
    owner: OwnerId,
    token: FencingToken,
}

impl Lock {
    async fn new(cx: &Context, tail: &str, ttl: Duration) -> Outcome<Self> {
        Ok(Self {
            backend: cx.backend().await?,
            name: cx.lock_name(tail)?,
            ttl,
        })
    }

    fn request(&self, owner: OwnerId) -> Outcome<AcquireRequest> {
        request(self.name.as_str(), owner, self.ttl)
    }

    /// Takes the lock, which must be free.
    async fn take(self) -> Outcome<Held> {
        let owner = OwnerId::new();
        let attempt = self.backend.try_acquire(&self.request(owner)?).await?;
        let Some(grant) = attempt.acquired() else {
            fail!("the lock should be free");
        };
        let (token, owner) = (grant.token, grant.owner.unwrap_or(owner));
        let lock = self;
        Ok(Held { lock, owner, token })
    }

    async fn token_shown(&self) -> Outcome<Option<FencingToken>> {
        let held = self.backend.inspect(&self.name).await?.held;
        Ok(held.and_then(|held| held.token))
    }
}

impl Held {
    /// A floor at this distance above the token.
    fn floor(&self, above: u64) -> Outcome<FencingToken> {
        Ok(FencingToken::new(self.token.get() + above)?)
    }

    fn lease(&self, owner: OwnerId) -> Lease {
        Lease::new(self.lock.name.clone(), owner, None)
    }

    fn raising(&self, floor: FencingToken) -> Outcome<Renewal> {
        Ok(Renewal::raising(Ttl::new(self.lock.ttl)?, floor))
    }

    /// Sends a renewal with this floor, or without a floor. The owner must hold the lock. Returns
    /// the token in the answer.
    async fn renew(&self, floor: Option<FencingToken>) -> Outcome<FencingToken> {
        let renewal = match floor {
            Some(floor) => self.raising(floor)?,
            None => Renewal::plain(Ttl::new(self.lock.ttl)?),
        };
        let lease = self.lease(self.owner);
        match self.lock.backend.renew(&lease, &renewal).await? {
            Renewed::Extended {
                token, valid_for, ..
            } => {
                ensure!(!valid_for.is_zero(), "valid for {valid_for:?}");
                Ok(token)
            }
            Renewed::NotHeld(reason) => fail!("an owner's renewal was refused: {reason}"),
        }
    }

    /// Raises the token far above the store's clock, and returns the floor.
    async fn raise_far(&mut self) -> Outcome<FencingToken> {
        let floor = self.floor(FAR)?;
        self.token = self.renew(Some(floor)).await?;
        ensure_eq!(self.token, floor, "the raised token");
        Ok(floor)
    }

    async fn release(self) -> Outcome<Lock> {
        let lease = self.lease(self.owner);
        match self.lock.backend.release(&lease).await? {
            ReleaseOutcome::Released { .. } => Ok(self.lock),
            ReleaseOutcome::NotHeld => fail!("the owner could not release the lock"),
        }
    }
}

/// Takes the free lock again, and checks that its token is above the floor.
async fn ensure_next_is_above(lock: Lock, floor: FencingToken) -> Outcome {
    let next = lock.take().await?;
    ensure!(
        next.token > floor,
        "token {} was granted after a floor of {floor}",
        next.token
    );
    next.release().await.map(drop)
}

async fn renewal_raises_the_token(cx: Context) -> Outcome {
    let ttl = cx.kept_ttl();
    let mut held = Lock::new(&cx, "a", ttl).await?.take().await?;
    let before = held.token;
    // A renewal that only raised the token would let the lease end during the second sleep.
    sleep_until(now() + ttl * 5 / 8).await;
    let floor = held.raise_far().await?;
    sleep_until(now() + ttl * 5 / 8).await;
    ensure_eq!(
        held.lock.token_shown().await?,
        Some(floor),
        "the token in the store"
    );
    let with_token = |token| {
        let mut lease = held.lease(held.owner);
        lease.token = Some(token);
        lease
    };
    let plain = Renewal::plain(Ttl::new(ttl)?);
    let backend = &held.lock.backend;
    let by_old_token = backend.renew(&with_token(before), &plain).await?;
    ensure!(
        matches!(by_old_token, Renewed::NotHeld(_)),
        "a renewal with the token from before: {by_old_token:?}"
    );
    let by_new_token = backend.renew(&with_token(floor), &plain).await?;
    ensure!(
        matches!(by_new_token, Renewed::Extended { token, .. } if token == floor),
        "a renewal with the raised token: {by_new_token:?}"
    );
    held.release().await.map(drop)
}

async fn raised_token_stays(cx: Context) -> Outcome {
    let mut held = Lock::new(&cx, "a", cx.long_ttl()).await?.take().await?;
    let first = held.token;
    ensure_eq!(
        held.renew(Some(first)).await?,
        first,
        "the token after a floor that is equal to it"
    );
    let floor = held.raise_far().await?;
    let lower = FencingToken::new(floor.get() - 1)?;
    let least = FencingToken::new(1)?;
    for again in [None, Some(floor), Some(lower), Some(least), None] {
        ensure_eq!(held.renew(again).await?, floor, "the token after {again:?}");
    }
    let repeated = held.lock.request(held.owner)?;
    let Some(grant) = held.lock.backend.try_acquire(&repeated).await?.acquired() else {
        fail!("an owner is refused its own lock");
    };
    ensure_eq!(grant.token, floor, "the token of a repeated grant");
    ensure_eq!(
        held.lock.token_shown().await?,
        Some(floor),
        "the token in the store"
    );
    ensure_next_is_above(held.release().await?, floor).await
}

async fn next_grant_is_above_after_a_release(cx: Context) -> Outcome {
    let mut held = Lock::new(&cx, "a", cx.long_ttl()).await?.take().await?;
    let floor = held.raise_far().await?;
    let mut free = held.release().await?;
    // The name keeps the floor for more than one grant.
    for _ in 0..3 {
        let next = free.take().await?;
        ensure!(
            next.token > floor,
            "token {} was granted after a floor of {floor}",
            next.token
        );
        free = next.release().await?;
    }
    Ok(())
}

async fn next_grant_is_above_after_an_expiry(cx: Context) -> Outcome {
    let ttl = cx.kept_ttl();
    let mut held = Lock::new(&cx, "a", ttl).await?.take().await?;
    let floor = held.raise_far().await?;
    sleep_until(now() + cx.freed_within(ttl)).await;
    ensure_next_is_above(held.lock, floor).await
}

async fn next_grant_is_above_after_a_forced_release(cx: Context) -> Outcome {
    let mut held = Lock::new(&cx, "a", cx.long_ttl()).await?.take().await?;
    let before = held.token;
    let floor = held.raise_far().await?;
    let lock = held.lock;
    // An operator who looked at the lock before the token was raised has to look again.
    for (expected, forced) in [
        (before, Forced::OtherToken(floor)),
        (floor, Forced::Released),
    ] {
        ensure_eq!(
            lock.backend.force_release(&lock.name, expected).await?,
            forced,
            "a forced release with token {expected}"
        );
    }
    ensure_next_is_above(lock, floor).await
}

async fn next_owner_of_a_hand_over_is_above(cx: Context) -> Outcome {
    let mut held = Lock::new(&cx, "a", cx.long_ttl()).await?.take().await?;
    let floor = held.raise_far().await?;
    let next = held.lock.request(OwnerId::new())?;
    let lease = held.lease(held.owner);
    let HandOver::Done(grant) = held.lock.backend.hand_over(&lease, &next).await? else {
        fail!("an owner's hand-over was refused");
    };
    ensure!(
        grant.token > floor,
        "token {} was handed over after a floor of {floor}",
        grant.token
    );
    (held.owner, held.token) = (next.owner, grant.token);
    held.release().await.map(drop)
}

/// Checks that a renewal with this lease is refused.
async fn ensure_refused(what: &str, lock: &Lock, lease: &Lease, renewal: &Renewal) -> Outcome {
    let answer = lock.backend.renew(lease, renewal).await?;
    ensure!(matches!(answer, Renewed::NotHeld(_)), "{what}: {answer:?}");
    Ok(())
}

/// Takes the free lock again, and checks that nobody has raised its counter to the floor.
async fn ensure_next_is_below(lock: Lock, floor: FencingToken) -> Outcome {
    let next = lock.take().await?;
    ensure!(
        next.token < floor,
        "token {} was granted, and nobody raised it to {floor}",
        next.token
    );
    next.release().await.map(drop)
}

async fn only_the_holder_raises(cx: Context) -> Outcome {
    let held = Lock::new(&cx, "stranger", cx.long_ttl()).await?;
    let held = held.take().await?;
    let floor = held.floor(OUT_OF_REACH)?;
    let renewal = held.raising(floor)?;
    let mut with_token = held.lease(OwnerId::new());
    with_token.token = Some(held.token);
    for lease in [held.lease(OwnerId::new()), with_token] {
        ensure_refused("a stranger's renewal", &held.lock, &lease, &renewal).await?;
    }
    ensure_eq!(
        held.renew(None).await?,
        held.token,
        "the holder's token after a stranger's renewals"
    );
    let lease = held.lease(held.owner);
    let free = held.release().await?;
    ensure_refused("a renewal after the release", &free, &lease, &renewal).await?;
    ensure_next_is_below(free, floor).await?;

    let ttl = cx.short_ttl();
    let mut held = Lock::new(&cx, "expired", ttl).await?.take().await?;
    let (floor, lease) = (held.floor(OUT_OF_REACH)?, held.lease(held.owner));
    let renewal = held.raising(floor)?;
    sleep_until(now() + cx.freed_within(ttl)).await;
    ensure_refused("a renewal after the expiry", &held.lock, &lease, &renewal).await?;
    held.lock.ttl = cx.long_ttl();
    ensure_next_is_below(held.lock, floor).await
}

async fn each_renewal_has_its_own_floor(cx: Context) -> Outcome {
    // One handle, so that a backend with batches sends several renewals in one request.
    let (backend, ttl) = (cx.backend().await?, cx.long_ttl());
    let takes = (0..24).map(|number| {
        let lock = cx.lock_name(&number.to_string()).map(|name| Lock {
            backend: Arc::clone(&backend),
            name,
            ttl,
        });
        async move { lock?.take().await }
    });
    let held = try_join_all(takes).await?;
    let floors = held.iter().zip(1_u64..).map(|(held, number)| {
        // A third of the renewals has no floor.
        let above = (!number.is_multiple_of(3)).then(|| held.floor(FAR + number));
        above.transpose()
    });
    let floors = floors.collect::<Outcome<Vec<_>>>()?;
    let mut renewals = Vec::new();
    for (held, floor) in held.iter().zip(&floors) {
        renewals.push(held.renew(*floor));
    }
    let answers = join_all(renewals).await;
    for ((held, floor), answer) in held.into_iter().zip(floors).zip(answers) {
        let name = held.lock.name.clone();
        let expected = floor.unwrap_or(held.token);
        ensure_eq!(answer?, expected, "the token of {name:?}");
        ensure_eq!(
            held.lock.token_shown().await?,
            Some(expected),
            "the token of {name:?} in the store"
        );
        ensure_next_is_above(held.release().await?, expected).await?;
    }
    Ok(())
}

async fn missing_floor_is_unsupported(cx: Context) -> Outcome {
    let held = Lock::new(&cx, "a", cx.long_ttl()).await?.take().await?;
    let renewal = held.raising(held.floor(1)?)?;
    for owner in [held.owner, OwnerId::new()] {
        let lease = held.lease(owner);
        match held.lock.backend.renew(&lease, &renewal).await {
            Err(error) => ensure_eq!(
                error.kind(),
                ErrorKind::Unsupported,
                "the kind of the error ({error})"
            ),
            Ok(answer) => fail!("a renewal that the store does not claim to know: {answer:?}"),
        }
    }
    ensure_eq!(held.renew(None).await?, held.token, "the owner's token");
    held.release().await.map(drop)
}
