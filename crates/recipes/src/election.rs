//! Leader election: of many candidates one leads.
//!
//! # What it promises
//!
//! - One candidate leads at a time, and each term has a higher number than the one before: the
//!   fencing token of the seat's lock.
//! - Work that runs [while its candidate leads](Election::run_while_leader) is over before the seat is
//!   given up, whether the candidate resigns or the seat is about to be lost. Tasks that the work has
//!   spawned are its own affair.
//! - Whoever resigns is followed at once where the store wakes waiters.
//!
//! # What breaks it
//!
//! - A process that is paused runs on for a moment when it wakes up, and work that never yields to
//!   the runtime is not stopped in time. Only a resource that looks at the term refuses both.
//! - A store that forgets what it had acknowledged may have two leaders until the first one's lease
//!   ends.
//!
//! Sources of the idea: the leader election of Kubernetes' client-go, which does not wait for the
//! work; Curator's `LeaderSelector`; etcd's election recipe.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Clock, Fence, FencingToken, Guard, HolderInfo, HolderLabel, LockName, LockWatch, Locker,
    LossReason, Released, Result, Store,
};

/// The part of a lease that is left when work is stopped because the lease cannot be renewed.
const MARGIN: u32 = 10;
/// Between two looks of an observer.
const LOOK: Duration = Duration::from_secs(1);

/// One candidate of an election. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    locker: Locker,
    clock: Arc<dyn Clock>,
    name: LockName,
    candidate: HolderLabel,
    ttl: Option<Duration>,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub candidate: String,
    /// The number of its term, where the store can tell.
    pub term: Option<FencingToken>,
}

impl From<HolderInfo> for Leader {
    fn from(holder: HolderInfo) -> Self {
        Self {
            candidate: holder.holder,
            term: holder.token,
        }
    }
}

/// What became of work that ran while its candidate led.
#[derive(Debug)]
pub enum Led<T> {
    /// It came to its end.
    Done(T),
    /// It was stopped: the seat is lost, or about to be.
    Stopped(LossReason),
}

impl Election {
    /// A candidate of the election `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](distlock_core::ErrorKind::InvalidName) for a name that no lock may
    /// have; [`ErrorKind::InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) for a candidate
    /// that is empty, longer than 128 bytes or has control characters.
    pub fn new(store: &Store, name: &str, candidate: &str) -> Result<Self> {
        Ok(Self {
            locker: store.locker(),
            clock: store.clock(),
            name: LockName::new(format!("election/{name}"))?,
            candidate: HolderLabel::new(candidate)?,
            ttl: None,
        })
    }

    /// For how long the seat is nobody's when the leader dies; the store's default unless set.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits until this candidate leads.
    ///
    /// # Errors
    /// Failures of the store that waiting cannot mend.
    ///
    /// # Cancel safety
    /// Safe: dropping it leaves the line, and a seat that was won meanwhile is given back.
    pub async fn campaign(&self) -> Result<Leadership> {
        let mut lock = self
            .locker
            .lock_named(&self.name)
            .holder(self.candidate.as_str())
            .wait_forever();
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        let guard = lock.acquire().await?;
        counted("won");
        Ok(Leadership {
            guard,
            clock: Arc::clone(&self.clock),
        })
    }

    /// Waits until this candidate leads, and does the work for as long as it does. The work is over when
    /// this returns, and was before the seat was given up.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping it drops the work first, and then gives the seat up.
    pub async fn run_while_leader<T, F>(&self, work: impl FnOnce(Term) -> F) -> Result<Led<T>>
    where
        F: Future<Output = T>,
    {
        let leadership = self.campaign().await?;
        // A future of its own, so that it is dropped, with all it holds, before the seat is.
        let led = {
            let work = work(leadership.term());
            tokio::select! {
                biased;
                reason = leadership.must_stop() => Led::Stopped(reason),
                done = work => Led::Done(done),
            }
        };
        let resigned = leadership.resign().await;
        if let (Led::Done(_), Released::AlreadyLost(reason)) = (&led, resigned) {
            tracing::warn!(election = ?self.name, %reason, "the seat was lost before the work was done");
        }
        Ok(led)
    }

    /// Who leads now; `None` = nobody.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let seat = self.locker.inspect(&self.name).await?;
        Ok(seat.held.map(Leader::from))
    }

    /// Tells who leads, and whenever somebody else does. It looks once a second.
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer {
            election: self.clone(),
            seen: None,
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name)
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}

/// A seat that was won. Dropping it gives the seat up in the background.
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
    clock: Arc<dyn Clock>,
}

/// A term in office, for the work that is done in it.
#[derive(Clone, Debug)]
pub struct Term {
    /// Its number: higher than that of every earlier term. Show it to whatever the leader changes.
    pub number: FencingToken,
    /// The number with the leader's tag, as a [`FenceGuard`](distlock_core::FenceGuard) checks them.
    pub fence: Fence,
    /// Whether the seat is held, and for how long it surely is.
    pub seat: LockWatch,
}

impl Leadership {
    /// The term that began with it.
    #[must_use]
    pub fn term(&self) -> Term {
        Term {
            number: self.guard.token(),
            fence: self.guard.fence(),
            seat: self.guard.watch(),
        }
    }

    /// Waits until the seat is lost.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Waits until whatever the leader does must stop: the seat is lost, or its lease is nearly over
    /// and could not be renewed.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn must_stop(&self) -> LossReason {
        let margin = self.guard.ttl().duration() / MARGIN;
        loop {
            let left = self.guard.remaining();
            if left <= margin {
                return LossReason::Unreachable;
            }
            tokio::select! {
                biased;
                reason = self.guard.lost() => return reason,
                () = self.clock.sleep(left - margin) => {}
            }
        }
    }

    /// Gives the seat up, to whoever is next. Stop the work before.
    ///
    /// # Cancel safety
    /// When it is dropped the seat is given up in the background.
    pub async fn resign(self) -> Released {
        let released = self.guard.release().await;
        counted(match released {
            Released::AlreadyLost(_) => "lost",
            _ => "resigned",
        });
        released
    }
}

/// Tells who leads.
#[derive(Debug)]
pub struct Observer {
    election: Election,
    seen: Option<Option<Leader>>,
}

impl Observer {
    /// Who leads, at first at once, and then as soon as it is somebody else, or nobody (`None`).
    /// Terms that are shorter than a second may be missed.
    ///
    /// # Errors
    /// Failures of the store; asking again goes on.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let now = self.election.leader().await?;
            if self.seen.as_ref() != Some(&now) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            self.election.clock.sleep(LOOK).await;
        }
    }
}

fn counted(event: &'static str) {
    metrics::counter!("distlock_election_total", "event" => event).increment(1);
}
