//! The requests to the store that involve a ticket: issue, resume, renew, release.
//!
//! The store keeps a random value, the nonce, beside the lock of a ticket. Invariant: each use of a
//! ticket is one step that the store refuses unless the nonce is stored. The step that redeems a
//! nonce removes it, so one ticket is redeemed once, and a step that reaches the store later
//! changes nothing. This module creates no guard; the caller does.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    contract::{
        AcquireRequest, Grant, Lease, ReleaseOutcome, Renewal, Renewed, TicketStep,
        capabilities::Capabilities,
    },
    engine::{
        bounded::bounded,
        lease_state::{LeaseState, Renew},
        outage::pause_after,
        parts::LockerParts,
    },
    types::{
        error::{Error, ErrorKind, Result},
        ticket::Ticket,
        ttl::Ttl,
    },
};

/// The longest wait for the answer to one step.
const LIMIT: Duration = Duration::from_secs(5);

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
        ticket: TicketStep::Issue(nonce),
        ..Renewal::plain(ttl)
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
    let answer = step(parts, ticket, ticket.ttl, TicketStep::Redeem).await?;
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
        &parts.meters.of(&ticket.name),
    );
    if let Some(ttl) = ticket.cut_to {
        lease_state.note_unanswered_ttl(ttl);
    }
    parts.adopt(&lease_state, &grant.loss);
    Ok(lease_state)
}

/// Renews the lease behind a ticket, in one step that leaves the nonce. The store refuses the step
/// when the nonce is gone, also if the step reaches the store late. So the step cannot shorten the
/// lease of a guard that has resumed the ticket.
pub(crate) async fn renew(parts: &Arc<LockerParts>, ticket: &Ticket, ttl: Duration) -> Result<()> {
    parts.lifecycle.check_open()?;
    let ttl = parts
        .settings
        .checked_ttl(parts.backend.capabilities(), ttl)?;
    match step(parts, ticket, ttl, TicketStep::Keep).await? {
        Renewed::Extended { .. } => Ok(()),
        Renewed::NotHeld(_) => Err(not_held(ticket)),
    }
}

/// Releases the lock behind a ticket, in one step. The step is repeated after temporary failures
/// for at most [`LIMIT`]: it frees only a lock whose nonce is stored, so a second step that finds
/// the nonce gone changes nothing.
pub(crate) async fn release(parts: &Arc<LockerParts>, ticket: &Ticket) -> Result<()> {
    parts.lifecycle.check_open()?;
    check_supported(parts.backend.capabilities())?;
    let (clock, lease) = (&**parts.timing.clock(), lease_of(ticket));
    let until = clock.now() + LIMIT;
    let mut maybe_released = false;
    let mut failures = 0;
    loop {
        let left = until.since(clock.now());
        match bounded(clock, left, parts.backend.release(&lease)).await {
            Ok(ReleaseOutcome::Released { .. }) => return Ok(()),
            // An earlier try released the lock, and its answer was lost.
            Ok(ReleaseOutcome::NotHeld) if maybe_released => return Ok(()),
            Ok(ReleaseOutcome::NotHeld) => return Err(not_held(ticket)),
            Err(error) => {
                failures += 1;
                let pause = parts.timing.jitter(pause_after(failures));
                // No attempt begins at the end itself: it would have no time for an answer, and its
                // unknown outcome would hide the reason of this failure.
                if !error.is_retryable() || clock.now() + pause >= until {
                    return Err(error
                        .on(parts.backend_name())
                        .during("release")
                        .about(&ticket.name));
                }
                tracing::debug!(%error, "asking again");
                maybe_released |= !error.did_not_happen();
                clock.sleep(pause).await;
            }
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
    let lease = lease_of(ticket);
    let renewal = Renewal {
        ticket: step,
        ..Renewal::plain(ttl)
    };
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

/// The lease behind a ticket. The store accepts it only while the nonce of the ticket is stored.
fn lease_of(ticket: &Ticket) -> Lease {
    let mut lease = Lease::new(ticket.name.clone(), ticket.owner, Some(ticket.token));
    lease.nonce = Some(ticket.nonce);
    lease
}
