//! A ticket: a guard in a form that another process can take over.
//!
//! This module owns the text of a ticket. Invariant: the text is a secret, so no error message and
//! no `Debug` output contains a part of it. The module sends nothing to the store.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::types::{
    error::{Error, ErrorKind, Result},
    ident::OwnerId,
    name::LockName,
    token::FencingToken,
    ttl::Ttl,
};

/// The first characters of every ticket. The digit is the version of the form, so that a later
/// version can recognise an old ticket.
const PREFIX: &str = "dlt1.";

/// A held lock in a form that another process can resume, once.
///
/// `Display` returns the text to pass to the other process. The text is a secret, because a process
/// that has the text can take the lock. `Debug` masks the text.
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
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) token: FencingToken,
    pub(crate) ttl: Ttl,
    /// The TTL to which the store may still cut the lease, because the last guard sent a renewal
    /// with this TTL and got no answer. `None` when every renewal was answered.
    pub(crate) cut_to: Option<Ttl>,
    /// A random value that the store keeps beside the lock until this ticket is used.
    pub(crate) nonce: Uuid,
}

impl Ticket {
    /// The lock's name.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock's token. A resume does not change it.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The lease's duration, counted from the last renewal.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }
}

/// The JSON inside the text of a ticket.
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
    fn a_ticket_is_parsed_from_its_own_text() {
        let mut ticket = ticket();
        assert_eq!(format!(" {ticket}\n").parse::<Ticket>().unwrap(), ticket);
        ticket.cut_to = Some(Ttl::from_millis(700).unwrap());
        assert_eq!(ticket.to_string().parse::<Ticket>().unwrap(), ticket);
        let json = serde_json::to_string(&ticket).unwrap();
        assert_eq!(serde_json::from_str::<Ticket>(&json).unwrap(), ticket);
    }

    #[test]
    fn a_text_that_is_no_ticket_is_refused_and_not_quoted_in_the_error() {
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
    fn debug_shows_neither_nonce_nor_owner() {
        let ticket = ticket();
        let shown = format!("{ticket:?}");
        assert!(
            !shown.contains(&ticket.nonce.to_string())
                && !shown.contains(&ticket.owner.as_uuid().to_string())
        );
    }
}
