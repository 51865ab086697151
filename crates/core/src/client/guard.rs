//! The guard: the value that a caller holds while it holds the lock.
//!
//! This module owns the guards of a lease, and the steps with which the last guard ends the lease.
//! Invariant: when the last guard is released or dropped, also at an await of its release, the lock
//! is released or its release continues in the background. Only the lease state decides whether a
//! lock is held, never a guard.

use std::{fmt, sync::Arc, time::Duration};

use tracing::{
    Instrument as _, debug_span,
    field::{self, Empty},
};

use crate::{
    client::watch::LockWatch,
    clock::Moment,
    contract::LossReason,
    engine::{
        lease_state::LeaseState,
        lifecycle::closed_error,
        local_queue::LocalTurn,
        parts::LockerParts,
        release::{self, LeaseToRelease, Released, release_or_hand_over},
        renewal::renew_for_caller,
        ticket_steps,
    },
    fence::Fence,
    types::{
        error::{Error, ErrorKind, Result},
        ident::HolderLabel,
        name::LockName,
        ticket::Ticket,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// The longest wait of a release for a renewal that is in flight.
const JOIN: Duration = Duration::from_secs(5);

/// A held lock. While [`Guard::is_valid`] is `true`, no other process holds it.
///
/// Release a guard with [`Guard::release`] and check the result. A drop of a guard starts a release
/// in the background without a result; [`Locker::close`](crate::Locker::close) waits for such
/// releases. A guard that is leaked (`std::mem::forget`) is renewed, and keeps the lock, until the
/// program ends.
///
/// ```
/// use distlock::Released;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let locker = distlock::connect("memory:").await?;
/// let guard = locker.lock("order:4").acquire().await?;
/// tokio::select! {
///     // Resolves before another process can get the lock.
///     reason = guard.lost() => eprintln!("stop: {reason}"),
///     () = work() => guard.check()?, // an error if the lock is not held any more
/// }
/// match guard.release().await {
///     Released::Clean => {}
///     other => eprintln!("it was not held to the end: {other:?}"),
/// }
/// # locker.close().await; Ok(()) }
/// # async fn work() {}
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    parts: Arc<LockerParts>,
    lease_state: Arc<LeaseState>,
    /// Whether this guard is still counted in the lease state.
    live: bool,
}

impl Guard {
    /// The first guard on a lease, which was counted when the locker adopted the lease.
    pub(crate) fn new(
        parts: &Arc<LockerParts>,
        lease_state: Arc<LeaseState>,
        min_hold: Duration,
    ) -> Self {
        lease_state.hold_at_least(min_hold);
        Self {
            parts: Arc::clone(parts),
            lease_state,
            live: true,
        }
    }

    /// A further guard on a lease that has counted it.
    pub(crate) fn nested(
        parts: &Arc<LockerParts>,
        lease_state: Arc<LeaseState>,
        min_hold: Duration,
    ) -> Self {
        parts.lifecycle.add_guard();
        Self::new(parts, lease_state, min_hold)
    }

    /// Sets a minimum hold: the lock is not free before `time` has passed since its acquire.
    pub(crate) fn hold_at_least(&self, time: Duration) {
        self.lease_state.hold_at_least(time);
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.lease_state.name()
    }

    /// The label with which this process acquired or resumed the lock.
    #[must_use]
    pub fn holder(&self) -> &HolderLabel {
        self.lease_state.holder()
    }

    /// The fencing token, which is higher than that of every earlier holder. Show the token to the
    /// resource that the lock protects.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.lease_state.token()
    }

    /// The store's history that the token belongs to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.lease_state.epoch()
    }

    /// Token, owner and epoch together, as a [`FenceGuard`](crate::FenceGuard) checks them.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.lease_state.fence()
    }

    /// The TTL that the store granted. The granted TTL is less than the requested one if the store
    /// limits its leases (see [`Capabilities::max_lease`](crate::Capabilities::max_lease)).
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.lease_state.ttl()
    }

    /// Time until the local deadline; zero once the lock is lost. Without I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_state.remaining()
    }

    /// Whether the lock is certainly held. Without I/O. After `false`, the answer stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease_state.is_valid()
    }

    /// [`Guard::is_valid`] as a result, for `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason; [`ErrorKind::NotHeld`] after a release.
    pub fn check(&self) -> Result<()> {
        self.lease_state.check_held()
    }

    /// Resolves when the lock is lost, at the latest 250 ms of running time after its deadline.
    /// Never resolves for a lock that is not lost.
    ///
    /// # Cancel safety
    /// Safe; any number of tasks may wait.
    pub async fn lost(&self) -> LossReason {
        match self.lease_state.ended().await {
            Some(reason) => reason,
            // Another guard of this lease turned the lock into a ticket, which is no loss.
            None => std::future::pending().await,
        }
    }

    /// A handle on the lease that may outlive the guard and does not keep the lock held.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(&self.lease_state))
    }

    /// Renews now, with a new TTL that later renewals keep. If the new TTL is shorter, the deadline
    /// is lowered before the request is sent. The deadline rises only when the store confirms the
    /// renewal.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`]; [`ErrorKind::InvalidArgument`] for a TTL out of range; failures of the
    /// store, after which the lock is still held until its deadline.
    ///
    /// An earlier request for this lock without an answer may still reach the store and cut the
    /// lease to its own TTL. After such a request, the deadline after an extension is no later than
    /// with that TTL. [`Guard::remaining`] returns the time to the resulting deadline.
    ///
    /// # Cancel safety
    /// When the future is dropped, the extension may or may not happen. The deadline is right in
    /// both cases.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = self
            .parts
            .settings
            .checked_ttl(self.parts.backend.capabilities(), ttl)?;
        self.check()?;
        // The extension runs on the keeper thread. There all renewals and extensions of one lease
        // use one connection, so they reach the store in the order of their sending.
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (shared, lease_state) = (self.parts.keeper.shared(), Arc::clone(&self.lease_state));
        let renewal = renew_for_caller(shared, lease_state, ttl, answer);
        self.parts.keeper.spawn_awaited(renewal);
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| Err(closed_error())),
            reason = self.lost() => Err(self.lost_error(reason)),
        }
    }

    /// Another guard on the same lease. The lock is free when its last guard is released.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is not held any more.
    pub fn reenter(&self) -> Result<Self> {
        self.check()?;
        if self.lease_state.add_guard() {
            Ok(Self::nested(
                &self.parts,
                Arc::clone(&self.lease_state),
                Duration::ZERO,
            ))
        } else {
            Err(Error::new(ErrorKind::NotHeld, "the lock was released").about(self.name()))
        }
    }

    /// Releases the lock, or hands it over to the next task of this process that waits for it. With
    /// several guards on one lease, only the release of the last guard does so.
    ///
    /// # Cancel safety
    /// Safe: when the future is dropped, the release continues in the background.
    pub async fn release(mut self) -> Released {
        self.live = false;
        if !self.lease_state.remove_guard() {
            return self
                .lease_state
                .loss_now()
                .map_or(Released::Clean, Released::AlreadyLost);
        }
        let mut leaving = self.last_guard_release();
        leaving.join_renewal().await;
        let Some(turn) = leaving.finish() else {
            return self
                .lease_state
                .loss_now()
                .map_or(Released::Clean, Released::AlreadyLost);
        };
        let what = LeaseToRelease::of(&self.lease_state, turn, leaving.keep_until());
        let (lock, backend) = (self.name(), self.parts.backend_name());
        let token = self.token().get();
        let span = debug_span!("distlock.release", ?lock, backend, token, outcome = Empty);
        let released = release_or_hand_over(&self.parts, &self.parts.backend, what)
            .instrument(span.clone())
            .await;
        match &released {
            Released::Clean => span.record("outcome", "clean"),
            Released::AlreadyLost(reason) => span.record("outcome", field::display(reason)),
            Released::Unconfirmed(error) => span.record("outcome", field::display(error)),
        };
        leaving.stage = Stage::Gone;
        released
    }

    /// Turns the lock into a ticket that another process can [`resume`](crate::Locker::resume)
    /// once. This step renews the lease, and renewals stop. The lease then runs until the ticket is
    /// resumed, or until it expires.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the backend has no tickets, [`ErrorKind::InvalidArgument`]
    /// while nested guards exist, [`ErrorKind::Lost`], and failures of the store. After an error
    /// this guard is dropped: the lock is released in the background, unless nested guards still
    /// share it.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock is released in the background.
    pub async fn into_ticket(self) -> Result<Ticket> {
        if !self.lease_state.begin_release_of_only_guard() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "nested guards still share this lock",
            )
            .about(self.name()));
        }
        let mut guard = self;
        // From here on only `leaving` ends the lease. The drop of `guard` must not end it a second
        // time.
        guard.live = false;
        let mut leaving = guard.last_guard_release();
        leaving.join_renewal().await;
        let ticket = ticket_steps::issue(&guard.parts, &guard.lease_state).await;
        if ticket.is_ok() {
            drop(leaving.finish());
            leaving.stage = Stage::Gone;
        }
        ticket
    }

    /// The clock of the lease.
    #[cfg(feature = "blocking")]
    pub(crate) fn clock(&self) -> Arc<dyn crate::clock::Clock> {
        Arc::clone(self.parts.timing.clock())
    }

    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        self.lease_state.lost_error(reason)
    }

    fn last_guard_release(&self) -> LastGuardRelease<'_> {
        LastGuardRelease {
            parts: &self.parts,
            lease_state: &self.lease_state,
            stage: Stage::Held,
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::mem::take(&mut self.live) && self.lease_state.remove_guard() {
            drop(self.last_guard_release());
        }
        // Last, so that a close that sees no guard finds the background release.
        self.parts.lifecycle.remove_guard();
    }
}

/// The release by the last guard. When this value is dropped, the remaining steps happen in the
/// background.
struct LastGuardRelease<'a> {
    parts: &'a Arc<LockerParts>,
    lease_state: &'a Arc<LeaseState>,
    stage: Stage,
}

enum Stage {
    /// The lease still counts as held.
    Held,
    /// The lease has ended in this process. The store may or may not have released the lock.
    Leaving,
    /// Nothing is left to do.
    Gone,
}

impl LastGuardRelease<'_> {
    /// Waits for a renewal in flight, because no renewal may be in flight while the lock is
    /// released. The wait ends after [`JOIN`] or when the lease is lost.
    async fn join_renewal(&self) {
        self.lease_state.begin_release();
        if let Ok(in_turn) = self.lease_state.io.try_lock() {
            drop(in_turn);
            return;
        }
        tokio::select! {
            biased;
            _ = self.lease_state.io.lock() => {}
            _ = self.lease_state.ended() => {}
            () = self.parts.timing.clock().sleep(JOIN) => {}
        }
    }

    /// Ends the lease, and returns the local turn if the lease has it. `None` when the lease was
    /// lost before.
    fn finish(&mut self) -> Option<Option<LocalTurn>> {
        let finished = self.lease_state.finish();
        // Removed after the end of the lease. So a renewal that gets its answer now does not put
        // the lease back into the schedule.
        self.parts.keeper.forget(self.lease_state);
        match finished {
            Ok(turn) => {
                self.stage = Stage::Leaving;
                Some(turn)
            }
            Err(_) => {
                self.stage = Stage::Gone;
                // The rest of a lease keeps a minimum hold at least in part.
                if self.keep_until().is_none() {
                    release::release_lost_lease(self.parts, self.lease_state);
                }
                None
            }
        }
    }

    /// The end of the minimum hold, if it is still to come.
    fn keep_until(&self) -> Option<Moment> {
        let min_hold = self.lease_state.min_hold();
        let until = self.lease_state.acquired() + min_hold;
        (!min_hold.is_zero() && self.parts.timing.now() < until).then_some(until)
    }
}

impl Drop for LastGuardRelease<'_> {
    fn drop(&mut self) {
        let (turn, maybe_released) = match self.stage {
            Stage::Gone => return,
            // The dropped release may have reached the store. The store then answers the next
            // release that the owner does not hold the lock, which is no loss.
            Stage::Leaving => (None, true),
            Stage::Held => match self.finish() {
                Some(turn) => (turn, false),
                None => return,
            },
        };
        let mut what = LeaseToRelease::of(self.lease_state, turn, self.keep_until());
        what.maybe_released = maybe_released;
        release::release_in_background(self.parts, what);
    }
}
