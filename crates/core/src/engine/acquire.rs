//! An acquire: first the local queue, then a claim at the store.
//!
//! This module owns these two steps of one acquire, and the metrics of the acquire. Invariant: only
//! a task that has the local turn asks the store for its name. The one exception is `try_acquire`,
//! see there. The module never renews or releases a lease.

use std::sync::Arc;

use crate::{
    contract::{Attempt, HolderInfo},
    engine::{
        acquire_errors::{not_free_in_time, store_unreachable},
        claim::Claim,
        clock::Moment,
        lease_state::LeaseState,
        lifecycle::closed_error,
        local_queue::{Entered, HandedOver, LocalTurn, NextStep},
        parts::LockerParts,
        wanted::{WantedLock, WonLock, before_deadline},
    },
    types::error::{Error, ErrorKind, Result},
};

/// Takes the lock, and waits for the lock at most as long as the caller wants.
pub(crate) async fn acquire(
    parts: &Arc<LockerParts>,
    wanted: WantedLock,
) -> Result<Arc<LeaseState>> {
    let _running = parts.lifecycle.count_acquire();
    let started = parts.timing.now();
    let result = wait_for_lock(parts, &wanted).await;
    let meters = &parts.meters;
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
            parts.meters.busy.increment(1);
            return Ok(Attempt::Busy(Some(holder)));
        }
        // Another task of this process has the turn, but no task is known to hold the lock. So this
        // task asks the store without the local turn.
        Err(None) => None,
    };
    let name = wanted.request.name.clone();
    let claim = Claim::new(parts, &wanted, turn, false);
    let result = claim.contend(false).await;
    match result {
        Ok(Attempt::Acquired(won)) => {
            parts.meters.acquired.increment(1);
            Ok(Attempt::Acquired(
                won.into_lease_state(parts, wanted.renew).0,
            ))
        }
        Ok(Attempt::Busy(holder)) => {
            parts.meters.busy.increment(1);
            Ok(Attempt::Busy(holder))
        }
        Err(error) => {
            parts.meters.failed.increment(1);
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
    let turn = match parts.queues.enter(&wanted.request) {
        Entered::First(turn) => NextStep::Ask {
            turn,
            step_aside: false,
        },
        Entered::Behind(place) => {
            let mut closed = parts.lifecycle.closing();
            tokio::select! {
                biased;
                turn = place => turn,
                () = wanted.wait.ended(&**parts.timing.clock()) => {
                    let outage = parts.queues.outage(&wanted.request.name);
                    if let (Some(error), Some(asked)) = (outage, wanted.wait.asked) {
                        return Err(store_unreachable(asked, error));
                    }
                    let holder = parts.queues.believed_holder(&wanted.request.name);
                    return Err(timeout_error(parts, wanted, holder.as_ref()));
                }
                _ = closed.wait_for(|closed| *closed) => return Err(closed_error()),
            }
        }
    };
    let (turn, step_aside, has_unanswered) = match turn {
        NextStep::Ask { turn, step_aside } => (turn, step_aside, false),
        NextStep::TakeOver(handed) => match pick_up_hand_over(parts, handed) {
            Ok(won) => return Ok(won.into_lease_state(parts, wanted.renew)),
            // The hand-over has an unknown outcome, or its deadline passed before this task was
            // polled. The task asks the store as the same owner, so the store recognises a grant
            // that this owner already has.
            Err(turn) => (turn, false, true),
        },
    };
    let claim = Claim::new(parts, wanted, Some(turn), has_unanswered);
    match claim.contend(step_aside).await? {
        Attempt::Acquired(won) => Ok(won.into_lease_state(parts, wanted.renew)),
        Attempt::Busy(holder) => Err(timeout_error(parts, wanted, holder.as_ref())),
    }
}

/// The error of a wait that ended without the lock.
fn timeout_error(parts: &LockerParts, wanted: &WantedLock, holder: Option<&HolderInfo>) -> Error {
    not_free_in_time(parts.timing.clock().wall(), wanted.wait.asked, holder)
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
        None => Err(turn),
    }
}
