//! The guard of a shared lock.
//!
//! Invariant: the drop of the last guard of an entry removes the entry and releases its slot. Only
//! the [holder](super::holder) decides whether the lock is held.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Ended, Epoch, Error, ErrorKind, Fence, FencingToken, LockName, LossReason, Moment, Released,
    Result, Ttl,
};

#[cfg(doc)]
use distlock_core::Guard;

#[cfg(doc)]
use super::Semaphore;
use super::{
    holder::{Hold, Holder},
    record::Mode,
    seat::Seat,
};

/// What a holder of a shared lock may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMode {
    /// It holds the lock together with other readers.
    Read,
    /// It holds the lock alone.
    Write,
    /// It has permits of a semaphore.
    Permits,
}

/// A held lock of readers and writers, or permits of a semaphore. While [`SharedGuard::is_valid`]
/// is `true`, nobody holds the lock whom this holder excludes.
///
/// Release a guard with [`SharedGuard::release`] and check the result. A drop of a guard starts a
/// release in the background without a result.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SharedGuard {
    // Dropped first: the watches must not see the end of the entry as a loss.
    hold: Held,
    seat: Arc<Seat>,
}

/// Says to the watches that the guard has ended, at the latest when it is dropped.
struct Held(Arc<Hold>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl SharedGuard {
    pub(super) fn new(seat: Arc<Seat>) -> Self {
        let hold = Held(Hold::new(seat.entry()));
        Self { hold, seat }
    }

    /// The name of the lock or of the semaphore.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold.0.name()
    }

    /// What this holder may do.
    #[must_use]
    pub fn mode(&self) -> SharedMode {
        match self.entry().mode() {
            Mode::Read => SharedMode::Read,
            Mode::Write => SharedMode::Write,
            Mode::Permits(_) => SharedMode::Permits,
        }
    }

    /// Which of the semaphore's permits these are: numbers from 0 to below the capacity, for
    /// resources that are bound to a place. Empty for readers and writers.
    #[must_use]
    pub fn indices(&self) -> Vec<u32> {
        match self.entry().mode() {
            Mode::Permits(indices) => indices,
            Mode::Read | Mode::Write => Vec::new(),
        }
    }

    /// The fencing token. It is higher than those of all earlier holders whom this one excludes.
    /// Holders that entered in one write have the same token, and so have readers of one process
    /// that hold at the same time; a writer's is its own.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.entry().token()
    }

    /// The store's history that the token belongs to: that of the store that keeps the records.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        let epoch = self.entry().epoch_of_records();
        epoch.unwrap_or_else(|| self.seat.slot().guard.epoch())
    }

    /// Token, owner and epoch together, as a [`FenceGuard`](distlock_core::FenceGuard) checks them.
    #[must_use]
    pub fn fence(&self) -> Fence {
        let owner = self.seat.slot().guard.fence().owner;
        Fence::new(self.token(), owner, self.epoch())
    }

    /// The TTL of the granted lease.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.seat.slot().guard.ttl()
    }

    /// Time until the local deadline; zero once the lock is lost. Without I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.0.remaining()
    }

    /// Whether the lock is certainly held. Without I/O. After `false`, the answer stays `false`.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.hold.0.is_valid()
    }

    /// [`SharedGuard::is_valid`] as a result, for `?`.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        self.hold.0.check()
    }

    /// Resolves when the lock is lost. Never resolves for a lock that is not lost.
    ///
    /// # Cancel safety
    /// Safe; any number of tasks may wait.
    pub async fn lost(&self) -> LossReason {
        match self.hold.0.ended().await {
            Ended::Lost(reason) => reason,
            _ => std::future::pending().await,
        }
    }

    /// A handle that may outlive the guard and does not keep the lock held.
    #[must_use]
    pub fn watch(&self) -> SharedWatch {
        SharedWatch(Arc::clone(&self.hold.0))
    }

    /// Renews now, with a new TTL that later renewals keep. Readers of one process that hold at the
    /// same time have one lease: while there are others, the TTL gets no shorter.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    ///
    /// # Cancel safety
    /// That of [`Guard::extend`].
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        self.check()?;
        self.seat.extend(ttl).await
    }

    /// Turns a writer into a reader, in one write: no other writer holds the lock in between. The
    /// guard gets a new token. Waiting readers may enter from then on.
    ///
    /// There is no way back: two readers that wait to become writers would wait for each other for
    /// ever. Release the lock, take it as a writer, and compare the token.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a guard that is no writer's. [`ErrorKind::Lost`], and
    /// failures of the store. After an error the guard is dropped: the lock is released in the
    /// background.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock is released in the background.
    pub async fn downgrade(self) -> Result<Self> {
        if self.mode() != SharedMode::Write {
            let problem = "only a writer can become a reader";
            return Err(Error::new(ErrorKind::InvalidArgument, problem).about(self.name()));
        }
        loop {
            self.check()?;
            match self.seat.hub().downgrade(self.entry()).await {
                Ok(()) => return Ok(self),
                // The record is read again, which shows whether it has happened.
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases the lock: removes the entry from the list of holders and releases the slot, at the
    /// same time.
    ///
    /// # Cancel safety
    /// Safe: when the future is dropped, the release continues in the background.
    pub async fn release(self) -> Released {
        let Self { hold, seat } = self;
        match (hold.0.leave(), Arc::into_inner(seat)) {
            (None, Some(last)) => last.release().await,
            // Other readers of this process go on with the entry.
            (None, None) => Released::Clean,
            (Some(reason), last) => {
                if let Some(last) = last {
                    let _ = last.release().await;
                }
                Released::AlreadyLost(reason)
            }
        }
    }

    fn entry(&self) -> &Arc<Holder> {
        self.hold.0.entry()
    }
}

impl fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGuard")
            .field("name", self.name())
            .field("mode", &self.entry().mode())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A view of a held shared lock for a task that must stop when the lock is lost. A watch does not
/// hold the lock, and a clone is cheap.
#[derive(Clone)]
pub struct SharedWatch(Arc<Hold>);

impl SharedWatch {
    /// As [`SharedGuard::is_valid`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// As [`SharedGuard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// The local deadline: the moment at which the lock is lost by this machine's clock unless it
    /// is renewed, and its entry is seen, before.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.0.deadline()
    }

    /// As [`SharedGuard::check`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason; [`ErrorKind::NotHeld`] after a release.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// The reason of the loss; `None` while the lock is held, and after a release.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.0.loss()
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.entry().token()
    }

    /// Resolves when the lock is released or lost.
    ///
    /// # Cancel safety
    /// Safe; any number of tasks may wait.
    pub async fn ended(&self) -> Ended {
        self.0.ended().await
    }
}

impl fmt::Debug for SharedWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWatch")
            .field("id", self.0.entry().id())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
