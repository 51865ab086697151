//! The check of fencing tokens by the resource that a lock protects.
//!
//! This module owns [`Fence`] (the proof of a holder), the guards that check it, and the ready-made
//! form for a file. Invariant: once a resource has let a fence through, it refuses every older one.
//! A refusal must never change the resource.
//!
//! A lock alone cannot protect a resource: a holder may be paused, lose the lock during the pause,
//! and write afterwards. The resource itself must refuse that write. Each holder shows its
//! [`Fence`], and a [`FenceGuard`] remembers the highest fence that was let through and refuses
//! older ones. [`FencedFile`] is the ready-made form for a file, and [`FenceGuard::SQL_CONDITION`]
//! for a row of a database.

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

/// The proof that a holder shows to the resource that its lock protects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Fence {
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// A digest that tells owners apart without revealing their identity (see
    /// [`OwnerId::tag`](crate::OwnerId::tag)).
    pub owner: Uuid,
    /// The store's history that the token belongs to.
    pub epoch: Epoch,
}

impl Fence {
    /// A fence of these parts.
    #[must_use]
    pub const fn new(token: FencingToken, owner: Uuid, epoch: Epoch) -> Self {
        Self {
            token,
            owner,
            epoch,
        }
    }
}

/// The reason why a fenced resource did not do an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// The caller is not the latest holder. Nothing was changed, and another try with the same
    /// fence is refused as well, unless the guard is reset.
    Refused(FenceRefusal),
    /// The resource itself failed, or its stored fence cannot be read ([`ErrorKind::Corrupt`]).
    Failed(Error),
}

impl FenceError {
    /// The refusal; `None` for a failure.
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
            // `Display` already shows the text of the error, so this method skips the error and
            // returns its source.
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
    /// A refusal becomes [`ErrorKind::Lost`]: a later holder exists, so the lock behind the fence
    /// is lost.
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Refused(refusal) => Self::new(ErrorKind::Lost, refusal.to_string()),
            FenceError::Failed(error) => error,
        }
    }
}
