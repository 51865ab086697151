//! Watching a lock without holding it.
//!
//! This module owns the public view of a lease for tasks that have no guard. Invariant: a watch
//! never keeps a lease held. The last guard ends the lease, also while watches exist.

use std::{fmt, sync::Arc, time::Duration};

#[cfg(doc)]
use crate::types::error::ErrorKind;
use crate::{
    clock::Moment,
    contract::LossReason,
    engine::lease_state::LeaseState,
    fence::Fence,
    types::{error::Result, name::LockName, token::FencingToken},
};

/// The way in which a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The owner released the lock, or turned it into a ticket.
    Released,
    /// The lock was lost before a release.
    Lost(LossReason),
}

/// A view of a lease for a task that must stop when the lease ends. A watch does not hold the lock,
/// and a clone is cheap.
#[derive(Clone)]
pub struct LockWatch {
    lease_state: Arc<LeaseState>,
}

impl LockWatch {
    pub(crate) const fn new(lease_state: Arc<LeaseState>) -> Self {
        Self { lease_state }
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.lease_state.name()
    }

    /// The lock's token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease_state.token()
    }

    /// Token, owner and epoch together.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.lease_state.fence()
    }

    /// As [`Guard::is_valid`](crate::Guard::is_valid).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease_state.is_valid()
    }

    /// As [`Guard::remaining`](crate::Guard::remaining).
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_state.remaining()
    }

    /// The reason of the loss; `None` while the lock is held, and after a release. Without I/O.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.lease_state.loss_now()
    }

    /// The local deadline: the moment at which the lease ends by this machine's clock unless it is
    /// renewed. For a lock that was lost earlier, the deadline before the loss.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.lease_state.deadline()
    }

    /// As [`Guard::check`](crate::Guard::check).
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason; [`ErrorKind::NotHeld`] after a release.
    pub fn check(&self) -> Result<()> {
        self.lease_state.check_held()
    }

    /// Resolves when the lease has ended, by a release or a loss.
    ///
    /// # Cancel safety
    /// Safe; any number of tasks may wait.
    pub async fn ended(&self) -> Ended {
        self.lease_state
            .ended()
            .await
            .map_or(Ended::Released, Ended::Lost)
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("lease_state", &self.lease_state)
            .finish()
    }
}
