//! One renewal, in the background or asked for.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::Shared;
use crate::{
    contract::{DistLock, Renewal},
    engine::{
        bounded::bounded,
        hold::{Hold, NewHistory},
    },
    types::{
        error::{Error, ErrorKind, Result},
        ttl::Ttl,
    },
};

/// How long one renewal may take before it is tried again.
const LONGEST: Duration = Duration::from_secs(5);

/// Renews a hold once and files it for its next event.
pub(super) async fn in_background(shared: Arc<Shared>, hold: Arc<Hold>) {
    // Errors are counted and scheduled again by the hold itself.
    let answered = renew(&shared, &hold, None).await;
    shared.file(&hold);
    hold.log_renewal(&answered);
}

/// Renews a hold once, with another TTL from then on, for somebody who waits for the answer.
pub(crate) async fn as_asked(
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    ttl: Ttl,
    answer: oneshot::Sender<Result<()>>,
) {
    let answered = renew(&shared, &hold, Some(ttl)).await;
    shared.file(&hold);
    let _ = answer.send(answered.clone().map(|_| ()));
    hold.log_renewal(&answered);
}

/// Renews a hold on the keeper's own connection, so that everything that changes one lease travels in one order; without
/// another TTL, for as long as it was wanted last.
async fn renew(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    wanted: Option<Ttl>,
) -> Result<Option<NewHistory>> {
    // Before its turn: while the connection cannot be opened, nobody else is kept from the lease.
    let handle = opened_in_time(shared, hold).await;
    let _in_turn = hold.io.lock().await;
    // Not before: an extension whose turn was first may have changed it.
    let ttl = wanted.unwrap_or_else(|| hold.ttl());
    let handle = match handle {
        Ok(Some(handle)) => handle,
        Ok(None) => return hold.check().map(|()| None),
        Err(error) => return hold.answered(shared.clock().now(), ttl, Some(Err(error))),
    };
    if !hold.may_renew() {
        hold.check()?;
        return Err(Error::new(ErrorKind::NotHeld, "the lock was released").about(hold.name()));
    }
    if wanted.is_none() && hold.renews_later() {
        return Ok(None);
    }
    let sent = hold
        .sending(ttl)
        .map_err(|reason| hold.lost_error(reason))?;
    // A third of the lease is what there is between two renewals; beyond the deadline no answer matters.
    let limit = (ttl.duration() / 3)
        .clamp(Duration::from_millis(50), LONGEST)
        .min(hold.remaining());
    let (lease, renewal) = (hold.lease(), Renewal::plain(ttl));
    let answer = bounded(&**shared.clock(), limit, handle.renew(&lease, &renewal)).await;
    match answer {
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => hold.answered(sent, ttl, None),
        answer => hold.answered(sent, ttl, Some(answer)),
    }
}

/// The keeper's own handle; `None` when the hold has ended before it was open.
async fn opened_in_time(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
) -> Result<Option<Arc<dyn DistLock>>> {
    tokio::select! {
        biased;
        handle = shared.handle() => Ok(Some(handle)),
        _ = hold.ended() => Ok(None),
        () = shared.clock().sleep(LONGEST) => Err(shared.not_open()),
    }
}
