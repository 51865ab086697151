//! One renewal of one lease: a planned one in the background, or one that a caller requested.
//!
//! Invariant: at most one renewal, extension or ticket step of a lease is in flight. The store
//! could apply two of them in either order. If the longer one was applied first and the shorter one
//! last, the longer answer would keep the guard valid after the store's lease has ended.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    contract::{DistLock, Renewal},
    engine::{
        bounded::bounded,
        keeper::KeeperShared,
        lease_state::{LeaseState, NewHistory},
    },
    types::{
        error::{Error, ErrorKind, Result},
        ttl::Ttl,
    },
};

/// The longest wait for the answer to one renewal, before the next try.
const LONGEST: Duration = Duration::from_secs(5);

/// Renews a lease once and schedules its next event.
pub(super) async fn renew_in_background(shared: Arc<KeeperShared>, lease_state: Arc<LeaseState>) {
    // An error needs no handling here: `take_answer` has counted it and has planned the next try.
    let answered = renew(&shared, &lease_state, None).await;
    shared.schedule.put(&lease_state);
    lease_state.log_renewal(&answered);
}

/// Renews a lease once with a new TTL, which later renewals keep, and sends the result to the
/// waiting caller.
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

/// Renews a lease on the keeper's own connection, so that the changes of one lease reach the store
/// in the order of their sending. Without a `wanted` TTL, the lease keeps its present TTL.
async fn renew(
    shared: &Arc<KeeperShared>,
    lease_state: &Arc<LeaseState>,
    wanted: Option<Ttl>,
) -> Result<Option<NewHistory>> {
    // The connection is awaited before `io` is locked. In the reverse order, a release would wait
    // for `io` while the connection cannot be opened.
    let handle = opened_in_time(shared, lease_state).await;
    let _in_turn = lease_state.io.lock().await;
    // The TTL is read with `io` locked, because an extension that had the lock before may have
    // changed the TTL.
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
    // The limit is the time between two renewals, a third of the lease. An answer after the
    // deadline would not count.
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

/// Waits for the keeper's handle, for [`LONGEST`] at most; `None` when the lease ended before the
/// handle was open.
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
