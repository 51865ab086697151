//! The store, the locker and the builders of locks for blocking callers.
//!
//! This module owns no state: each value holds its counterpart of the async API and the runtime.

use std::time::Duration;

#[cfg(doc)]
use crate::types::error::ErrorKind;
use crate::{
    blocking::{
        guard::{Guard, GuardSet},
        runtime::Runtime,
    },
    client::{self, builder::options, scope::Scope, watch::LockWatch},
    contract::{Attempt, Forced, LockInfo},
    engine::{lease_state::Renew, unreleased::Unreleased},
    types::{error::Result, ticket::Ticket, token::FencingToken},
};

/// An open store. A clone is cheap and shares everything.
#[derive(Clone, Debug)]
pub struct Store {
    store: client::store::Store,
    runtime: Runtime,
}

impl Store {
    /// A store that was opened on this runtime, by [`Runtime::wait_for`].
    #[must_use]
    pub const fn new(store: client::store::Store, runtime: Runtime) -> Self {
        Self { store, runtime }
    }

    /// The locker of this store.
    #[must_use]
    pub fn locker(&self) -> Locker {
        Locker::new(self.store.locker(), self.runtime.clone())
    }

    /// The store of the async API, for [`Runtime::wait_for`].
    #[must_use]
    pub const fn as_async(&self) -> &client::store::Store {
        &self.store
    }

    /// The runtime that serves this store.
    #[must_use]
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Closes the locker and the connections, in at most 10 seconds (see
    /// [`Store::close`](crate::Store::close)).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] in async code.
    pub fn close(&self) -> Result<()> {
        let close = async {
            self.store.close().await;
            Ok(())
        };
        self.runtime.wait_for(close)
    }
}

/// Takes locks from one store. A clone is cheap and shares everything.
///
/// Calls that are not here: `locker.runtime().wait_for(locker.as_async().health())`.
#[derive(Clone, Debug)]
pub struct Locker {
    locker: client::locker::Locker,
    runtime: Runtime,
}

impl Locker {
    /// A locker whose store was opened on this runtime, by [`Runtime::wait_for`].
    #[must_use]
    pub const fn new(locker: client::locker::Locker, runtime: Runtime) -> Self {
        Self { locker, runtime }
    }

    /// A builder for one lock. If the name breaks a rule, its verbs return the error.
    pub fn lock(&self, name: impl AsRef<str>) -> LockBuilder {
        LockBuilder {
            builder: self.locker.lock(name),
            runtime: self.runtime.clone(),
        }
    }

    /// A builder for several locks at once: either all of them are taken or none.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllBuilder {
        LockAllBuilder {
            builder: self.locker.lock_all(names),
            runtime: self.runtime.clone(),
        }
    }

    /// The state of a lock (see [`Locker::inspect`](crate::Locker::inspect)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        self.runtime.wait_for(self.locker.inspect(name))
    }

    /// All held locks whose names start with `prefix` (see
    /// [`Locker::list`](crate::Locker::list)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.runtime.wait_for(self.locker.list(prefix))
    }

    /// Frees a lock of any holder, if its token is still `token` (see
    /// [`Locker::force_release`](crate::Locker::force_release)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn force_release(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Forced> {
        self.runtime
            .wait_for(self.locker.force_release(name, token))
    }

    /// Resumes the lock of a ticket (see [`Locker::resume`](crate::Locker::resume)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        let guard = self.runtime.wait_for(self.locker.resume(ticket))?;
        Ok(Guard::new(guard, self.runtime.clone()))
    }

    /// The locks that the store may still hold although they were released (see
    /// [`Locker::unreleased`](crate::Locker::unreleased)).
    #[must_use]
    pub fn unreleased(&self) -> Vec<Unreleased> {
        self.locker.unreleased()
    }

    /// The locker of the async API, for [`Runtime::wait_for`].
    #[must_use]
    pub const fn as_async(&self) -> &client::locker::Locker {
        &self.locker
    }

    /// The runtime that serves this locker.
    #[must_use]
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Ends waiting callers, waits for releases in the background, and closes the connections, in
    /// at most 10 seconds (see [`Locker::close`](crate::Locker::close)).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] in async code.
    pub fn close(&self) -> Result<()> {
        let close = async {
            self.locker.close().await;
            Ok(())
        };
        self.runtime.wait_for(close)
    }
}

/// Describes one wanted lock. Made by [`Locker::lock`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire`, `try_acquire` or `run` is called"]
pub struct LockBuilder {
    builder: client::builder::LockBuilder,
    runtime: Runtime,
}

impl LockBuilder {
    options!(builder.options);

    /// Takes the lock, and blocks until the lock is free or the wait ends.
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`](crate::LockBuilder::acquire) of the async API, and
    /// [`ErrorKind::InvalidArgument`] in async code.
    pub fn acquire(self) -> Result<Guard> {
        let guard = self.runtime.wait_for(self.builder.acquire())?;
        Ok(Guard::new(guard, self.runtime))
    }

    /// Makes one attempt. A busy lock is the answer [`Attempt::Busy`].
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`], without `Timeout`.
    pub fn try_acquire(self) -> Result<Attempt<Guard>> {
        let attempt = self.runtime.wait_for(self.builder.try_acquire())?;
        Ok(attempt.map(|guard| Guard::new(guard, self.runtime)))
    }

    /// Takes the lock, runs `work` on this thread while it is held, and releases it. Nothing stops
    /// the work from outside when the lock is lost: it calls [`LockWatch::check`] before each step
    /// that needs the lock, or learns of the loss by [`Runtime::on_lost`].
    ///
    /// ```
    /// # fn main() -> distlock::Result<()> {
    /// # let locker = distlock::blocking::connect("memory:")?;
    /// let done = locker.lock("order:3").run(|held| {
    ///     (1..=3).try_for_each(|_page| held.check()) // then write one page
    /// })?;
    /// done?; // the result of the work itself
    /// # locker.close() }
    /// ```
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`], and [`ErrorKind::Lost`] when the lock was lost before the end
    /// of the work.
    pub fn run<T>(self, work: impl FnOnce(LockWatch) -> T) -> Result<T> {
        let run = self.builder.run(|held| async move { work(held) });
        self.runtime.wait_for(run)
    }
}

/// Describes several wanted locks. Made by [`Locker::lock_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until `acquire` is called"]
pub struct LockAllBuilder {
    builder: client::builder::LockAllBuilder,
    runtime: Runtime,
}

impl LockAllBuilder {
    options!(builder.options);

    /// Takes all locks within one wait, in the byte order of their names.
    ///
    /// # Errors
    /// As [`LockAllBuilder::acquire`](crate::LockAllBuilder::acquire) of the async API,
    /// and [`ErrorKind::InvalidArgument`] in async code.
    pub fn acquire(self) -> Result<GuardSet> {
        let set = self.runtime.wait_for(self.builder.acquire())?;
        Ok(GuardSet::new(set, self.runtime))
    }
}
