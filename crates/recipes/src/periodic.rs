//! Once per period: a job that many hosts start runs on one of them.
//!
//! # What it promises
//!
//! - Two starts of a job are at least nine tenths of its period apart, whichever hosts start it and
//!   however short it is. (Timers that fire once per period are never exact, so one that fires a
//!   little early counts.) The time is the store's: the hosts' clocks decide when they ask, and
//!   nothing else.
//! - The start is on record before the job begins. A job that crashes has had its turn. With
//!   [`retry_failed`](Periodic::retry_failed) it runs again within the same period, until it has
//!   succeeded.
//! - While the job runs its lock is held, so a job that takes longer than its period never runs
//!   beside itself.
//!
//! # What breaks it
//!
//! - A store that forgets what it had acknowledged (a failover to a replica that lagged behind), or
//!   whose clock is stepped, forgets or misjudges the last start.
//! - A host that was stopped after its start was put on record, and goes on after its lease has
//!   ended, works beside the next holder. Only a resource that looks at the fencing token refuses
//!   it.
//! - Stores whose records tell no ages (ZooKeeper) are refused.
//!
//! Source of the idea: ShedLock's `lockAtMostFor` and `lockAtLeastFor`.

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Clock, Entry, Error, ErrorKind, Expect, Guard, HolderInfo, LockName, LockWatch,
    Locker, RecordKey, Records, Result, Store, Written, unix_time,
};
use serde::{Deserialize, Serialize};

/// Longest period.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// The part of a period after which the next start is due.
const DUE: f64 = 0.9;
/// Format of the records; a reader refuses another one.
const FORMAT: u8 = 1;
/// Pause before a record that could not be written is written again.
const PAUSE: Duration = Duration::from_millis(100);

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

/// The record of the last start, or of the last success.
#[derive(Serialize, Deserialize)]
struct Run {
    v: u8,
    /// The fencing token of whoever started it.
    token: u64,
    /// Milliseconds since 1970 by the writer's clock, for a store that has forgotten how old the
    /// record is.
    at_ms: u64,
    /// How long before, in milliseconds, the turn began that this run belongs to: a job that is
    /// retried does not move its period.
    #[serde(default)]
    since_ms: u64,
}

/// What is put on record.
#[derive(Clone, Copy)]
enum What {
    /// That a job with this period starts.
    Start(Duration),
    /// That it has succeeded.
    Success,
}

impl Periodic {
    /// Over this store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where records tell no ages.
    pub fn new(store: &Store) -> Result<Self> {
        let records = store.records();
        if !records.tells_ages() {
            let says = "its records tell no ages, and without the store's clock nobody can say when \
                        a period is over";
            return Err(Error::new(ErrorKind::Unsupported, says).on(records.backend()));
        }
        Ok(Self {
            locker: store.locker(),
            clock: store.clock(),
            records,
            retry_failed: false,
        })
    }

    /// A job that has not succeeded, because it failed or its host died, runs again within the
    /// period: at least once, where it is at most once without.
    #[must_use]
    pub const fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs `work` unless the job `name` was started within the period `every`, or runs now. It
    /// runs under the lock `name`; when that is lost its future is dropped at its next await.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a period of zero or of more than 366 days;
    /// [`ErrorKind::Lost`]; failures of the store before the job began, and those of `work`.
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
            _ = guard.lost() => None,
            done = work(watch) => Some(done?),
        };
        guard.check()?;
        let Some(done) = done else {
            return Err(Error::new(ErrorKind::Lost, "the lock was lost"));
        };
        if let Err(error) = self.succeeded(guard).await {
            tracing::warn!(job = ?guard.name(), %error, "a job's success is not on record");
        }
        Ok(Ran::Here(done))
    }

    /// Whether the job is due, without starting it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the period; [`ErrorKind::Corrupt`] for a record that
    /// another version wrote, or a start that lies in the future; failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn due(&self, name: &LockName, every: Duration) -> Result<Due> {
        check_period(every)?;
        let key = start_key(name)?;
        let entry = self.records.get(&key).await?;
        Ok(self.judge(name, &key, entry.as_ref(), every).await?.0)
    }

    /// Puts on record that the holder of the lock starts the job now. [`Due::Later`] when it has
    /// been started meanwhile: then it must not be. A store that is away is asked again for as long
    /// as the lock is held.
    ///
    /// # Errors
    /// As [`due`](Self::due), and [`ErrorKind::Lost`] when the lock is.
    ///
    /// # Cancel safety
    /// When it is dropped the start may be on record.
    pub async fn begin(&self, guard: &Guard, every: Duration) -> Result<Due> {
        check_period(every)?;
        let due = self.write(guard, What::Start(every)).await?;
        guard.check()?;
        Ok(due)
    }

    /// Puts on record that the job, which [`begin`](Self::begin) started under this lock, has
    /// succeeded.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is; failures of the store.
    ///
    /// # Cancel safety
    /// When it is dropped the success may be on record; repeating it is safe.
    pub async fn succeeded(&self, guard: &Guard) -> Result<()> {
        self.write(guard, What::Success).await.map(drop)
    }

    /// Puts a start or a success of this holder on record, unless the start is not due. Tries until
    /// the lock is lost.
    async fn write(&self, guard: &Guard, what: What) -> Result<Due> {
        // Whether an earlier try may have been carried out.
        let mut unknown = false;
        loop {
            guard.check()?;
            match self.try_write(guard, what, unknown).await {
                Ok(Some(due)) => return Ok(due),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = true,
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Nothing when somebody else has written meanwhile.
    async fn try_write(&self, guard: &Guard, what: What, unknown: bool) -> Result<Option<Due>> {
        let name = guard.name();
        let key = match what {
            What::Start(_) => start_key(name)?,
            What::Success => success_key(name)?,
        };
        let entry = self.records.get(&key).await?;
        let run = entry.as_ref().map(|entry| parsed(&key, entry));
        let run = run.transpose()?;
        if unknown && run.is_some_and(|run| run.token == guard.token().get()) {
            return Ok(Some(Due::Now));
        }
        let since = match what {
            What::Success => Duration::ZERO,
            What::Start(every) => match self.judge(name, &key, entry.as_ref(), every).await? {
                (Due::Now, since) => since,
                (later, _) => return Ok(Some(later)),
            },
        };
        let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        let run = self.run_of(guard, since)?;
        let written = self.records.put(&key, &run, expect).await?;
        Ok(matches!(written, Written::Stored(_)).then_some(Due::Now))
    }

    /// Whether the job is due after this start; and if it is, how long ago its turn began.
    async fn judge(
        &self,
        name: &LockName,
        key: &RecordKey,
        entry: Option<&Entry>,
        every: Duration,
    ) -> Result<(Due, Duration)> {
        let Some(entry) = entry else {
            return Ok((Due::Now, Duration::ZERO));
        };
        let run = parsed(key, entry)?;
        let turn = self.age(key, entry, &run)? + Duration::from_millis(run.since_ms);
        if turn >= every.mul_f64(DUE) {
            Ok((Due::Now, Duration::ZERO))
        } else if self.retry_failed && !self.has_succeeded(name, run.token).await? {
            Ok((Due::Now, turn))
        } else {
            Ok((Due::Later { started: turn }, turn))
        }
    }

    async fn has_succeeded(&self, name: &LockName, token: u64) -> Result<bool> {
        let key = success_key(name)?;
        let entry = self.records.get(&key).await?;
        let run = entry.map(|entry| parsed(&key, &entry)).transpose()?;
        Ok(run.is_some_and(|run| run.token == token))
    }

    /// Time since a run was put on record. A store's clock may have begun anew (a file's, after a
    /// reboot): then this host's has to do.
    fn age(&self, key: &RecordKey, entry: &Entry, run: &Run) -> Result<Duration> {
        if let Some(age) = entry.age {
            return Ok(age);
        }
        let (now, then) = (unix_time(&*self.clock), Duration::from_millis(run.at_ms));
        now.checked_sub(then).ok_or_else(|| {
            let ahead = then.saturating_sub(now);
            corrupt(
                key,
                &format!("it was written {ahead:?} from now, by this host's clock"),
            )
        })
    }

    fn run_of(&self, guard: &Guard, since: Duration) -> Result<Vec<u8>> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let run = Run {
            v: FORMAT,
            token: guard.token().get(),
            at_ms: millis(unix_time(&*self.clock)),
            since_ms: millis(since),
        };
        serde_json::to_vec(&run).map_err(|error| {
            Error::new(ErrorKind::Internal, "a run cannot be written").caused_by(error)
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

fn start_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("periodic/start/{name}"))
}

fn success_key(name: &LockName) -> Result<RecordKey> {
    RecordKey::new(format!("periodic/success/{name}"))
}

fn parsed(key: &RecordKey, entry: &Entry) -> Result<Run> {
    let run: Run =
        serde_json::from_slice(&entry.value).map_err(|error| corrupt(key, &error.to_string()))?;
    if run.v == FORMAT {
        return Ok(run);
    }
    let unknown = run.v;
    let why = format!("format {unknown} is not known here, only {FORMAT}");
    Err(corrupt(key, &why))
}

fn corrupt(key: &RecordKey, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {key}: {why}"))
}

fn check_period(every: Duration) -> Result<()> {
    if every.is_zero() || every > LONGEST {
        let says = format!(
            "the period is {every:?}: more than 0 and at most {LONGEST:?} (366 days) are allowed"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, says));
    }
    Ok(())
}
