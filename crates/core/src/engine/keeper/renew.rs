//! One renewal of one lease: in the background, or because a caller asked for it.
//!
//! Invariant: at most one renewal, extension or ticket step of a lease is in flight. Two in flight
//! could be applied in either order, and the earlier answer would then be believed for too long.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::shared::KeeperShared;
use crate::{
    contract::{DistLock, Renewal},
    engine::{
        bounded::bounded,
        lease_state::{LeaseState, NewHistory},
    },
    types::{
        error::{Error, ErrorKind, Result},
        ttl::Ttl,
    },
};

/// How long one renewal may take before it is tried again.
const LONGEST: Duration = Duration::from_secs(5);

/// Renews a lease once and schedules its next event.
pub(super) async fn renew_in_background(shared: Arc<KeeperShared>, lease_state: Arc<LeaseState>) {
    // The lease itself counts errors and plans the next try.
    let answered = renew(&shared, &lease_state, None).await;
    shared.schedule.put(&lease_state);
    lease_state.log_renewal(&answered);
}

/// Renews a lease once, with another TTL from then on, and answers the caller that waits.
pub(crate) async fn renew_for_caller(
    shared: Arc<KeeperShared>,
    lease_state: Arc<LeaseState>,
    ttl: Ttl,
    answer: oneshot::Sender<Result<()>>,
) {
    let answered = renew(&shared, &lease_state, Some(ttl)).await;
    shared.schedule.put(&lease_state);
    let _ = answer.send(answered.clone().map(|_| ()));
    lease_state.log_renewal(&answered);
}

/// Renews a lease on the keeper's own connection, so that all changes of one lease travel in one
/// order. Without a `wanted` TTL, the last one that was asked for stays.
async fn renew(
    shared: &Arc<KeeperShared>,
    lease_state: &Arc<LeaseState>,
    wanted: Option<Ttl>,
) -> Result<Option<NewHistory>> {
    // Before the turn at the lease: while the connection cannot be opened, a release must not wait.
    let handle = opened_in_time(shared, lease_state).await;
    let _in_turn = lease_state.io.lock().await;
    // Read after the turn has come: an extension that was first may have changed the TTL.
    let ttl = wanted.unwrap_or_else(|| lease_state.ttl());
    let handle = match handle {
        Ok(Some(handle)) => handle,
        Ok(None) => return lease_state.check().map(|()| None),
        Err(error) => return lease_state.take_answer(shared.clock.now(), ttl, Some(Err(error))),
    };
    if !lease_state.may_renew() {
        lease_state.check()?;
        return Err(
            Error::new(ErrorKind::NotHeld, "the lock was released").about(lease_state.name())
        );
    }
    if wanted.is_none() && lease_state.renews_later() {
        return Ok(None);
    }
    let sent = lease_state
        .note_sending(ttl)
        .map_err(|reason| lease_state.lost_error(reason))?;
    // A third of the lease is the time between two renewals. After the deadline no answer counts.
    let limit = (ttl.duration() / 3)
        .clamp(Duration::from_millis(50), LONGEST)
        .min(lease_state.remaining());
    let (lease, renewal) = (lease_state.lease(), Renewal::plain(ttl));
    let answer = bounded(&*shared.clock, limit, handle.renew(&lease, &renewal)).await;
    match answer {
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
            lease_state.take_answer(sent, ttl, None)
        }
        answer => lease_state.take_answer(sent, ttl, Some(answer)),
    }
}

/// The keeper's own handle; `None` when the lease ended before the handle was open.
async fn opened_in_time(
    shared: &Arc<KeeperShared>,
    lease_state: &Arc<LeaseState>,
) -> Result<Option<Arc<dyn DistLock>>> {
    tokio::select! {
        biased;
        handle = shared.connection.handle() => Ok(Some(handle)),
        _ = lease_state.ended() => Ok(None),
        () = shared.clock.sleep(LONGEST) => Err(shared.connection.not_open_error()),
    }
}
