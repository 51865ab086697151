//! The checking half of fencing: what a protected resource does with a token.
//!
//! A lock alone cannot protect anything: its holder may be paused, lose the lock without noticing, and write late. The
//! resource itself must refuse such a write. Each holder shows its [`Fence`]; a [`FenceGuard`] remembers the highest one it
//! has seen and refuses older ones. [`FencedFile`] is the ready-made form for a file; for a row of a database there is
//! [`FenceGuard::SQL_CONDITION`].

mod file;
mod guard;

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use file::FencedFile;
pub use guard::{FenceGuard, FenceRefusal, FenceState};

use crate::types::{
    error::{Error, ErrorKind},
    token::{Epoch, FencingToken},
};

/// What a holder shows to the resource that its lock protects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fence {
    /// The grant's token.
    pub token: FencingToken,
    /// Tells owners apart without giving their identity away (see [`OwnerId::tag`](crate::OwnerId::tag)).
    pub owner: Uuid,
    /// The store's history that the token belongs to.
    pub epoch: Epoch,
}

impl Fence {
    /// From its parts.
    #[must_use]
    pub const fn new(token: FencingToken, owner: Uuid, epoch: Epoch) -> Self {
        Self {
            token,
            owner,
            epoch,
        }
    }
}

/// Why a fenced resource did not do what it was asked for.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// The one who asked is not the latest holder. Nothing was changed; asking again with the same fence is pointless.
    Refused(FenceRefusal),
    /// The resource itself failed, or what it knows about fences cannot be read ([`ErrorKind::Corrupt`]).
    Failed(Error),
}

impl FenceError {
    /// The refusal, if it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&FenceRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Failed(_) => None,
        }
    }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FenceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Its text is ours, so only what lies behind it is a cause.
            Self::Refused(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}

impl From<FenceRefusal> for FenceError {
    fn from(refusal: FenceRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for FenceError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<FenceError> for Error {
    /// A refusal means that the lock behind the fence has been lost.
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Refused(refusal) => Self::new(ErrorKind::Lost, refusal.to_string()),
            FenceError::Failed(error) => error,
        }
    }
}
