//! The requests to the store that involve a ticket: issue, resume, renew, release.
//!
//! The store keeps a random value, the nonce, beside the lock of a ticket. Invariant: the step that
//! redeems a nonce removes it, so one ticket is redeemed once. A step with an unknown outcome may
//! reach the store late, so no later step is sent whose effect the late step would undo. This
//! module creates no guard; the caller does.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    contract::{
        AcquireRequest, Grant, ReleaseOutcome, Renewal, Renewed, TicketStep,
        capabilities::Capabilities,
    },
    engine::{
        bounded::bounded,
        lease_state::{LeaseState, Renew},
        parts::LockerParts,
        timing::Timing,
    },
    types::{
        error::{Error, ErrorKind, Result},
        ticket::Ticket,
        ttl::Ttl,
    },
};

/// The longest wait for the answer to one step.
const LIMIT: Duration = Duration::from_secs(5);

/// The pause between two tries of one step.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes a nonce beside a held lock, and returns the ticket. The caller must then end the lease in
/// this process.
pub(crate) async fn issue(
    parts: &Arc<LockerParts>,
    lease_state: &Arc<LeaseState>,
) -> Result<Ticket> {
    check_supported(parts.backend.capabilities())?;
    let nonce = Uuid::new_v4();
    let in_turn = lease_state.io.lock().await;
    let ttl = lease_state.believed_ttl();
    let sent = lease_state
        .note_sending(ttl)
        .map_err(|reason| lease_state.lost_error(reason))?;
    let renewal = Renewal {
        ttl,
        ticket: TicketStep::Issue(nonce),
    };
    let lease = lease_state.lease();
    let answer = bounded(
        &**parts.timing.clock(),
        LIMIT,
        parts.backend.renew(&lease, &renewal),
    )
    .await;
    let answered = lease_state.take_answer(sent, ttl, Some(answer));
    drop(in_turn);
    lease_state.log_renewal(&answered);
    answered?;
    Ok(Ticket {
        name: lease_state.name().clone(),
        owner: lease_state.owner(),
        token: lease_state.token(),
        ttl,
        cut_to: lease_state.unanswered_ttl(),
        nonce,
    })
}

/// Redeems a ticket, and continues its lease in this process.
pub(crate) async fn resume(parts: &Arc<LockerParts>, ticket: &Ticket) -> Result<Arc<LeaseState>> {
    let _running = parts.lifecycle.count_acquire();
    parts.lifecycle.check_open()?;
    let sent = parts.timing.now();
    let answer = step(parts, ticket, ticket.ttl, TicketStep::Redeem(ticket.nonce)).await?;
    let Renewed::Extended {
        valid_for,
        epoch,
        token,
        loss,
    } = answer
    else {
        return Err(not_held(ticket));
    };
    let mut grant = Grant::new(token, epoch, valid_for);
    grant.loss = loss;
    let request = AcquireRequest::new(
        ticket.name.clone(),
        ticket.owner,
        ticket.ttl,
        parts.settings.default_holder(),
    );
    let lease_state = LeaseState::new(
        &request,
        &grant,
        sent,
        Renew::Auto,
        None,
        parts.timing.clock(),
        &parts.meters,
    );
    if let Some(ttl) = ticket.cut_to {
        lease_state.note_unanswered_ttl(ttl);
    }
    parts.adopt(&lease_state, &grant.loss);
    Ok(lease_state)
}

/// Renews the lease behind a ticket. The nonce is redeemed and issued again. Redeeming fails for a
/// ticket that another process has resumed, so this renewal cannot shorten the lease of the guard
/// there.
pub(crate) async fn renew(parts: &Arc<LockerParts>, ticket: &Ticket, ttl: Duration) -> Result<()> {
    parts.lifecycle.check_open()?;
    let ttl = parts
        .settings
        .checked_ttl(parts.backend.capabilities(), ttl)?;
    let redeem = TicketStep::Redeem(ticket.nonce);
    if let Renewed::NotHeld(_) = step(parts, ticket, ttl, redeem).await? {
        return Err(not_held(ticket));
    }
    // The nonce must be written back, because the ticket cannot renew or release the lock without
    // it. A request with an unknown outcome is not repeated: the first copy might reach the store
    // after the ticket was used again, and would then restore the used nonce and this TTL.
    let issue = TicketStep::Issue(ticket.nonce);
    let may_repeat = Error::did_not_happen;
    match repeated(&parts.timing, may_repeat, || {
        step(parts, ticket, ttl, issue)
    })
    .await?
    {
        (Renewed::Extended { .. }, _) => Ok(()),
        (Renewed::NotHeld(_), _) => Err(not_held(ticket)),
    }
}

/// Releases the lock behind a ticket in two steps: the first redeems the nonce, the second releases
/// the lock. If the release stops between the two steps, the nonce is used up, and no ticket can
/// release the lock. So the first step also cuts the lease to the time that the second step may
/// take.
pub(crate) async fn release(parts: &Arc<LockerParts>, ticket: &Ticket) -> Result<()> {
    parts.lifecycle.check_open()?;
    let sent = parts.timing.now();
    let ttl = Ttl::new(LIMIT.max(parts.backend.capabilities().min_ttl))?.min(ticket.ttl);
    let redeem = TicketStep::Redeem(ticket.nonce);
    if let Renewed::NotHeld(_) = step(parts, ticket, ttl, redeem).await? {
        return Err(not_held(ticket));
    }
    let lease = ticket.lease();
    let released = repeated(&parts.timing, |_| true, || parts.backend.release(&lease)).await;
    match released.map_err(|error| error.during("release").about(&ticket.name))? {
        (ReleaseOutcome::Released { .. }, _) => Ok(()),
        // An earlier try released the lock, or the short lease has ended.
        (ReleaseOutcome::NotHeld, tried)
            if tried || parts.timing.now() >= sent + ttl.duration() =>
        {
            Ok(())
        }
        (ReleaseOutcome::NotHeld, _) => Err(not_held(ticket)),
    }
}

/// Sends a step, and repeats it after temporary failures for which `may_repeat` returns `true`, for
/// at most [`LIMIT`]. Also returns whether an earlier try may have changed the store.
async fn repeated<T, F>(
    timing: &Timing,
    may_repeat: impl Fn(&Error) -> bool,
    ask: impl Fn() -> F,
) -> Result<(T, bool)>
where
    F: Future<Output = Result<T>>,
{
    let clock = &**timing.clock();
    let until = clock.now() + LIMIT;
    let mut tried = false;
    loop {
        let left = until.since(clock.now());
        match bounded(clock, left, ask()).await {
            Err(error)
                if error.is_retryable() && may_repeat(&error) && clock.now() + PAUSE < until =>
            {
                tracing::debug!(%error, "asking again");
                tried |= !error.did_not_happen();
                clock.sleep(timing.jitter(PAUSE)).await;
            }
            answer => return answer.map(|answer| (answer, tried)),
        }
    }
}

async fn step(
    parts: &Arc<LockerParts>,
    ticket: &Ticket,
    ttl: Ttl,
    step: TicketStep,
) -> Result<Renewed> {
    check_supported(parts.backend.capabilities())?;
    let (lease, renewal) = (ticket.lease(), Renewal { ttl, ticket: step });
    bounded(
        &**parts.timing.clock(),
        LIMIT,
        parts.backend.renew(&lease, &renewal),
    )
    .await
    .map_err(|error| {
        error
            .on(parts.backend_name())
            .during("ticket")
            .about(&ticket.name)
    })
}

fn check_supported(capabilities: &Capabilities) -> Result<()> {
    if capabilities.tickets {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("{} has no tickets", capabilities.backend),
    ))
}

fn not_held(ticket: &Ticket) -> Error {
    Error::new(
        ErrorKind::NotHeld,
        format!(
            "the lock of this ticket (token {}) has expired or was released, the ticket was used \
             before, or it is of another store",
            ticket.token
        ),
    )
    .about(&ticket.name)
}
