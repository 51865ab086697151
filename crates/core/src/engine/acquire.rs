//! An acquire: first the local queue, then a claim at the store, then a lease.
//!
//! This module owns these steps of one acquire, its metrics, and the text of a time-out.
//! Invariants: only a task that has the local turn asks the store for its name, with the one
//! exception of `try_acquire`, see there; every grant that becomes a lease is in the keeper's
//! schedule before its caller sees it. The module never renews or releases a lease.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    clock::Moment,
    contract::{AcquireRequest, Attempt, Grant, Lease},
    engine::{
        bounded::{Wait, bounded},
        claim::Claim,
        clean_up::release_until_expiry,
        lease_state::{LeaseState, Renew},
        lifecycle::closed_error,
        local_queue::{Entered, HandedOver, LocalTurn, NextStep},
        meters::Meters,
        parts::LockerParts,
    },
    types::{
        error::{Error, ErrorKind, Remedy, Result},
        ident::HolderInfo,
        ttl::margin,
    },
};

/// The longest time for which a wait that has ended still reads the holder.
const LONGEST_READ: Duration = Duration::from_secs(1);

/// One lock that a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct WantedLock {
    pub(crate) request: AcquireRequest,
    pub(crate) wait: Wait,
    pub(crate) renew: Renew,
    /// Whether the caller gets an error after a few attempts while the store is unreachable,
    /// instead of waiting until the store answers again.
    pub(crate) gives_up: bool,
    /// The metrics of this name.
    pub(crate) meters: Arc<Meters>,
}

/// A lock that was granted, before its lease is in the keeper's schedule.
pub(crate) struct WonLock {
    pub(crate) request: AcquireRequest,
    pub(crate) turn: Option<LocalTurn>,
    pub(crate) grant: Grant,
    pub(crate) sent: Moment,
    pub(crate) granted: Moment,
    /// Whether an earlier request of the same owner was never answered. Such a request may reach
    /// the store late and set the lease to its own TTL, which may end sooner.
    pub(crate) has_unanswered: bool,
}

impl WonLock {
    /// Creates the lease and puts it into the keeper's schedule. Returns the lease, and the moment
    /// at which this process knew of the grant.
    pub(crate) fn into_lease_state(
        self,
        parts: &Arc<LockerParts>,
        wanted: &WantedLock,
    ) -> (Arc<LeaseState>, Moment) {
        let turn = if parts.queues_at_the_store() {
            // The drop passes the turn on, so the next task of this process joins the store queue
            // while this task holds the lock.
            drop(self.turn);
            None
        } else {
            self.turn
        };
        let lease_state = LeaseState::new(
            &self.request,
            &self.grant,
            self.sent,
            wanted.renew,
            turn,
            parts.timing.clock(),
            &wanted.meters,
        );
        if self.has_unanswered {
            lease_state.note_unanswered_ttl(self.request.ttl);
        }
        parts.adopt(&lease_state, &self.grant.loss);
        (lease_state, self.granted)
    }
}

/// Takes the lock, and waits for the lock at most as long as the caller wants.
pub(crate) async fn acquire(
    parts: &Arc<LockerParts>,
    wanted: WantedLock,
) -> Result<Arc<LeaseState>> {
    let _running = parts.lifecycle.count_acquire();
    let started = parts.timing.now();
    let result = wait_for_lock(parts, &wanted).await;
    let meters = &wanted.meters;
    match &result {
        Ok((lease_state, granted)) => {
            meters.acquired.increment(1);
            let took = granted.since(started);
            meters.acquire_seconds.record(took.as_secs_f64());
            tracing::debug!(lock = ?lease_state.name(), token = %lease_state.token(), "acquired");
        }
        Err(error) if error.kind() == ErrorKind::Timeout => meters.timed_out.increment(1),
        Err(_) => meters.failed.increment(1),
    }
    result.map(|(lease_state, _)| lease_state).map_err(|error| {
        error
            .on(parts.backend_name())
            .during("acquire")
            .about(&wanted.request.name)
    })
}

/// Makes one attempt, without waiting.
pub(crate) async fn try_acquire(
    parts: &Arc<LockerParts>,
    wanted: WantedLock,
) -> Result<Attempt<Arc<LeaseState>>> {
    let _running = parts.lifecycle.count_acquire();
    parts.lifecycle.check_open()?;
    let turn = match parts.queues.try_enter(&wanted.request.name) {
        Ok(turn) => Some(turn),
        Err(Some(holder)) => {
            wanted.meters.busy.increment(1);
            return Ok(Attempt::Busy(Some(holder)));
        }
        // Another task of this process has the turn, but no task is known to hold the lock. So this
        // task asks the store without the local turn.
        Err(None) => None,
    };
    let name = wanted.request.name.clone();
    let claim = Claim::new(parts, &wanted, turn, None, false);
    let result = claim.contend(false).await;
    match result {
        Ok(Attempt::Acquired(won)) => {
            wanted.meters.acquired.increment(1);
            Ok(Attempt::Acquired(won.into_lease_state(parts, &wanted).0))
        }
        Ok(Attempt::Busy(holder)) => {
            wanted.meters.busy.increment(1);
            Ok(Attempt::Busy(find_holder(parts, &wanted, holder).await))
        }
        Err(error) => {
            wanted.meters.failed.increment(1);
            Err(error
                .on(parts.backend_name())
                .during("try_acquire")
                .about(&name))
        }
    }
}

/// Waits for the lock. Returns its lease, and the moment at which this process knew of the grant.
async fn wait_for_lock(
    parts: &Arc<LockerParts>,
    wanted: &WantedLock,
) -> Result<(Arc<LeaseState>, Moment)> {
    parts.lifecycle.check_open()?;
    let mut waiting = None;
    let turn = match parts.queues.enter(&wanted.request) {
        Entered::First(turn) => NextStep::Ask {
            turn,
            step_aside: false,
        },
        Entered::Behind(place) => {
            waiting = (!wanted.wait.is_zero()).then(|| {
                tracing::debug!(lock = ?wanted.request.name, "waits behind a task of this process");
                wanted.meters.begin_to_wait()
            });
            let mut closed = parts.lifecycle.closing();
            let turn = tokio::select! {
                biased;
                turn = place => Some(turn),
                () = wanted.wait.ended(&**parts.timing.clock()) => None,
                _ = closed.wait_for(|closed| *closed) => return Err(closed_error()),
            };
            match turn {
                Some(turn) => turn,
                None => return Err(Box::pin(ended_in_local_queue(parts, wanted)).await),
            }
        }
    };
    let (turn, step_aside, has_unanswered) = match turn {
        NextStep::Ask { turn, step_aside } => (turn, step_aside, false),
        NextStep::TakeOver(handed) => match pick_up_hand_over(parts, handed) {
            Ok(won) => return Ok(won.into_lease_state(parts, wanted)),
            // The hand-over has an unknown outcome, or its deadline passed before this task was
            // polled. The task asks the store as the same owner, so the store recognises a grant
            // that this owner already has.
            Err(turn) => (turn, false, true),
        },
    };
    let claim = Claim::new(parts, wanted, Some(turn), waiting, has_unanswered);
    match claim.contend(step_aside).await? {
        Attempt::Acquired(won) => Ok(won.into_lease_state(parts, wanted)),
        Attempt::Busy(holder) => {
            let holder = find_holder(parts, wanted, holder).await;
            Err(not_free_in_time(parts, wanted, holder))
        }
    }
}

/// The error of a wait that ended behind other tasks of this process.
async fn ended_in_local_queue(parts: &LockerParts, wanted: &WantedLock) -> Error {
    let outage = parts.queues.outage(&wanted.request.name);
    if let (Some(error), Some(asked)) = (outage, wanted.wait.asked) {
        return store_unreachable(asked, error);
    }
    let holder = parts.queues.believed_holder(&wanted.request.name);
    let holder = find_holder(parts, wanted, holder).await;
    not_free_in_time(parts, wanted, holder)
}

/// Picks up a lock that was handed over. Returns `Err` with the turn when the task must ask the
/// store instead.
fn pick_up_hand_over(
    parts: &Arc<LockerParts>,
    mut handed: HandedOver,
) -> Result<WonLock, LocalTurn> {
    let Some((turn, grant, request)) = handed.unclaimed.take() else {
        unreachable!("a hand-over is picked up once");
    };
    let Some((grant, sent)) = grant else {
        return Err(turn);
    };
    match before_deadline(parts.timing.now(), &grant, sent) {
        Some(granted) => Ok(WonLock {
            request,
            turn: Some(turn),
            grant,
            sent,
            granted,
            has_unanswered: false,
        }),
        None => {
            // The task asks the store as the owner of its request, and would find the lock held by
            // this other owner.
            if let Some(owner) = grant.owner {
                let until = parts.timing.now() + request.ttl.duration();
                let lease = Lease::new(request.name, owner, None);
                let releasing = release_until_expiry(Arc::clone(parts), lease, until);
                parts.keeper.spawn_awaited(releasing);
            }
            Err(turn)
        }
    }
}

/// Returns `now` if the deadline of the grant has not passed at `now`.
pub(crate) fn before_deadline(now: Moment, grant: &Grant, sent: Moment) -> Option<Moment> {
    let from = grant.counted_from(sent);
    (now < from + (grant.valid_for - margin(grant.valid_for))).then_some(now)
}

/// The holder for an answer to the caller: `seen`, or for a fair caller that has seen none, the one
/// that the store shows. Such a caller makes an attempt only when it is first, and a read passes
/// nobody.
async fn find_holder(
    parts: &LockerParts,
    wanted: &WantedLock,
    seen: Option<HolderInfo>,
) -> Option<HolderInfo> {
    if seen.is_some() || !wanted.request.in_order {
        return seen;
    }
    let clock = &**parts.timing.clock();
    let limit = wanted.wait.left_at_store(clock.now()).min(LONGEST_READ);
    // Boxed, as few calls come here: the future of every acquire would be larger otherwise.
    let shown = Box::pin(bounded(
        clock,
        limit,
        parts.backend.inspect(&wanted.request.name),
    ));
    // Without the answer, the error only names no holder.
    shown.await.ok()?.held
}

/// The error of a wait that ended without the lock, with the holder that was seen last.
fn not_free_in_time(parts: &LockerParts, wanted: &WantedLock, holder: Option<HolderInfo>) -> Error {
    let waited = match wanted.wait.asked {
        Some(Duration::ZERO) => "busy".to_owned(),
        Some(wait) => format!("not free within {wait:?}"),
        None => "not free".to_owned(),
    };
    let who = match &holder {
        Some(holder) => describe(holder, parts.timing.clock().wall()),
        None => "the store does not say who holds it".to_owned(),
    };
    Error::new(ErrorKind::Timeout, format!("{waited}: {who}"))
        .held_by(holder)
        .with_remedy(Remedy::WaitLonger)
}

/// The error for a wait that ended while the store was unreachable.
pub(crate) fn store_unreachable(wait: Duration, error: Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the store was away when the wait of {wait:?} ended"),
    )
    .caused_by(error)
}

/// Describes a holder, for example: `held by ci@host:12 (token 7) for 3.2s, until 6.8s from now
/// unless renewed`.
fn describe(holder: &HolderInfo, now: SystemTime) -> String {
    use std::fmt::Write as _;
    let rounded =
        |time: Duration| Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let mut text = format!("held by {}", holder.holder.escape_debug());
    if let Some(token) = holder.token {
        let _ = write!(text, " (token {token})");
    }
    if let Some(since) = holder
        .acquired_at
        .and_then(|at| now.duration_since(at).ok())
    {
        let _ = write!(text, " for {:?}", rounded(since));
    }
    if let Some(left) = holder.expires_in {
        let _ = write!(text, ", until {:?} from now unless renewed", rounded(left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_described_with_the_facts_that_are_known() {
        let mut holder = HolderInfo::new("ci@host:12");
        assert_eq!(
            describe(&holder, SystemTime::UNIX_EPOCH),
            "held by ci@host:12"
        );
        holder.token = crate::FencingToken::new(7).ok();
        holder.acquired_at = Some(SystemTime::UNIX_EPOCH);
        holder.expires_in = Some(Duration::from_millis(6800));
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(3_200_400);
        assert_eq!(
            describe(&holder, now),
            "held by ci@host:12 (token 7) for 3.2s, until 6.8s from now unless renewed"
        );
    }
}
