//! The lock that a command holds: alone, or shared with others.
//!
//! Invariant: both kinds are supervised by the same code. What a supervisor needs to know of a lock
//! is here, and it need not know which kind it has.

use std::time::Duration;

use distlock::{
    FencingToken, Guard, LockName, LockWatch, LossReason, Moment, Released, Result, Ttl,
};
use distlock_recipes::shared::{SharedGuard, SharedWatch};

/// A lock that this process has taken.
#[derive(Debug)]
pub(crate) enum Taken {
    Alone(Guard),
    Shared(SharedGuard),
}

/// A lock that this process holds, as its supervisor sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held<'a> {
    Alone(&'a Guard),
    Shared(&'a SharedGuard),
}

/// A view of a held lock, which does not keep it.
#[derive(Clone, Debug)]
pub(crate) enum HeldWatch {
    Alone(LockWatch),
    Shared(SharedWatch),
}

impl Taken {
    pub(crate) const fn held(&self) -> Held<'_> {
        match self {
            Self::Alone(guard) => Held::Alone(guard),
            Self::Shared(guard) => Held::Shared(guard),
        }
    }

    /// The guard of a lock that is held alone.
    pub(crate) const fn alone(&self) -> Option<&Guard> {
        match self {
            Self::Alone(guard) => Some(guard),
            Self::Shared(_) => None,
        }
    }

    pub(crate) async fn release(self) -> Released {
        match self {
            Self::Alone(guard) => guard.release().await,
            Self::Shared(guard) => guard.release().await,
        }
    }
}

impl<'a> From<&'a Guard> for Held<'a> {
    fn from(guard: &'a Guard) -> Self {
        Self::Alone(guard)
    }
}

impl<'a> Held<'a> {
    pub(crate) fn name(self) -> &'a LockName {
        match self {
            Self::Alone(guard) => guard.name(),
            Self::Shared(guard) => guard.name(),
        }
    }

    pub(crate) fn token(self) -> FencingToken {
        match self {
            Self::Alone(guard) => guard.token(),
            Self::Shared(guard) => guard.token(),
        }
    }

    /// The permits of a semaphore, by number.
    pub(crate) fn indices(self) -> Vec<u32> {
        match self {
            Self::Alone(_) => Vec::new(),
            Self::Shared(guard) => guard.indices(),
        }
    }

    pub(crate) fn ttl(self) -> Ttl {
        match self {
            Self::Alone(guard) => guard.ttl(),
            Self::Shared(guard) => guard.ttl(),
        }
    }

    pub(crate) fn remaining(self) -> Duration {
        match self {
            Self::Alone(guard) => guard.remaining(),
            Self::Shared(guard) => guard.remaining(),
        }
    }

    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Alone(guard) => guard.is_valid(),
            Self::Shared(guard) => guard.is_valid(),
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Alone(guard) => guard.check(),
            Self::Shared(guard) => guard.check(),
        }
    }

    /// Resolves when the lock is lost.
    pub(crate) async fn lost(self) -> LossReason {
        match self {
            Self::Alone(guard) => guard.lost().await,
            Self::Shared(guard) => guard.lost().await,
        }
    }

    pub(crate) fn watch(self) -> HeldWatch {
        match self {
            Self::Alone(guard) => HeldWatch::Alone(guard.watch()),
            Self::Shared(guard) => HeldWatch::Shared(guard.watch()),
        }
    }
}

impl HeldWatch {
    /// The moment at which the lock is lost unless it is renewed.
    pub(crate) fn deadline(&self) -> Moment {
        match self {
            Self::Alone(watch) => watch.deadline(),
            Self::Shared(watch) => watch.deadline(),
        }
    }
}
