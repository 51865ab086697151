//! Leader election: of many candidates one leads.
//!
//! # What it promises
//!
//! - One candidate leads at a time, and each term has a higher number than the one before: the
//!   fencing token of the seat's lock.
//! - Work that runs [while its candidate leads](Election::run_while_leader) is over before the seat
//!   is given up, whether the candidate resigns or the seat is about to be lost. Tasks that the
//!   work has spawned are its own affair.
//! - Whoever resigns is followed at once where the store wakes waiters; by the candidate that it
//!   [nominated](Leadership::nominate), if it did and that one stands.
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

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use distlock_core::{
    Clock, Error, ErrorKind, Expect, Fence, FencingToken, Guard, HolderInfo, HolderLabel, LockName,
    LockWatch, Locker, LossReason, Moment, RecordKey, Records, Released, Result, Store, Version,
    Written,
};
use serde::{Deserialize, Serialize};

/// The part of a lease that is left when work is stopped because the lease cannot be renewed.
const MARGIN: u32 = 10;
/// Between two looks of an observer.
const LOOK: Duration = Duration::from_secs(1);

/// Between two tries of a candidate that gives way to the one that was nominated.
const GIVES_WAY: Duration = Duration::from_millis(50);
/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;

/// One candidate of an election. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    locker: Locker,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    name: LockName,
    candidate: HolderLabel,
    ttl: Option<Duration>,
    /// The nomination that this candidate gives way to, and until when.
    gives_way: Arc<Mutex<Option<(Nomination, Moment)>>>,
}

/// Who is to lead next, as its predecessor has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Nomination {
    v: u8,
    candidate: String,
    /// The term of whoever nominated it.
    by: FencingToken,
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
    /// [`ErrorKind::InvalidName`] for a name that no lock may
    /// have; [`ErrorKind::InvalidArgument`] for a candidate
    /// that is empty, longer than 128 bytes or has control characters.
    pub fn new(store: &Store, name: &str, candidate: &str) -> Result<Self> {
        Ok(Self {
            locker: store.locker(),
            records: store.records(),
            clock: store.clock(),
            name: LockName::new(format!("election/{name}"))?,
            candidate: HolderLabel::new(candidate)?,
            ttl: None,
            gives_way: Arc::default(),
        })
    }

    /// For how long the seat is nobody's when the leader dies; the store's default unless set.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits until this candidate leads. It gives way to one that was nominated, for a lease at
    /// most.
    ///
    /// # Errors
    /// Failures of the store that waiting cannot mend.
    ///
    /// # Cancel safety
    /// Safe: dropping it leaves the line, and a seat that was won meanwhile is given back. It may
    /// be nominated still, and then the others give way to it for a lease.
    pub async fn campaign(&self) -> Result<Leadership> {
        loop {
            let standing = self.stand().await?;
            let mut lock = self
                .locker
                .lock_named(&self.name)
                .holder(self.candidate.as_str())
                .wait_forever();
            if let Some(ttl) = self.ttl {
                lock = lock.ttl(ttl);
            }
            let guard = lock.acquire().await?;
            let now = self.clock.now();
            let (nomination, ()) = tokio::join!(self.nomination(), self.withdraw(standing));
            let nomination = match nomination {
                // It is a wish: the seat is not given back for its sake.
                Err(error) if is_passing(&error) => None,
                nomination => nomination?,
            };
            if let Some((version, nomination)) = nomination {
                let until = {
                    let mut before = self
                        .gives_way
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    match &*before {
                        Some((it, until)) if *it == nomination => *until,
                        _ => {
                            let until = now + guard.ttl().duration();
                            *before = Some((nomination.clone(), until));
                            until
                        }
                    }
                };
                if nomination.candidate != self.candidate.as_str() && now < until {
                    let _ = guard.release().await;
                    self.clock.sleep(GIVES_WAY).await;
                    continue;
                }
                self.withdraw(Some((nomination_key(&self.name)?, version)))
                    .await;
            }
            counted("won");
            return Ok(Leadership {
                guard,
                election: self.clone(),
            });
        }
    }

    /// Puts on record that this candidate stands. Answers the record, where it is this one's.
    async fn stand(&self) -> Result<Option<(RecordKey, Version)>> {
        let key = standing_key(&self.name, self.candidate.as_str())?;
        match self.records.put(&key, b"stands", Expect::Absent).await {
            Ok(Written::Stored(version)) => Ok(Some((key, version))),
            // It stands elsewhere, too, or died standing.
            Ok(_) => match self.records.get(&key).await {
                Ok(entry) => Ok(entry.map(|entry| (key, entry.version))),
                Err(error) if is_passing(&error) => Ok(None),
                Err(error) => Err(error),
            },
            // Written or not, the only harm is that it cannot be nominated.
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a record. One that stays does no harm but a wait.
    async fn withdraw(&self, record: Option<(RecordKey, Version)>) {
        if let Some((key, version)) = record
            && let Err(error) = self.records.delete(&key, version).await
        {
            tracing::debug!(%key, %error, "a record of the election stays");
        }
    }

    async fn nomination(&self) -> Result<Option<(Version, Nomination)>> {
        let key = nomination_key(&self.name)?;
        let Some(entry) = self.records.get(&key).await? else {
            return Ok(None);
        };
        let corrupt =
            |why: String| Error::new(ErrorKind::Corrupt, format!("the record {key}: {why}"));
        let nomination: Nomination =
            serde_json::from_slice(&entry.value).map_err(|error| corrupt(error.to_string()))?;
        if nomination.v != FORMAT {
            let unknown = nomination.v;
            return Err(corrupt(format!(
                "format {unknown} is not known here, only {FORMAT}"
            )));
        }
        Ok(Some((entry.version, nomination)))
    }

    /// Waits until this candidate leads, and does the work for as long as it does. The work is over
    /// when this returns, and was before the seat was given up.
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
    election: Election,
}

/// A term in office, for the work that is done in it.
#[derive(Clone, Debug)]
pub struct Term {
    /// Its number: higher than that of every earlier term. Show it to whatever the leader changes.
    pub number: FencingToken,
    /// The number with the leader's tag, as a [`FenceGuard`](distlock_core::FenceGuard) checks
    /// them.
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

    /// Waits until whatever the leader does must stop: the seat is lost, or its lease is nearly
    /// over and could not be renewed.
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
                () = self.election.clock.sleep(left - margin) => {}
            }
        }
    }

    /// Names the candidate that is to lead next: when the seat is given up, the others give way to
    /// it, for a lease at most. It must stand at this moment. The last nomination counts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for somebody who does not stand; [`ErrorKind::Lost`] when the
    /// seat is; failures of the store.
    ///
    /// # Cancel safety
    /// When it is dropped the nomination is made or not.
    pub async fn nominate(&self, candidate: &str) -> Result<()> {
        let Election { records, name, .. } = &self.election;
        let standing = match HolderLabel::new(candidate) {
            Ok(label) => records.get(&standing_key(name, label.as_str())?).await?,
            Err(_) => None,
        };
        if standing.is_none() {
            let says =
                format!("{candidate:?} does not stand in {name:?}, so it cannot be nominated");
            return Err(Error::new(ErrorKind::InvalidArgument, says));
        }
        let before = self.election.nomination().await?;
        if before
            .as_ref()
            .is_some_and(|(_, it)| it.by > self.guard.token())
        {
            return Err(led_by_another(name));
        }
        let key = nomination_key(name)?;
        let nomination = Nomination {
            v: FORMAT,
            candidate: candidate.to_owned(),
            by: self.guard.token(),
        };
        let value = serde_json::to_vec(&nomination).map_err(|error| {
            Error::new(ErrorKind::Internal, "a nomination cannot be written").caused_by(error)
        })?;
        let expect = before.map_or(Expect::Absent, |(version, _)| Expect::Version(version));
        self.guard.check()?;
        match records.put(&key, &value, expect).await? {
            Written::Stored(_) => Ok(()),
            // Only who leads nominates.
            _ => Err(led_by_another(name)),
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

fn led_by_another(name: &LockName) -> Error {
    Error::new(ErrorKind::Lost, format!("somebody else leads {name:?}"))
}

/// Whether waiting may mend it.
fn is_passing(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::OutcomeUnknown
}

fn nomination_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("{name}/nominee"))
}

fn standing_key(name: &LockName, candidate: &str) -> Result<RecordKey> {
    RecordKey::new(format!("{name}/stands/{candidate}"))
}

fn counted(event: &'static str) {
    metrics::counter!("distlock_election_total", "event" => event).increment(1);
}
