//! The entry point for callers: a locker takes the locks of one store.
//!
//! This module owns the public calls of a locker and the order of the steps of its close.
//! Invariant: every call ends within a bound, also when the store hangs. The engine does the work
//! of acquires, renewals and releases.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

#[cfg(doc)]
use crate::types::error::ErrorKind;
use crate::{
    client::{
        builder::{LockAllBuilder, LockBuilder},
        guard::Guard,
    },
    clock::{Clock, SystemClock},
    contract::{DistLock, Forced, Health, LockInfo, capabilities::Capabilities},
    engine::{
        bounded::{DROPPING, LANDING, STOPPING, at_most, bounded, close_bounded},
        jobs::Spawn,
        meters::GroupOf,
        parts::LockerParts,
        settings::Settings,
        ticket_steps,
        unreleased::Unreleased,
    },
    types::{
        error::{Error, Result},
        name::LockName,
        ticket::Ticket,
        token::FencingToken,
    },
};

/// The number of names in one page of [`Locker::list`].
const PAGE: u32 = 500;

/// The longest wait of `inspect`, of one page of `list`, of `force_release` and of `health` for the
/// store.
const LOOK: Duration = Duration::from_secs(10);

/// Takes locks from one store.
///
/// A clone is cheap and shares everything: the local queues, the keeper thread, the connections.
/// The drop of the last clone and the last guard ends the thread. [`Locker::close`] also waits for
/// releases that are still in flight.
///
/// The futures of a locker need a tokio runtime with time enabled. Do not pause tokio's time in a
/// test (`start_paused`): every limit on a wait for the store would then pass at once. To test your
/// own handling of expiry, inject a [`ManualClock`](crate::ManualClock). Renewals, background
/// releases and clean-up run on the locker's own keeper thread, not on that runtime.
///
/// ```
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// let locker = distlock::connect("memory:").await?;
/// let guard = locker.lock("order:1").acquire().await?;
/// let seen = locker.inspect("order:1").await?;
/// assert_eq!(seen.held.unwrap().token, Some(guard.token()));
/// assert!(guard.release().await.is_clean());
/// locker.close().await; // waits for releases that are still in flight
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    parts: Arc<LockerParts>,
}

impl Locker {
    /// A locker with the machine's clock.
    pub fn new(backend: Arc<dyn DistLock>) -> Self {
        Self::builder(backend).build()
    }

    /// A locker with options.
    pub fn builder(backend: Arc<dyn DistLock>) -> LockerBuilder {
        LockerBuilder {
            backend,
            clock: Arc::new(SystemClock),
            hand_over_limit: 16,
            seed: None,
            group_of: None,
            keeper_on: None,
        }
    }

    /// Waits until the keeper thread has opened its own connection. So a caller learns now that the
    /// store is unreachable, and not at the first renewal.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], or the error of the first try to open the connection, for example
    /// [`ErrorKind::Unavailable`]. After such an error, the keeper thread still tries to connect in
    /// the background.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn ready(&self) -> Result<()> {
        self.parts.lifecycle.check_open()?;
        self.parts.keeper.ready().await
    }

    /// A builder for one lock. If the name breaks a rule, `acquire`, `try_acquire` and `run` of the
    /// builder return the error.
    pub fn lock(&self, name: impl AsRef<str>) -> LockBuilder {
        LockBuilder::new(Arc::clone(&self.parts), LockName::of_caller(name))
    }

    /// As [`Locker::lock`], for a name that was checked before.
    pub fn lock_named(&self, name: &LockName) -> LockBuilder {
        LockBuilder::new(Arc::clone(&self.parts), Ok(name.clone()))
    }

    /// A builder for several locks at once. The names are sorted and duplicates removed, and either
    /// all locks are taken or none.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> distlock::Result<()> {
    /// # let locker = distlock::connect("memory:").await?;
    /// let both = locker.lock_all(["account:7", "account:3"]).acquire().await?;
    /// let [three, seven] = both.guards() else { unreachable!("two were asked for") };
    /// assert_eq!((three.name().as_str(), seven.name().as_str()), ("account:3", "account:7"));
    /// for (name, released) in both.release().await {
    ///     assert!(released.is_clean(), "{name}");
    /// }
    /// # locker.close().await; Ok(()) }
    /// ```
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllBuilder {
        LockAllBuilder::new(
            Arc::clone(&self.parts),
            names.into_iter().map(LockName::of_caller).collect(),
        )
    }

    /// The state of a lock: its holder, and its waiters if the store knows them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`],
    /// [`ErrorKind::Closed`], and failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = LockName::new(name)?;
        let operation = self.parts.backend.inspect(&name);
        self.ask(operation, "inspect", Some(&name))
            .await
            .map_err(Error::of_read)
    }

    /// All held locks whose names start with `prefix`, in byte order of their names. The list is
    /// not one snapshot: if a lock changes its holder during the call, the list may miss that lock
    /// or show the old holder.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], and failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut all: Vec<LockInfo> = Vec::new();
        loop {
            let after = all.last().map(|info| info.name.clone());
            let page = self.list_page(prefix, after.as_ref(), PAGE).await?;
            let last = page.len() < PAGE as usize;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }

    /// One page of [`Locker::list`]: at most `limit` locks after the name `after`.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], and failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_page(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        let operation = self.parts.backend.list(prefix, after, limit);
        self.ask(operation, "list", None)
            .await
            .map_err(Error::of_read)
    }

    /// Frees a lock of any holder, if its token is still `token`. The guard of that holder is lost
    /// at its next renewal, or at its deadline. The reason is
    /// [`LossReason::ForceReleased`](crate::LossReason::ForceReleased) if the store records forced
    /// releases.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`],
    /// [`ErrorKind::Closed`], and failures of the store.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock may or may not be freed. A second call is harmless.
    pub async fn force_release(
        &self,
        name: impl AsRef<str>,
        token: FencingToken,
    ) -> Result<Forced> {
        let name = LockName::new(name)?;
        let operation = self.parts.backend.force_release(&name, token);
        self.ask(operation, "force_release", Some(&name)).await
    }

    /// The capabilities of the backend.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.parts.backend.capabilities()
    }

    /// The clock of all leases of this locker.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(self.parts.timing.clock())
    }

    /// Connects, and checks every setting of the server that a promise of this library depends on.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], and the error of a store that does not answer.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn health(&self) -> Result<Health> {
        let operation = self.parts.backend.health();
        self.ask(operation, "health", None)
            .await
            .map_err(Error::of_read)
    }

    /// The locks that the store may still hold although they were released: it has not confirmed
    /// the release. The background repeats each release until the lease ends or the locker is
    /// closed. After a [`close`](Self::close), these are the locks that it could not release. A
    /// lock whose lease has ended since then may stay on the list for a while.
    #[must_use]
    pub fn unreleased(&self) -> Vec<Unreleased> {
        self.parts.unreleased.list(self.parts.timing.now())
    }

    /// Ends waiting callers with [`ErrorKind::Closed`], waits for guards and for background
    /// releases, and closes the connections. From then on every request to the store is refused
    /// with [`ErrorKind::Closed`].
    ///
    /// Release all guards before the close. The close waits up to 1 second, by the store's clock
    /// and within the time that acquires in progress have left, for guards that other tasks still
    /// hold, and the locks of guards that are dropped or released by then are free after the close.
    /// So `task.abort(); locker.close().await` frees the lock of a task that yields within a
    /// second; a task that blocks its thread for longer drops its guard too late. To be sure, await
    /// the task after the abort. A guard that is still held then is not renewed any more and is
    /// lost at its deadline. A release after the close does not reach the store: it returns
    /// [`Released::Unconfirmed`](crate::Released::Unconfirmed), and the lock is free when its lease
    /// ends.
    ///
    /// While the store is away, the close repeats these releases for about 4 seconds. A close takes
    /// at most 10 seconds, also when the store hangs, and with every option of the store. A lock
    /// whose release has no answer by then is free when its lease ends;
    /// [`unreleased`](Self::unreleased) names it.
    ///
    /// One exception exists, at a store whose locks end with the session of their process
    /// (ZooKeeper). A lock that was released before the end of its
    /// [`min_hold`](crate::LockBuilder::min_hold) is kept by this process, so the close waits for
    /// that end.
    ///
    /// # Cancel safety
    /// Safe: a second call continues the steps of the first one.
    pub async fn close(&self) {
        self.parts.lifecycle.close();
        let clock = &**self.parts.timing.clock();
        let until = clock.now() + LANDING;
        // An acquire that is still granted is released while the connections are open. The wait for
        // such acquires is bounded, because a caller may keep a future that it no longer polls.
        // Background releases then get at least one second.
        at_most(clock, LANDING, self.parts.lifecycle.no_acquire_left()).await;
        // `task.abort()` returns before the runtime has dropped the task, and the release of its
        // guard starts at that drop. The wait is bounded, because a caller may keep its guard.
        let left = until.since(clock.now()).min(DROPPING);
        at_most(clock, left, self.parts.lifecycle.no_guard_left()).await;
        let left = until.since(clock.now()).max(Duration::from_secs(1));
        at_most(clock, left, self.parts.keeper.no_job_left()).await;
        // The wait is not bounded here, because each hold ends at its own time.
        self.parts.keeper.no_hold_left().await;
        at_most(clock, STOPPING, self.parts.keeper.stop()).await;
        close_bounded(clock, self.parts.backend.close()).await;
    }

    /// Resumes the lock of a ticket: returns a guard for its lease. A ticket can be resumed once.
    ///
    /// # Errors
    /// [`ErrorKind::NotHeld`] when the lease behind the ticket has ended
    /// or the ticket was used before; [`ErrorKind::Unsupported`];
    /// [`ErrorKind::Closed`]; failures of the store.
    ///
    /// # Cancel safety
    /// When the future is dropped, the ticket may be used up. The lease then ends by itself.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        let lease_state = ticket_steps::resume(&self.parts, ticket).await?;
        let guard = Guard::new(&self.parts, lease_state, Duration::ZERO);
        guard.check()?;
        Ok(guard)
    }

    /// Renews the lease behind a ticket, which stays usable. Several processes may renew one ticket
    /// at the same time.
    ///
    /// # Errors
    /// As [`Locker::resume`]. After [`ErrorKind::OutcomeUnknown`] the lease may have its old TTL or
    /// the new TTL.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lease may have its old TTL or the new TTL.
    pub async fn renew_ticket(&self, ticket: &Ticket, ttl: Duration) -> Result<()> {
        ticket_steps::renew(&self.parts, ticket, ttl).await
    }

    /// Releases the lock behind a ticket.
    ///
    /// # Errors
    /// As [`Locker::resume`]. After an error of the store, the lock may or may not be released; a
    /// repeated call is safe.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock may or may not be released.
    pub async fn release_ticket(&self, ticket: &Ticket) -> Result<()> {
        ticket_steps::release(&self.parts, ticket).await
    }

    /// Runs one operation within the limit [`LOOK`], unless the locker was closed. Adds backend,
    /// operation and name to an error.
    async fn ask<T>(
        &self,
        operation: impl Future<Output = Result<T>>,
        called: &'static str,
        name: Option<&LockName>,
    ) -> Result<T> {
        let answer = match self.parts.lifecycle.check_open() {
            Ok(()) => bounded(&**self.parts.timing.clock(), LOOK, operation).await,
            Err(closed) => Err(closed),
        };
        answer.map_err(|error| {
            let error = error.on(self.parts.backend_name()).during(called);
            match name {
                Some(name) => error.about(name),
                None => error,
            }
        })
    }
}

/// Options of a [`Locker`].
#[derive(Clone)]
#[must_use]
pub struct LockerBuilder {
    backend: Arc<dyn DistLock>,
    clock: Arc<dyn Clock>,
    hand_over_limit: u32,
    seed: Option<u64>,
    group_of: Option<GroupOf>,
    keeper_on: Option<Spawn>,
}

impl LockerBuilder {
    /// Replaces the machine's clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the number of hand-overs in a row inside this process after which the lock is released,
    /// so that other processes can get it. The default is 16; with 0, every release goes to the
    /// store. A hand-over does not count if the store reports that no other process waits
    /// ([`Grant::others_waiting`](crate::Grant::others_waiting)).
    pub fn hand_over_limit(mut self, limit: u32) -> Self {
        self.hand_over_limit = limit;
        self
    }

    /// Adds a label `group` to the [metrics] of this locker's locks. `group_of` makes it from the
    /// name of the lock. The name itself is never a label.
    ///
    /// Make few groups: each has its own set of metrics, for as long as the locker lives. After 100
    /// groups, all further ones count as the group `other`, and a warning is logged once.
    /// `group_of` is called once for each lock that is asked for, on the caller's thread.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> distlock::Result<()> {
    /// # let store = distlock::open("memory:").await?;
    /// let locker = distlock::Locker::builder(store.backend())
    ///     // `order:42` is in the group `order`.
    ///     .metrics_group(|name| name.split(':').next().unwrap_or("other"))
    ///     .build();
    /// # locker.close().await; Ok(()) }
    /// ```
    ///
    /// [metrics]: https://docs.rs/metrics
    pub fn metrics_group(
        mut self,
        group_of: impl Fn(&str) -> &str + Send + Sync + 'static,
    ) -> Self {
        self.group_of = Some(Arc::new(group_of));
        self
    }

    /// Seeds the random jitter of pauses, for repeatable tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// For simulations: no keeper thread is started. Instead, `spawn` gets the keeper's loop and
    /// each of its jobs, and must have them polled as long as a guard lives. With its own clock and
    /// seed, the simulation then controls every step.
    pub fn keeper_on(
        mut self,
        spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static,
    ) -> Self {
        self.keeper_on = Some(Arc::new(spawn));
        self
    }

    /// Starts the keeper thread, which opens its own connection in the background (see
    /// [`Locker::ready`]).
    #[must_use]
    pub fn build(self) -> Locker {
        let Self {
            backend,
            clock,
            hand_over_limit,
            seed,
            group_of,
            keeper_on,
        } = self;
        let settings = Settings::new(hand_over_limit);
        Locker {
            parts: LockerParts::start(backend, clock, seed, settings, group_of, keeper_on),
        }
    }
}

impl fmt::Debug for LockerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockerBuilder")
            .field("backend", &self.backend)
            .field("clock", &self.clock)
            .field("hand_over_limit", &self.hand_over_limit)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
