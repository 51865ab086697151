//! The identities around a lock: the owner that a store compares, and the holder's label for
//! people.
//!
//! This module owns [`OwnerId`], [`HolderLabel`], [`Meta`] and [`HolderInfo`]. Invariant: a label
//! or text is checked before any I/O. The id of an owner must never reach a log, an error or
//! `Debug`: a process that knows the id can renew and release the lock.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use uuid::Uuid;

use crate::types::{
    error::{Error, ErrorKind, Result},
    name::shorten,
    token::FencingToken,
};

/// The identity of one acquisition: 128 random bits, stored as `holder_id`.
///
/// A process that knows the id can renew and release the lock. So the id is never shown: `Debug`
/// prints a mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// A fresh random identity.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default identity would suggest a fixed one"
    )]
    pub fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// An identity read back from a store or a ticket.
    #[must_use]
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// The id. Use it only to write the id to the store.
    #[must_use]
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// A one-way digest that tells owners apart without revealing the id. A fenced resource stores
    /// the digest.
    #[must_use]
    pub fn tag(&self) -> Uuid {
        Uuid::new_v5(&Uuid::NAMESPACE_OID, self.0.as_bytes())
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerId(***)")
    }
}

/// The label of a holder, for people: up to 128 bytes. The default is `user@host:pid`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HolderLabel(Arc<str>);

impl HolderLabel {
    /// The longest allowed label, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks a label.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the label is empty, is over 128 bytes or holds a control
    /// character.
    pub fn new(label: impl AsRef<str>) -> Result<Self> {
        let label = label.as_ref();
        let problem = if label.is_empty() {
            "holder label is empty".to_owned()
        } else if label.len() > Self::MAX_BYTES {
            format!(
                "holder label is {} bytes long: at most {} are allowed",
                label.len(),
                Self::MAX_BYTES
            )
        } else if label.chars().any(char::is_control) {
            format!(
                "holder label has a control character: \"{}\"",
                shorten(label)
            )
        } else {
            return Ok(Self(label.into()));
        };
        Err(Error::new(ErrorKind::InvalidArgument, problem))
    }

    /// The default label `user@host:pid` of this process. A long user or host name is cut, so that
    /// the label has at most [`MAX_BYTES`](Self::MAX_BYTES) bytes.
    #[must_use]
    pub fn of_this_process() -> Self {
        let user = ["USER", "LOGNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()))
            .unwrap_or_else(user_of_this_process);
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let clean = |text: &str, most: usize| {
            text.chars()
                .filter(|c| !c.is_control())
                .take(most)
                .collect::<String>()
        };
        // The user (up to 30 characters) and the host (up to 40) can take 280 bytes in UTF-8. Whole
        // characters are cut off the end, so that `:pid` still fits into 128 bytes.
        let mut label = format!("{}@{}", clean(&user, 30), clean(&host, 40));
        while label.len() > 110 {
            label.pop();
        }
        Self(format!("{label}:{}", std::process::id()).into())
    }

    /// The label.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HolderLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Free text that the store keeps beside a held lock, up to 4 KiB: a job's parameters, a node's
/// address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta(Arc<str>);

impl Meta {
    /// The longest allowed text, in bytes.
    pub const MAX_BYTES: usize = 4096;

    /// Checks a text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the text is over 4 KiB or holds a NUL character, which
    /// Postgres cannot store.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let problem = if text.len() > Self::MAX_BYTES {
            format!(
                "meta is {} bytes long: at most {} are allowed",
                text.len(),
                Self::MAX_BYTES
            )
        } else if text.contains('\0') {
            "meta holds a NUL character".to_owned()
        } else {
            return Ok(Self(text.into()));
        };
        Err(Error::new(ErrorKind::InvalidArgument, problem))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The user's name from `/etc/passwd`, or the user's number when that file has no entry. Services
/// often run without the environment variable `USER`.
fn user_of_this_process() -> String {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    });
    name.unwrap_or(id)
}

/// The holder of a lock, as far as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder's label, for people.
    pub holder: String,
    /// The free text of the acquire request.
    pub meta: Option<String>,
    /// The token of its grant.
    pub token: Option<FencingToken>,
    /// The time of the grant by the store's wall clock, for display only.
    pub acquired_at: Option<SystemTime>,
    /// The remaining time of the lease, if it is not renewed.
    pub expires_in: Option<Duration>,
}

impl HolderInfo {
    /// A holder of which only the label is known.
    pub fn new(holder: impl Into<String>) -> Self {
        Self {
            holder: holder.into(),
            meta: None,
            token: None,
            acquired_at: None,
            expires_in: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_an_owner_hides_its_id() {
        let owner = OwnerId::new();
        assert!(!format!("{owner:?}").contains(&owner.as_uuid().to_string()[..8]));
    }

    #[test]
    fn labels_and_meta_texts_beyond_the_limits_are_refused() {
        assert!(HolderLabel::new("x".repeat(128)).is_ok());
        assert!(HolderLabel::new("x".repeat(129)).is_err());
        assert!(HolderLabel::new("").is_err());
        assert!(HolderLabel::new("a\x1b[31m").is_err());
        assert!(HolderLabel::of_this_process().as_str().len() <= 128);
        assert!(Meta::new("x".repeat(4096)).is_ok());
        assert!(Meta::new("x".repeat(4097)).is_err());
        assert!(Meta::new("a\0b").is_err());
    }
}
