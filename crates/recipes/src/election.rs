//! Leader election: one of many candidates leads.
//!
//! The leader holds the election's lock. A term is the time in which one candidate holds it, and
//! its number is the fencing token of the lock.
//!
//! # What it promises
//!
//! - One candidate leads at a time, and each term has a higher number than the previous term.
//! - Work that runs [while its candidate leads](Election::run_while_leader) ends before the lock is
//!   released, whether the candidate resigns or is about to lose the lock. Tasks that the work has
//!   spawned are not stopped.
//! - After a resignation the next candidate leads at once, if the store sends notifications. If the
//!   former leader [nominated](Leadership::nominate) a candidate that takes part, the nominated
//!   candidate leads next.
//!
//! # What breaks it
//!
//! - A process that was paused until its lease ended continues its work for a moment when it wakes
//!   up. Work that never yields to the runtime is not stopped in time. In both cases only a
//!   resource that checks the term refuses the former leader.
//! - A store that forgets acknowledged writes may have two leaders until the first one's lease
//!   ends.
//!
//! The ideas come from the leader election of Kubernetes' client-go (which does not wait for the
//! work to end), Curator's `LeaderSelector`, and etcd's election recipe.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Clock, Error, ErrorKind, Expect, Fence, FencingToken, Guard, HolderInfo, HolderLabel, LockName,
    LockWatch, Locker, LossReason, Moment, RecordKey, Records, Released, Result, Store, Version,
    Written, sync::Mutex,
};
use serde::{Deserialize, Serialize};

/// The work is stopped when no renewal succeeds and the remaining time is at most the TTL divided
/// by this number: one tenth.
const STOP_DIVISOR: u32 = 10;
/// The pause between two reads of an observer.
const OBSERVE_PAUSE: Duration = Duration::from_secs(1);
/// The pause after which a candidate that yields to the nominated one campaigns again.
const YIELD_PAUSE: Duration = Duration::from_millis(50);
/// The format number of the records. A reader refuses a record with another number.
const FORMAT: u8 = 1;
const EVENTS: &str = "distlock_election_total";

/// One candidate of an election. A clone is cheap.
#[derive(Clone)]
pub struct Election {
    locker: Locker,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    name: LockName,
    candidate: HolderLabel,
    ttl: Option<Duration>,
    /// The latest nomination that this candidate has seen, and the moment until which this
    /// candidate yields.
    yields_to: Arc<Mutex<Option<(Nomination, Moment)>>>,
}

/// The record of the candidate that the present or the last leader wants to lead next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Nomination {
    /// The format of the record.
    v: u8,
    candidate: String,
    /// The term of the leader that nominated the candidate.
    by: FencingToken,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The name of the candidate.
    pub candidate: String,
    /// The number of the leader's term; `None` when the store does not show the token of a held
    /// lock.
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

/// The end of work that ran while its candidate led.
#[derive(Debug)]
pub enum Led<T> {
    /// The work ended by itself.
    Done(T),
    /// The work was stopped: the lock was lost, or its lease was about to end.
    Stopped(LossReason),
}

impl Election {
    /// A candidate of the election `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a name that no lock may have. [`ErrorKind::InvalidArgument`]
    /// for a candidate that is empty, longer than 128 bytes or has control characters.
    pub fn new(store: &Store, name: &str, candidate: &str) -> Result<Self> {
        metrics::describe_counter!(
            EVENTS,
            "Terms of elections that were won, resigned and lost"
        );
        Ok(Self {
            locker: store.locker(),
            records: store.records(),
            clock: store.clock(),
            name: LockName::new(format!("election/{name}"))?,
            candidate: HolderLabel::new(candidate)?,
            ttl: None,
            yields_to: Arc::default(),
        })
    }

    /// The TTL of the lock: the longest time without a leader after the leader dies, while the next
    /// candidate in the store queue lives. The default is the store's default TTL.
    ///
    /// A candidate that waits has an entry in the store queue, which ends 4 seconds after its last
    /// renewal. If waiting candidates die too, the others wait for the end of those entries. So
    /// after the last death the election has no leader for up to the TTL or 4 seconds, whichever
    /// is longer (on ZooKeeper: for up to the session timeout).
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Waits until this candidate leads. This candidate yields to a nominated one, for one lease at
    /// most.
    ///
    /// # Errors
    /// Failures of the store that do not pass with time.
    ///
    /// # Cancel safety
    /// Safe: dropping the future leaves the store queue, and a lock that was granted meanwhile is
    /// released. The candidate may stay nominated; the other candidates then yield to the nominated
    /// one, for one lease at most.
    pub async fn campaign(&self) -> Result<Leadership> {
        loop {
            let candidacy = self.register_candidacy().await?;
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
            let (nomination, ()) =
                tokio::join!(self.read_nomination(), self.remove_record(candidacy));
            let nomination = match nomination {
                // A nomination is only a wish of the former leader. A candidate that cannot read
                // the nomination keeps the lock.
                Err(error) if error.is_retryable() => None,
                nomination => nomination?,
            };
            if let Some((version, nomination)) = nomination {
                let until = {
                    let mut before = self.yields_to.lock();
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
                    self.clock.sleep(YIELD_PAUSE).await;
                    continue;
                }
                self.remove_record(Some((nomination_key(&self.name)?, version)))
                    .await;
            }
            count_event("won");
            return Ok(Leadership {
                guard,
                election: self.clone(),
            });
        }
    }

    /// Records that this candidate takes part. Returns the key and the version of the record, which
    /// [`remove_record`](Self::remove_record) needs; `None`: the record could not be written.
    async fn register_candidacy(&self) -> Result<Option<(RecordKey, Version)>> {
        let key = candidacy_key(&self.name, self.candidate.as_str())?;
        match self.records.put(&key, b"stands", Expect::Absent).await {
            Ok(Written::Stored(version)) => Ok(Some((key, version))),
            // The candidate takes part in another process too, or an earlier process died without
            // removing the record.
            Ok(_) => match self.records.get(&key).await {
                Ok(entry) => Ok(entry.map(|entry| (key, entry.version))),
                Err(error) if error.is_retryable() => Ok(None),
                Err(error) => Err(error),
            },
            // Without the record the candidate can still win, but no leader can nominate this
            // candidate.
            Err(error) if error.is_retryable() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a record. A failure is only logged, because a record that stays makes other
    /// candidates wait for one lease at most.
    async fn remove_record(&self, record: Option<(RecordKey, Version)>) {
        if let Some((key, version)) = record
            && let Err(error) = self.records.delete(&key, version).await
        {
            tracing::debug!(%key, %error, "a record of the election stays");
        }
    }

    /// Reads the nomination, with the version of its record.
    async fn read_nomination(&self) -> Result<Option<(Version, Nomination)>> {
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

    /// Waits until this candidate leads, and runs the work as long as it leads. The work ends
    /// before the lock is released, and before this function returns.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work first, and then releases the lock.
    pub async fn run_while_leader<T, F>(&self, work: impl FnOnce(Term) -> F) -> Result<Led<T>>
    where
        F: Future<Output = T>,
    {
        let leadership = self.campaign().await?;
        // The block drops the work's future, with all it holds, before the lock is released.
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
            tracing::warn!(
                election = ?self.name,
                %reason,
                "the lock was lost before the work was done"
            );
        }
        Ok(led)
    }

    /// The present leader; `None`: there is none.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let lock = self.locker.inspect(&self.name).await?;
        Ok(lock.held.map(Leader::from))
    }

    /// Observes the leader and every change of the leader. The observer reads the lock once a
    /// second.
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

/// The leadership of one term. Dropping this value releases the lock in the background.
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
    election: Election,
}

/// A term, for the work that is done in it.
#[derive(Clone, Debug)]
pub struct Term {
    /// The number of the term, higher than that of every earlier term. Show the number to every
    /// resource that the leader changes.
    pub number: FencingToken,
    /// The number with the leader's tag, in the form that a
    /// [`FenceGuard`](distlock_core::FenceGuard) checks.
    pub fence: Fence,
    /// Shows whether the election's lock is held, and the time for which the lock surely stays
    /// held.
    pub seat: LockWatch,
}

impl Leadership {
    /// The term of this leadership.
    #[must_use]
    pub fn term(&self) -> Term {
        Term {
            number: self.guard.token(),
            fence: self.guard.fence(),
            seat: self.guard.watch(),
        }
    }

    /// Waits until the lock is lost.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Waits until the leader's work must stop: the lock is lost, or a tenth of its lease remains
    /// and no renewal has succeeded.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn must_stop(&self) -> LossReason {
        let margin = self.guard.ttl().duration() / STOP_DIVISOR;
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

    /// Names the candidate that is to lead next: when this leader resigns, the others yield to the
    /// nominated one, for a lease at most. The candidate must take part at this moment. The last
    /// nomination counts.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a candidate that does not take part. [`ErrorKind::Lost`]
    /// when the lock is lost. Failures of the store.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the nomination made or not.
    pub async fn nominate(&self, candidate: &str) -> Result<()> {
        let Election { records, name, .. } = &self.election;
        let candidacy = match HolderLabel::new(candidate) {
            Ok(label) => records.get(&candidacy_key(name, label.as_str())?).await?,
            Err(_) => None,
        };
        if candidacy.is_none() {
            let says =
                format!("{candidate:?} does not stand in {name:?}, so it cannot be nominated");
            return Err(Error::new(ErrorKind::InvalidArgument, says));
        }
        let before = self.election.read_nomination().await?;
        if before
            .as_ref()
            .is_some_and(|(_, it)| it.by > self.guard.token())
        {
            return Err(another_leads_error(name));
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
            // Only a leader nominates, so a conflict means that another candidate leads.
            _ => Err(another_leads_error(name)),
        }
    }

    /// Resigns: releases the lock for the next candidate. Stop the work before.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lock is released in the background.
    pub async fn resign(self) -> Released {
        let released = self.guard.release().await;
        count_event(match released {
            Released::AlreadyLost(_) => "lost",
            _ => "resigned",
        });
        released
    }
}

/// An observer of the leader.
#[derive(Debug)]
pub struct Observer {
    election: Election,
    seen: Option<Option<Leader>>,
}

impl Observer {
    /// The present leader. The first call answers at once. Each later call waits until another
    /// candidate leads, or none (`None`). Terms shorter than a second may be missed.
    ///
    /// # Errors
    /// Failures of the store. The next call continues.
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
            self.election.clock.sleep(OBSERVE_PAUSE).await;
        }
    }
}

/// The error of a leader that cannot nominate because another candidate leads now.
fn another_leads_error(name: &LockName) -> Error {
    Error::new(ErrorKind::Lost, format!("somebody else leads {name:?}"))
}

fn nomination_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("{name}/nominee"))
}

fn candidacy_key(name: &LockName, candidate: &str) -> Result<RecordKey> {
    RecordKey::new(format!("{name}/stands/{candidate}"))
}

fn count_event(event: &'static str) {
    metrics::counter!(EVENTS, "event" => event).increment(1);
}
