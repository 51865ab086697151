//! Once per period: a job that many hosts start runs on one of them.
//!
//! # What it promises
//!
//! - Of all those who start the job within one period one runs it, also where the job is shorter than the hosts' clocks are
//!   apart. The time is the store's: no host's clock counts, and one that jumps changes nothing.
//! - The start is on record before the job begins. A job that crashes has had its turn; with
//!   [`retry_failed`](Periodic::retry_failed) it runs again within the same period, until it has succeeded.
//! - While the job runs its lock is held, so a job that is longer than its period never runs beside itself.
//!
//! # What breaks it
//!
//! - A store that forgets what it had acknowledged (a failover to a replica that lagged behind) forgets the last starts as well.
//! - A host that was stopped after its start was put on record and goes on after its lease has ended does its work beside the
//!   next holder's. Only a resource that looks at the fencing token refuses it.
//! - Stores whose records tell no ages (ZooKeeper) are refused.
//!
//! Source of the idea: ShedLock's `lockAtMostFor` and `lockAtLeastFor`.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Clock, Entry, Error, ErrorKind, Expect, Guard, HolderInfo, LockName, LockWatch,
    Locker, RecordKey, Records, Result, Store, Version, Written, unix_time,
};
use serde::{Deserialize, Serialize};

/// Longest period.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;
/// Tries to put a start on record, where others change the same record meanwhile.
const ROUNDS: u32 = 8;

/// Runs jobs once per period. Cheap to clone.
#[derive(Clone)]
pub struct Periodic {
    locker: Locker,
    records: Arc<dyn Records>,
    clock: Arc<dyn Clock>,
    retry_failed: bool,
}

/// Whether a job is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It has not been started in this period.
    Now,
    /// It has been, so long ago.
    Later {
        /// Time since that start.
        started: Duration,
    },
}

/// What became of a start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ran<T> {
    /// It ran here, and gave this.
    Here(T),
    /// It has been started in this period, so long ago.
    Before(Duration),
    /// It is running elsewhere, or about to be started there.
    Elsewhere(Option<HolderInfo>),
}

/// The last start, or the last success.
#[derive(Serialize, Deserialize)]
struct Start {
    v: u8,
    /// The fencing token of whoever started it.
    token: u64,
    /// Milliseconds since 1970 by the writer's clock, for a store that has forgotten how old the record is.
    at_ms: u64,
}

impl Periodic {
    /// Over this store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where records tell no ages.
    pub fn new(store: &Store) -> Result<Self> {
        let records = store.records();
        if !records.tells_ages() {
            let says = "its records tell no ages, and without the store's clock nobody can say when a period is over";
            return Err(Error::new(ErrorKind::Unsupported, says).on(records.backend()));
        }
        Ok(Self {
            locker: store.locker(),
            clock: store.clock(),
            records,
            retry_failed: false,
        })
    }

    /// A job that has not succeeded, because it failed or its host died, runs again within the period: at least once, where
    /// it is at most once without.
    #[must_use]
    pub const fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs `work` unless the job `name` was started within the period `every`, or runs now.
    ///
    /// Timers that fire once per period are never exact, so a start is due when nine tenths of the period are over since
    /// the last one. `work` runs under the lock `name`; when that is lost its future is dropped at its next await.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a period of zero or of more than 366 days; [`ErrorKind::Lost`]; failures of the store.
    ///
    /// # Cancel safety
    /// Dropping it drops `work`. A start that is on record stays there.
    pub async fn at_most_once<T, F>(
        &self,
        name: &str,
        every: Duration,
        work: impl FnOnce(LockWatch) -> F,
    ) -> Result<Ran<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let lock = LockName::new(name)?;
        let ran = self.try_run(&lock, every, work).await;
        let result = match &ran {
            Ok(Ran::Here(_)) => "here",
            Ok(Ran::Before(_)) => "before",
            Ok(Ran::Elsewhere(_)) => "elsewhere",
            Err(_) => "failed",
        };
        metrics::counter!("distlock_periodic_total", "result" => result).increment(1);
        ran
    }

    async fn try_run<T, F>(
        &self,
        name: &LockName,
        every: Duration,
        work: impl FnOnce(LockWatch) -> F,
    ) -> Result<Ran<T>>
    where
        F: Future<Output = Result<T>>,
    {
        if let Due::Later { started } = self.due(name, every).await? {
            return Ok(Ran::Before(started));
        }
        let guard = match self.locker.lock(name).try_acquire().await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(holder) => return Ok(Ran::Elsewhere(holder)),
        };
        let ran = self.under(&guard, every, work).await;
        // What the store says now is about the time after the work.
        let _ = guard.release().await;
        ran
    }

    async fn under<T, F>(
        &self,
        guard: &Guard,
        every: Duration,
        work: impl FnOnce(LockWatch) -> F,
    ) -> Result<Ran<T>>
    where
        F: Future<Output = Result<T>>,
    {
        if let Due::Later { started } = self.begin(guard, every).await? {
            return Ok(Ran::Before(started));
        }
        let watch = guard.watch();
        let done = tokio::select! {
            biased;
            _ = guard.lost() => return Err(lost(guard)),
            done = work(watch) => done?,
        };
        guard.check()?;
        self.succeeded(guard).await?;
        Ok(Ran::Here(done))
    }

    /// Whether the job is due, without starting it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the period; [`ErrorKind::Corrupt`] for a record that another version wrote; failures
    /// of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn due(&self, name: &LockName, every: Duration) -> Result<Due> {
        check_period(every)?;
        Ok(self.look(name, every).await?.due)
    }

    /// Puts on record that whoever holds the lock starts the job now. [`Due::Later`] when it has been started meanwhile:
    /// then it must not be.
    ///
    /// # Errors
    /// As [`due`](Self::due), and [`ErrorKind::Lost`] when the lock is.
    ///
    /// # Cancel safety
    /// When it is dropped the start may be on record.
    pub async fn begin(&self, guard: &Guard, every: Duration) -> Result<Due> {
        check_period(every)?;
        let key = start_key(guard.name())?;
        for _ in 0..ROUNDS {
            let seen = self.look(guard.name(), every).await?;
            // Ours: the answer to an earlier round was lost.
            if seen.token == Some(guard.token().get()) {
                return Ok(Due::Now);
            }
            if seen.due != Due::Now {
                return Ok(seen.due);
            }
            guard.check()?;
            let expect = seen.version.map_or(Expect::Absent, Expect::Version);
            match self.records.put(&key, &self.now_by(guard)?, expect).await {
                Ok(Written::Stored(_)) => return Ok(Due::Now),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(restless(&key))
    }

    /// Puts on record that the job has succeeded, where that is asked about.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// When it is dropped the success may be on record; repeating it is safe.
    pub async fn succeeded(&self, guard: &Guard) -> Result<()> {
        if !self.retry_failed {
            return Ok(());
        }
        let key = success_key(guard.name())?;
        for _ in 0..ROUNDS {
            let entry = self.records.get(&key).await?;
            let seen = entry
                .as_ref()
                .map(|entry| parsed(&key, entry))
                .transpose()?;
            if seen.is_some_and(|seen| seen.token >= guard.token().get()) {
                return Ok(());
            }
            let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            match self.records.put(&key, &self.now_by(guard)?, expect).await {
                Ok(Written::Stored(_)) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(restless(&key))
    }

    async fn look(&self, name: &LockName, every: Duration) -> Result<Seen> {
        let key = start_key(name)?;
        let Some(entry) = self.records.get(&key).await? else {
            return Ok(Seen {
                version: None,
                token: None,
                due: Due::Now,
            });
        };
        let start = parsed(&key, &entry)?;
        let started = self.age(&entry, &start);
        let mut due = if started >= every.mul_f64(0.9) {
            Due::Now
        } else {
            Due::Later { started }
        };
        if due != Due::Now && self.retry_failed && !self.has_succeeded(name, start.token).await? {
            due = Due::Now;
        }
        Ok(Seen {
            version: Some(entry.version),
            token: Some(start.token),
            due,
        })
    }

    async fn has_succeeded(&self, name: &LockName, token: u64) -> Result<bool> {
        let key = success_key(name)?;
        let entry = self.records.get(&key).await?;
        let seen = entry.map(|entry| parsed(&key, &entry)).transpose()?;
        Ok(seen.is_some_and(|seen| seen.token == token))
    }

    /// Time since a start. A store's clock may have begun anew (a file, after a reboot): then this host's has to do.
    fn age(&self, entry: &Entry, start: &Start) -> Duration {
        entry.age.unwrap_or_else(|| {
            let now = unix_time(&*self.clock);
            now.saturating_sub(Duration::from_millis(start.at_ms))
        })
    }

    fn now_by(&self, guard: &Guard) -> Result<Vec<u8>> {
        let start = Start {
            v: FORMAT,
            token: guard.token().get(),
            at_ms: u64::try_from(unix_time(&*self.clock).as_millis()).unwrap_or(u64::MAX),
        };
        serde_json::to_vec(&start).map_err(|error| {
            Error::new(ErrorKind::Internal, "a start cannot be written").caused_by(error)
        })
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("backend", &self.records.backend())
            .field("retry_failed", &self.retry_failed)
            .finish_non_exhaustive()
    }
}

/// The record of the last start.
struct Seen {
    version: Option<Version>,
    token: Option<u64>,
    due: Due,
}

fn start_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("periodic/start/{name}"))
}

fn success_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("periodic/success/{name}"))
}

fn parsed(key: &RecordKey, entry: &Entry) -> Result<Start> {
    let corrupt = |why: String| Error::new(ErrorKind::Corrupt, format!("the record {key}: {why}"));
    let start: Start =
        serde_json::from_slice(&entry.value).map_err(|error| corrupt(error.to_string()))?;
    if start.v == FORMAT {
        Ok(start)
    } else {
        let unknown = start.v;
        Err(corrupt(format!(
            "format {unknown} is not known here, only {FORMAT}"
        )))
    }
}

fn check_period(every: Duration) -> Result<()> {
    if every.is_zero() || every > LONGEST {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the period is {every:?}: more than 0 and at most {LONGEST:?} (366 days) are allowed"
            ),
        ));
    }
    Ok(())
}

fn restless(key: &RecordKey) -> Error {
    let says = format!("the record {key} changed {ROUNDS} times while it was to be written");
    Error::new(ErrorKind::Unavailable, says)
}

fn lost(guard: &Guard) -> Error {
    match guard.check() {
        Err(error) => error,
        Ok(()) => Error::new(ErrorKind::Lost, "the lock was lost"),
    }
}
