//! A held lock as a piece of text: given up by one process, resumed by another.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    client::{builder::checked_ttl, guard::Guard, locker::Inner},
    contract::{AcquireRequest, Grant, Lease, ReleaseOutcome, Renewal, Renewed, TicketStep},
    engine::{
        bounded::bounded,
        hold::{Hold, Renew},
    },
    types::{
        error::{Error, ErrorKind, Result},
        ident::OwnerId,
        name::LockName,
        token::FencingToken,
        ttl::Ttl,
    },
};

/// What every ticket starts with: a version, so that a later form can be told apart.
const PREFIX: &str = "dlt1.";

/// How long one step waits for the store.
const LIMIT: Duration = Duration::from_secs(5);

/// Between two tries of one step.
const PAUSE: Duration = Duration::from_millis(100);

/// A held lock that can be resumed once, elsewhere.
///
/// `Display` gives the text to pass on; it is a secret, because whoever has it has the lock. `Debug` masks it.
///
/// ```
/// use distlock::Ticket;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let locker = distlock::connect("memory:").await?;
/// let guard = locker.lock("order:6").acquire().await?;
/// let token = guard.token();
/// let text = guard.into_ticket().await?.to_string();
///
/// // In another process, before the lease ends:
/// let ticket: Ticket = text.parse()?;
/// let guard = locker.resume(&ticket).await?;
/// assert_eq!(guard.token(), token);
/// assert!(locker.resume(&ticket).await.is_err()); // it works once
/// assert!(guard.release().await.is_clean());
/// # locker.close().await; Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ticket {
    name: LockName,
    owner: OwnerId,
    token: FencingToken,
    ttl: Ttl,
    /// What the lease may still be cut to, by a renewal of the one who gave it up that was never answered.
    cut_to: Option<Ttl>,
    nonce: Uuid,
}

impl Ticket {
    /// The lock's name.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock's token, which stays the same when it is resumed.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The lease's duration, counted from the last renewal.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    fn lease(&self) -> Lease {
        Lease::new(self.name.clone(), self.owner, Some(self.token))
    }
}

/// The JSON inside the text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    owner: Uuid,
    token: FencingToken,
    ttl_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut_to_ms: Option<u64>,
    nonce: Uuid,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Text {
            name: self.name.as_str().to_owned(),
            owner: *self.owner.as_uuid(),
            token: self.token,
            ttl_ms: self.ttl.as_millis(),
            cut_to_ms: self.cut_to.map(Ttl::as_millis),
            nonce: self.nonce,
        };
        let json = serde_json::to_vec(&text).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }
}

impl FromStr for Ticket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is a secret: no part of it goes into the message.
        let unreadable = |why: &str| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("ticket is not readable: {why}"),
            )
        };
        let text = text.trim();
        let body = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| unreadable("it does not start with dlt1."))?;
        let json = URL_SAFE_NO_PAD
            .decode(body)
            .map_err(|_| unreadable("it is cut off or changed"))?;
        let text: Text = serde_json::from_slice(&json)
            .map_err(|_| unreadable("its content is not a ticket's"))?;
        Ok(Self {
            name: LockName::new(text.name)?,
            owner: OwnerId::from_uuid(text.owner),
            token: text.token,
            ttl: Ttl::from_millis(text.ttl_ms)?,
            cut_to: text.cut_to_ms.map(Ttl::from_millis).transpose()?,
            nonce: text.nonce,
        })
    }
}

impl TryFrom<String> for Ticket {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Ticket> for String {
    fn from(ticket: Ticket) -> Self {
        ticket.to_string()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?}, token {}, ***)", self.name, self.token)
    }
}

/// Writes a nonce beside a held lock. The hold itself is ended by the caller.
pub(crate) async fn issue(inner: &Arc<Inner>, hold: &Arc<Hold>) -> Result<Ticket> {
    supported(inner)?;
    let nonce = Uuid::new_v4();
    let in_turn = hold.io.lock().await;
    let ttl = hold.sure_ttl();
    let sent = hold
        .sending(ttl)
        .map_err(|reason| hold.lost_error(reason))?;
    let renewal = Renewal {
        ttl,
        ticket: TicketStep::Issue(nonce),
    };
    let lease = hold.lease();
    let answer = bounded(
        &**inner.clock(),
        LIMIT,
        inner.backend().renew(&lease, &renewal),
    )
    .await;
    let answered = hold.answered(sent, ttl, Some(answer));
    drop(in_turn);
    hold.log_renewal(&answered);
    answered?;
    Ok(Ticket {
        name: hold.name().clone(),
        owner: hold.owner(),
        token: hold.token(),
        ttl,
        cut_to: hold.cut_to(),
        nonce,
    })
}

/// Makes a guard of a ticket.
pub(crate) async fn resume(inner: &Arc<Inner>, ticket: &Ticket) -> Result<Guard> {
    let _asking = inner.asking();
    inner.check_open()?;
    let sent = inner.clock().now();
    let answer = step(inner, ticket, ticket.ttl, TicketStep::Redeem(ticket.nonce)).await?;
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
        inner.default_holder(),
    );
    let hold = Hold::new(
        &request,
        &grant,
        sent,
        Renew::Auto,
        None,
        inner.clock(),
        inner.meters(),
    );
    if let Some(ttl) = ticket.cut_to {
        hold.may_be_cut_to(ttl);
    }
    inner.adopt(&hold, &grant.loss);
    let guard = Guard::new(inner, hold, Duration::ZERO);
    guard.check()?;
    Ok(guard)
}

/// Renews the lease behind a ticket. The nonce is taken and put back, so that a ticket that was resumed elsewhere cannot
/// shorten the lease under its guard.
pub(crate) async fn renew(inner: &Arc<Inner>, ticket: &Ticket, ttl: Duration) -> Result<()> {
    inner.check_open()?;
    let ttl = checked_ttl(inner, ttl)?;
    let redeem = TicketStep::Redeem(ticket.nonce);
    if let Renewed::NotHeld(_) = step(inner, ticket, ttl, redeem).await? {
        return Err(not_held(ticket));
    }
    // Without it, nobody could renew or release the lock any more. One that may still arrive is not repeated: it would give the
    // ticket back, and this TTL to its lease, after the next one was used.
    let issue = TicketStep::Issue(ticket.nonce);
    let again = Error::did_not_happen;
    match repeated(inner, again, || step(inner, ticket, ttl, issue)).await? {
        (Renewed::Extended { .. }, _) => Ok(()),
        (Renewed::NotHeld(_), _) => Err(not_held(ticket)),
    }
}

/// Releases the lock behind a ticket. The nonce is used up by then, so nobody can release the lock when this breaks off
/// between its two steps: the first leaves it no longer than the second may take.
pub(crate) async fn release(inner: &Arc<Inner>, ticket: &Ticket) -> Result<()> {
    inner.check_open()?;
    let sent = inner.clock().now();
    let ttl = Ttl::new(LIMIT.max(inner.backend().capabilities().min_ttl))?.min(ticket.ttl);
    let redeem = TicketStep::Redeem(ticket.nonce);
    if let Renewed::NotHeld(_) = step(inner, ticket, ttl, redeem).await? {
        return Err(not_held(ticket));
    }
    let lease = ticket.lease();
    let released = repeated(inner, |_| true, || inner.backend().release(&lease)).await;
    match released.map_err(|error| error.during("release").about(&ticket.name))? {
        (ReleaseOutcome::Released { .. }, _) => Ok(()),
        // By an earlier try, or by the end of what was left of it.
        (ReleaseOutcome::NotHeld, tried)
            if tried || inner.clock().now() >= sent + ttl.duration() =>
        {
            Ok(())
        }
        (ReleaseOutcome::NotHeld, _) => Err(not_held(ticket)),
    }
}

/// Asks the store again, for as long as one step may take, after failures that pass and that `again` allows. Also says whether
/// an earlier try may have been carried out.
async fn repeated<T, F>(
    inner: &Inner,
    again: impl Fn(&Error) -> bool,
    ask: impl Fn() -> F,
) -> Result<(T, bool)>
where
    F: Future<Output = Result<T>>,
{
    let clock = &**inner.clock();
    let until = clock.now() + LIMIT;
    let mut tried = false;
    loop {
        let left = until.since(clock.now());
        match bounded(clock, left, ask()).await {
            Err(error) if error.is_retryable() && again(&error) && clock.now() + PAUSE < until => {
                tracing::debug!(%error, "asking again");
                tried |= !error.did_not_happen();
                clock.sleep(inner.jitter(PAUSE)).await;
            }
            answer => return answer.map(|answer| (answer, tried)),
        }
    }
}

async fn step(inner: &Arc<Inner>, ticket: &Ticket, ttl: Ttl, step: TicketStep) -> Result<Renewed> {
    supported(inner)?;
    let (lease, renewal) = (ticket.lease(), Renewal { ttl, ticket: step });
    bounded(
        &**inner.clock(),
        LIMIT,
        inner.backend().renew(&lease, &renewal),
    )
    .await
    .map_err(|error| {
        error
            .on(inner.backend_name())
            .during("ticket")
            .about(&ticket.name)
    })
}

fn supported(inner: &Inner) -> Result<()> {
    if inner.backend().capabilities().tickets {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("{} has no tickets", inner.backend_name()),
    ))
}

fn not_held(ticket: &Ticket) -> Error {
    Error::new(
        ErrorKind::NotHeld,
        format!("the lock of this ticket (token {}) has expired or was released, the ticket was used before, or it is of another store", ticket.token),
    )
    .about(&ticket.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            name: LockName::new("order:42").unwrap(),
            owner: OwnerId::new(),
            token: FencingToken::new(7).unwrap(),
            ttl: Ttl::from_millis(1500).unwrap(),
            cut_to: None,
            nonce: Uuid::new_v4(),
        }
    }

    #[test]
    fn text_round_trip() {
        let mut ticket = ticket();
        assert_eq!(format!(" {ticket}\n").parse::<Ticket>().unwrap(), ticket);
        ticket.cut_to = Some(Ttl::from_millis(700).unwrap());
        assert_eq!(ticket.to_string().parse::<Ticket>().unwrap(), ticket);
        let json = serde_json::to_string(&ticket).unwrap();
        assert_eq!(serde_json::from_str::<Ticket>(&json).unwrap(), ticket);
    }

    #[test]
    fn garbage_is_an_argument_error_and_is_not_repeated() {
        let cut = ticket().to_string();
        let other = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(r#"{"name":"a"}"#));
        for garbage in [
            "",
            "dlt1.",
            "hello",
            "dlt2.abc",
            &cut[..cut.len() - 3],
            &other,
        ] {
            let error = garbage.parse::<Ticket>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{garbage}");
            assert!(garbage.len() < 6 || !error.to_string().contains(garbage));
        }
    }

    #[test]
    fn debug_masks_the_secret() {
        let ticket = ticket();
        let shown = format!("{ticket:?}");
        assert!(
            !shown.contains(&ticket.nonce.to_string())
                && !shown.contains(&ticket.owner.as_uuid().to_string())
        );
    }
}
