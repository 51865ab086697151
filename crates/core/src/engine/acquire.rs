//! Taking a lock: the local line first, then one contender per process at the store.

use std::sync::Arc;

use crate::{
    client::locker::Inner,
    contract::Attempt,
    engine::{
        claim::{Claim, Waiting, Wanted, Won, in_time},
        clock::Moment,
        hold::Hold,
        queue::{Entered, Handed, Seat, Turn},
        refusal::{away, timeout},
    },
    types::error::{ErrorKind, Result},
};

/// Takes the lock, waiting for it as long as wanted.
pub(crate) async fn acquire(inner: &Arc<Inner>, wanted: Wanted) -> Result<Arc<Hold>> {
    let _asking = inner.asking();
    let started = inner.clock().now();
    let until = wanted.wait.map(|wait| started + wait);
    let result = wait_for(inner, &wanted, until).await;
    let meters = inner.meters();
    match &result {
        Ok((hold, granted)) => {
            meters.acquired.increment(1);
            let took = granted.since(started);
            meters.acquire_seconds.record(took.as_secs_f64());
            tracing::debug!(lock = ?hold.name(), token = %hold.token(), "acquired");
        }
        Err(error) if error.kind() == ErrorKind::Timeout => meters.timed_out.increment(1),
        Err(_) => meters.failed.increment(1),
    }
    result.map(|(hold, _)| hold).map_err(|error| {
        error
            .on(inner.backend_name())
            .during("acquire")
            .about(&wanted.request.name)
    })
}

/// One attempt, never waiting.
pub(crate) async fn try_acquire(inner: &Arc<Inner>, wanted: Wanted) -> Result<Attempt<Arc<Hold>>> {
    let _asking = inner.asking();
    inner.check_open()?;
    let seat = match inner.queues().try_enter(&wanted.request.name) {
        Ok(seat) => Some(seat),
        Err(Some(holder)) => {
            inner.meters().busy.increment(1);
            return Ok(Attempt::Busy(Some(holder)));
        }
        // Somebody of this process is on the way in or out, which says nothing about the lock: ask the store.
        Err(None) => None,
    };
    let name = wanted.request.name.clone();
    let claim = Claim::new(inner, &wanted, seat, false);
    let result = claim.contend(Waiting::Never, false).await;
    match result {
        Ok(Attempt::Acquired(won)) => {
            inner.meters().acquired.increment(1);
            Ok(Attempt::Acquired(won.hold(inner, wanted.renew).0))
        }
        Ok(Attempt::Busy(holder)) => {
            inner.meters().busy.increment(1);
            Ok(Attempt::Busy(holder))
        }
        Err(error) => {
            inner.meters().failed.increment(1);
            Err(error
                .on(inner.backend_name())
                .during("try_acquire")
                .about(&name))
        }
    }
}

/// The lock, and since when it was known to be held.
async fn wait_for(
    inner: &Arc<Inner>,
    wanted: &Wanted,
    until: Option<Moment>,
) -> Result<(Arc<Hold>, Moment)> {
    inner.check_open()?;
    let turn = match inner.queues().enter(&wanted.request) {
        Entered::First(seat) => Turn::Ask {
            seat,
            step_aside: false,
        },
        Entered::Behind(place) => {
            let mut closed = inner.closing();
            tokio::select! {
                biased;
                turn = place => turn,
                () = inner.sleep_until(until) => {
                    let away_now = inner.queues().is_away(&wanted.request.name);
                    if let (Some(error), Some(wait)) = (away_now, wanted.wait) {
                        return Err(away(wait, error));
                    }
                    let holder = inner.queues().believed_holder(&wanted.request.name);
                    return Err(timeout(inner, wanted, holder.as_ref()));
                }
                _ = closed.wait_for(|closed| *closed) => return Err(Inner::closed_error()),
            }
        }
    };
    let (seat, step_aside, tainted) = match turn {
        Turn::Ask { seat, step_aside } => (seat, step_aside, false),
        Turn::Handed(handed) => match picked_up(inner, handed) {
            Ok(won) => return Ok(won.hold(inner, wanted.renew)),
            // Nobody knows whether it happened, or it lay too long before this task ran; ask for it as usual.
            Err(seat) => (seat, false, true),
        },
    };
    let claim = Claim::new(inner, wanted, Some(seat), tainted);
    match claim.contend(Waiting::Until(until), step_aside).await? {
        Attempt::Acquired(won) => Ok(won.hold(inner, wanted.renew)),
        Attempt::Busy(holder) => Err(timeout(inner, wanted, holder.as_ref())),
    }
}

fn picked_up(inner: &Arc<Inner>, mut handed: Handed) -> Result<Won, Seat> {
    let Some((seat, grant, request)) = handed.claim.take() else {
        unreachable!("a hand-over is picked up once");
    };
    let Some((grant, sent)) = grant else {
        return Err(seat);
    };
    match in_time(inner, &grant, sent) {
        Some(granted) => Ok(Won {
            request,
            seat: Some(seat),
            grant,
            sent,
            granted,
            tainted: false,
        }),
        None => Err(seat),
    }
}
