//! [`Periodic`] and [`Election`] for programs without async code, over a
//! [`blocking::Store`](Store).
//!
//! The work is a closure that runs on the caller's thread. Nothing stops it from outside when its
//! lock is lost: it calls [`LockWatch::check`] before each step that needs the lock, or learns of
//! the loss by [`Runtime::on_lost`]. Each value holds its counterpart of the async API, whose
//! promises hold here too. The other recipes need no counterpart here:
//! `store.runtime().wait_for(..)` waits for any of their calls.

use std::time::Duration;

#[cfg(doc)]
use distlock_core::ErrorKind;
use distlock_core::{
    LockWatch, Result,
    blocking::{Runtime, Store},
};

use crate::{
    Ran,
    election::{self, Leader, Led, Term},
    periodic,
};

/// Runs jobs once per period. A clone is cheap.
///
/// ```
/// use std::time::Duration;
///
/// use distlock::blocking;
/// use distlock_recipes::{Ran, blocking::Periodic};
///
/// # fn main() -> distlock::Result<()> {
/// # let store = blocking::open("memory:?private=true")?;
/// let jobs = Periodic::new(&store)?;
/// let day = Duration::from_secs(24 * 3600);
/// let ran = jobs.at_most_once("report", day, |held| {
///     held.check()?; // then write one page
///     Ok("written")
/// })?;
/// assert!(matches!(ran, Ran::Here("written")));
/// let again = jobs.at_most_once("report", day, |_held| Ok("written"))?;
/// assert!(matches!(again, Ran::Before(_)));
/// # store.close() }
/// ```
#[derive(Clone, Debug)]
pub struct Periodic {
    jobs: periodic::Periodic,
    runtime: Runtime,
}

impl Periodic {
    /// Jobs recorded in this store, under its locks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where records have no ages.
    pub fn new(store: &Store) -> Result<Self> {
        Ok(Self {
            jobs: periodic::Periodic::new(store.as_async())?,
            runtime: store.runtime().clone(),
        })
    }

    /// Repeats a job within its period when it has not succeeded (see
    /// [`Periodic::retry_failed`](crate::Periodic::retry_failed)).
    #[must_use]
    pub fn retry_failed(mut self) -> Self {
        self.jobs = self.jobs.retry_failed();
        self
    }

    /// Runs `work` on this thread, unless the job `name` was started within the period `every` or
    /// is running now (see [`Periodic::at_most_once`](crate::Periodic::at_most_once)).
    ///
    /// # Errors
    /// As the async call, and [`ErrorKind::InvalidArgument`] in async code. [`ErrorKind::Lost`]
    /// comes after the end of the work.
    pub fn at_most_once<T>(
        &self,
        name: &str,
        every: Duration,
        work: impl FnOnce(LockWatch) -> Result<T>,
    ) -> Result<Ran<T>> {
        let work = |held| async move { work(held) };
        self.runtime
            .wait_for(self.jobs.at_most_once(name, every, work))
    }
}

/// One candidate of an election. A clone is cheap.
///
/// ```
/// use distlock::blocking;
/// use distlock_recipes::{blocking::Election, election::Led};
///
/// # fn main() -> distlock::Result<()> {
/// # let store = blocking::open("memory:?private=true")?;
/// let candidate = Election::new(&store, "scheduler", "host-a")?;
/// let led = candidate.run_while_leader(|term| {
///     (1..=3).take_while(|_step| term.seat.is_valid()).count() // then do one step
/// })?;
/// assert!(matches!(led, Led::Done(3)));
/// # store.close() }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    election: election::Election,
    runtime: Runtime,
}

impl Election {
    /// A candidate of the election `name`.
    ///
    /// # Errors
    /// As [`Election::new`](election::Election::new).
    pub fn new(store: &Store, name: &str, candidate: &str) -> Result<Self> {
        Ok(Self {
            election: election::Election::new(store.as_async(), name, candidate)?,
            runtime: store.runtime().clone(),
        })
    }

    /// The TTL of the lock (see [`Election::ttl`](election::Election::ttl)).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.election = self.election.ttl(ttl);
        self
    }

    /// Waits until this candidate leads, runs the work on this thread, and resigns.
    ///
    /// The work must end soon after `term.seat` is not valid any more, because another candidate
    /// leads then. [`Led::Stopped`]: the lock was lost before the work began.
    ///
    /// # Errors
    /// As [`Election::campaign`](election::Election::campaign), and [`ErrorKind::InvalidArgument`]
    /// in async code.
    pub fn run_while_leader<T>(&self, work: impl FnOnce(Term) -> T) -> Result<Led<T>> {
        let work = |term| async move { work(term) };
        self.runtime.wait_for(self.election.run_while_leader(work))
    }

    /// The present leader; `None`: there is none.
    ///
    /// # Errors
    /// Failures of the store, and [`ErrorKind::InvalidArgument`] in async code.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.runtime.wait_for(self.election.leader())
    }
}
