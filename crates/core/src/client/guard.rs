//! A held lock in a caller's hands.

use std::{fmt, sync::Arc, time::Duration};

use tracing::{Instrument as _, debug_span};

use crate::{
    contract::LossReason,
    engine::{
        clock::Moment,
        keeper::renew_for_caller,
        lease_state::LeaseState,
        lifecycle::closed_error,
        local_queue::LocalTurn,
        parts::LockerParts,
        release::{self, LeaseToRelease, Released, release_or_hand_over},
        ticket_steps,
    },
    fence::Fence,
    types::{
        error::{Error, ErrorKind, Result},
        name::LockName,
        ticket::Ticket,
        token::{Epoch, FencingToken},
        ttl::Ttl,
    },
};

/// How long a release waits for a renewal that is on its way.
const JOIN: Duration = Duration::from_secs(5);

/// A held lock. While [`Guard::is_valid`] says so, nobody else holds it.
///
/// Release it with [`Guard::release`] and look at the answer. Dropping it starts a best-effort release in the background,
/// which [`Locker::close`](crate::Locker::close) waits for; leaking it (`std::mem::forget`) keeps the lock until the program
/// ends.
///
/// ```
/// use distlock::Released;
///
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// # let locker = distlock::connect("memory:").await?;
/// let guard = locker.lock("order:4").acquire().await?;
/// tokio::select! {
///     // Told before anybody else can get the lock.
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
    /// Whether this guard still counts.
    live: bool,
}

/// How a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was released (or turned into a ticket) by its owner.
    Released,
    /// It was lost.
    Lost(LossReason),
}

impl Guard {
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

    /// From now on, it is not free any sooner than this after it was taken.
    pub(crate) fn hold_at_least(&self, time: Duration) {
        self.lease_state.hold_at_least(time);
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.lease_state.name()
    }

    /// Higher than that of every earlier holder: show it to whatever the lock protects.
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

    /// The lease's present duration, as it was granted: less than the TTL that was asked for where
    /// the store grants no more (see [`Capabilities::max_lease`](crate::Capabilities::max_lease)).
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.lease_state.ttl()
    }

    /// Time until the local deadline; zero once it is lost. Local, no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_state.remaining()
    }

    /// Whether it is held for sure. Local, no I/O, and sticky: once `false`, always `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease_state.is_valid()
    }

    /// [`Guard::is_valid`] as a result, for `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason, [`ErrorKind::NotHeld`] once it has ended otherwise.
    pub fn check(&self) -> Result<()> {
        self.lease_state.check_held()
    }

    /// Resolves when the lock is lost, at the latest 250 ms of running time after its deadline. Never resolves for a lock
    /// that is not lost.
    ///
    /// # Cancel safety
    /// Safe; any number of tasks may wait.
    pub async fn lost(&self) -> LossReason {
        match self.lease_state.ended().await {
            Some(reason) => reason,
            // Another guard of the same scope turned it into a ticket: ended, and no loss.
            None => std::future::pending().await,
        }
    }

    /// A handle that outlives the guard and only watches.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch {
            lease_state: Arc::clone(&self.lease_state),
        }
    }

    /// Renews now, with a new TTL that later renewals keep. The deadline is lowered first if the new lease is shorter, and
    /// raised only when the store confirms.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`]; [`ErrorKind::InvalidArgument`] for a TTL out of range; failures of the store, after which the
    /// lock is still held until its deadline.
    ///
    /// After a request for this lock that was never answered, no extension is believed for longer than that one asked for: it
    /// may still reach the store and cut the lease. [`Guard::remaining`] says what is believed.
    ///
    /// # Cancel safety
    /// The extension may or may not happen when the future is dropped; the deadline accounts for both.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = self
            .parts
            .settings
            .checked_ttl(self.parts.backend.capabilities(), ttl)?;
        self.check()?;
        // On the keeper's thread: everything that changes one lease travels on one connection, in one order.
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

    /// Another guard on the same lock: it is released when the last of them is.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when it is not held any more.
    pub fn reenter(&self) -> Result<Self> {
        self.check()?;
        if self.lease_state.add_guard() {
            Ok(Self::new(
                &self.parts,
                Arc::clone(&self.lease_state),
                Duration::ZERO,
            ))
        } else {
            Err(Error::new(ErrorKind::NotHeld, "the lock was released").about(self.name()))
        }
    }

    /// Releases the lock, or hands it to the next task of this process that waits for it. With nested guards, only the last
    /// release does.
    ///
    /// # Cancel safety
    /// Safe: when the future is dropped, the release goes on in the background.
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
        let what = LeaseToRelease::of(&self.lease_state, turn, leaving.keep_for());
        let span = debug_span!("distlock.release", lock = ?self.name(), backend = self.parts.backend_name());
        let released = release_or_hand_over(&self.parts, &self.parts.backend, what)
            .instrument(span)
            .await;
        leaving.stage = Stage::Gone;
        released
    }

    /// Turns the lock into a ticket that another process can [`resume`](crate::Locker::resume) once. Renewal stops; the
    /// lease, renewed by this step, runs until it is resumed or ends.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the backend has no tickets, [`ErrorKind::InvalidArgument`] while nested guards
    /// exist, [`ErrorKind::Lost`], and failures of the store. After an error the lock is released in the background.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock is released in the background.
    pub async fn into_ticket(self) -> Result<Ticket> {
        if !self.lease_state.leave_alone() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "nested guards still share this lock",
            )
            .about(self.name()));
        }
        let mut guard = self;
        // From here on the last_guard_release sees to its end, and it alone.
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
    }
}

/// The last guard on its way out. Whatever step it is dropped at, the rest happens in the background.
struct LastGuardRelease<'a> {
    parts: &'a Arc<LockerParts>,
    lease_state: &'a Arc<LeaseState>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The hold still counts as held.
    Held,
    /// It has ended here; the store may or may not know.
    Leaving,
    /// Nothing is left to do.
    Gone,
}

impl LastGuardRelease<'_> {
    /// No renewal may be on its way while the lock is released.
    async fn join_renewal(&self) {
        self.lease_state.leave();
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

    /// Ends the hold. `None` when it had been lost.
    fn finish(&mut self) -> Option<Option<LocalTurn>> {
        let finished = self.lease_state.finish();
        // A renewal that has just ended files no hold that is over.
        self.parts.keeper.forget(self.lease_state);
        match finished {
            Ok(turn) => {
                self.stage = Stage::Leaving;
                Some(turn)
            }
            Err(_) => {
                self.stage = Stage::Gone;
                release::release_longer_lease(self.parts, self.lease_state);
                None
            }
        }
    }

    fn keep_for(&self) -> Option<Ttl> {
        let min_hold = self.lease_state.min_hold();
        if min_hold.is_zero() {
            return None;
        }
        let held = self.parts.timing.now().since(self.lease_state.acquired());
        let left = min_hold.checked_sub(held).filter(|left| !left.is_zero())?;
        // Whole milliseconds, and never less than asked for.
        let left = left + Duration::from_nanos(999_999);
        let least = self.parts.backend.capabilities().min_ttl;
        Ttl::new(left.max(least).min(Ttl::MAX.duration())).ok()
    }
}

impl Drop for LastGuardRelease<'_> {
    fn drop(&mut self) {
        let turn = match self.stage {
            Stage::Gone => return,
            Stage::Leaving => None,
            Stage::Held => match self.finish() {
                Some(turn) => turn,
                None => return,
            },
        };
        let maybe_released = self.stage == Stage::Leaving && turn.is_none();
        let mut what = LeaseToRelease::of(self.lease_state, turn, self.keep_for());
        what.maybe_released = maybe_released;
        release::release_in_background(self.parts, what);
    }
}

/// Watches a lock without holding it: cheap to clone, free of lifetimes, for a task that must stop when the lock ends.
#[derive(Clone)]
pub struct LockWatch {
    lease_state: Arc<LeaseState>,
}

impl LockWatch {
    pub(crate) fn of(guard: &Guard) -> Self {
        guard.watch()
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

    /// As [`Guard::is_valid`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease_state.is_valid()
    }

    /// As [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease_state.remaining()
    }

    /// Why the lock was lost; `None` while it is held, and once it is released. Local, no I/O.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.lease_state.loss_now()
    }

    /// When the lease ends by this process's clock unless it is renewed. Of a lock that was lost,
    /// when it would have ended: who takes it for lost sooner has learned that from the store.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.lease_state.deadline()
    }

    /// As [`Guard::check`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason, [`ErrorKind::NotHeld`] once it is released.
    pub fn check(&self) -> Result<()> {
        self.lease_state.check_held()
    }

    /// Resolves when the lock has ended, one way or the other.
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
