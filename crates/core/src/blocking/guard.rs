//! Held locks of blocking callers.
//!
//! This module owns the drop that waits for a release. Invariant: it blocks its thread for a
//! bounded time, and never in async code.

use std::{fmt, time::Duration};

#[cfg(doc)]
use crate::types::error::ErrorKind;
use crate::{
    blocking::runtime::Runtime,
    client::{self, watch::LockWatch},
    contract::LossReason,
    engine::release::Released,
    fence::Fence,
    types::{
        error::Result,
        name::LockName,
        ticket::Ticket,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// A held lock. While [`Guard::is_valid`] is `true`, no other process holds it.
///
/// Release a guard with [`Guard::release`] and check the result. A drop releases too, and blocks
/// its thread until the store has answered, for 1 second at most. After that the release continues
/// in the background, and in async code all of it happens there;
/// [`Locker::close`](super::Locker::close) waits for it.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    /// `None` from the release on.
    guard: Option<client::guard::Guard>,
    runtime: Runtime,
}

impl Guard {
    pub(super) const fn new(guard: client::guard::Guard, runtime: Runtime) -> Self {
        Self {
            guard: Some(guard),
            runtime,
        }
    }

    fn held(&self) -> &client::guard::Guard {
        self.guard.as_ref().unwrap_or_else(|| released())
    }

    fn take(&mut self) -> client::guard::Guard {
        self.guard.take().unwrap_or_else(|| released())
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.held().name()
    }

    /// The fencing token, which is higher than that of every earlier holder. Show the token to the
    /// resource that the lock protects.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.held().token()
    }

    /// The store's history that the token belongs to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.held().epoch()
    }

    /// Token, owner and epoch together, as a [`FenceGuard`](crate::FenceGuard) checks them.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.held().fence()
    }

    /// The TTL that the store granted.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.held().ttl()
    }

    /// Time until the local deadline; zero once the lock is lost. Without I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held().remaining()
    }

    /// Whether the lock is certainly held. Without I/O. After `false`, the answer stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.held().is_valid()
    }

    /// [`Guard::is_valid`] as a result, for `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        self.held().check()
    }

    /// The reason of the loss; `None` while the lock is held. Without I/O.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.watch().loss()
    }

    /// Calls `callback` when the lock is lost, on a thread of its own (see [`Runtime::on_lost`]).
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// # let locker = distlock::blocking::connect("memory:")?;
    /// let guard = locker.lock("order:4").acquire()?;
    /// guard.on_lost(|reason| eprintln!("stop: {reason}"));
    /// # assert!(guard.release().is_clean()); locker.close() }
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        self.runtime.on_lost(&self.watch(), callback);
    }

    /// A handle on the lease that may outlive the guard and does not keep the lock held.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        self.held().watch()
    }

    /// Renews now, with a new TTL that later renewals keep (see
    /// [`Guard::extend`](crate::Guard::extend)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.runtime.wait_for(self.held().extend(ttl))
    }

    /// Another guard on the same lease. The lock is free when its last guard is released.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is not held any more.
    pub fn reenter(&self) -> Result<Self> {
        Ok(Self::new(self.held().reenter()?, self.runtime.clone()))
    }

    /// Releases the lock, and waits for the answer of the store (see
    /// [`Guard::release`](crate::Guard::release)). In async code the release happens in the
    /// background, and the answer is [`Released::Unconfirmed`] with the error.
    pub fn release(mut self) -> Released {
        let guard = self.take();
        let release = async { Ok(guard.release().await) };
        let released = self.runtime.wait_for(release);
        released.unwrap_or_else(Released::Unconfirmed)
    }

    /// Turns the lock into a ticket that another process can resume once (see
    /// [`Guard::into_ticket`](crate::Guard::into_ticket)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code. After an error the lock
    /// is released in the background.
    pub fn into_ticket(mut self) -> Result<Ticket> {
        let guard = self.take();
        self.runtime.wait_for(guard.into_ticket())
    }
}

/// Only `release` and `into_ticket` take the guard out, and both consume the value.
fn released() -> ! {
    unreachable!("a guard is used after its release")
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            let clock = guard.clock();
            self.runtime.release_in_drop(&*clock, guard.release());
        }
    }
}

/// Several held locks that are released together. A drop waits for the releases as that of a
/// [`Guard`] does.
#[derive(Debug)]
#[must_use = "the locks are released when the set is dropped"]
pub struct GuardSet {
    /// `None` from the release on.
    set: Option<client::guard_set::GuardSet>,
    runtime: Runtime,
}

impl GuardSet {
    pub(super) const fn new(set: client::guard_set::GuardSet, runtime: Runtime) -> Self {
        Self {
            set: Some(set),
            runtime,
        }
    }

    /// A watch of each lock, in the byte order of their names.
    #[must_use]
    pub fn watches(&self) -> Vec<LockWatch> {
        let guards = self
            .set
            .iter()
            .flat_map(client::guard_set::GuardSet::guards);
        guards.map(client::guard::Guard::watch).collect()
    }

    /// Whether all locks of the set are certainly held.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.set
            .as_ref()
            .is_some_and(client::guard_set::GuardSet::is_valid)
    }

    /// Releases all locks of the set at the same time. The results are in the reverse order of the
    /// names. In async code the releases happen in the background, and the result is an error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] in async code.
    pub fn release(mut self) -> Result<Vec<(LockName, Released)>> {
        let set = self.set.take().unwrap_or_else(|| released());
        self.runtime.wait_for(async { Ok(set.release().await) })
    }
}

impl Drop for GuardSet {
    fn drop(&mut self) {
        if let Some(set) = self.set.take()
            && let Some(first) = set.guards().first()
        {
            let clock = first.clock();
            self.runtime.release_in_drop(&*clock, set.release());
        }
    }
}
