//! Once per period: a job that many hosts start runs on one of them.
//!
//! # What it promises
//!
//! - Two starts of a job are at least nine tenths of its period apart. This holds for starts on
//!   different hosts, and for a job that ends at once. (Timers that fire once per period are never
//!   exact, so a timer that fires a little early still counts.) The store's clock measures the
//!   period. A host's clock decides only when the host asks the store.
//! - The start is recorded before the job begins. A job that crashes is not repeated in its period.
//!   With [`retry_failed`](Periodic::retry_failed) the job runs again within the same period, until
//!   the job has succeeded.
//! - A start that did not happen is no start: a caller that has recorded it and could not begin the
//!   job takes it back ([`not_started`](Periodic::not_started)).
//! - The lock is held while the job runs, so a job that takes longer than its period never runs
//!   twice at the same time.
//!
//! # What breaks it
//!
//! - A store that forgets acknowledged writes (a failover to a replica that lagged behind), or
//!   whose clock is stepped, forgets the last start, or measures a wrong time since then.
//! - A host that was stopped after its start was recorded, and continues after its lease has ended,
//!   works at the same time as the next holder. Only a resource that checks the fencing token
//!   refuses the former holder.
//! - A store whose records have no ages (ZooKeeper) cannot say when a period ends, so
//!   [`Periodic::new`] refuses such a store.
//!
//! The idea comes from ShedLock's `lockAtMostFor` and `lockAtLeastFor`.

mod jobs;
mod record;

use std::{fmt, sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Clock, Entry, Error, ErrorKind, Expect, Guard, HolderInfo, LockName, LockWatch,
    Locker, RecordKey, Records, Result, Store, Written,
};

pub use self::jobs::{Job, Outcome};
use self::record::{End, Start, end_key, start_key};

/// The longest period.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);
/// The share of a period after which the next start is due.
const DUE_AFTER: f64 = 0.9;
/// The pause before a failed write is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest time for which the request that takes a start back is repeated.
const TAKING_BACK: Duration = Duration::from_secs(5);
const STARTS: &str = "distlock_periodic_total";

/// Runs jobs once per period. A clone is cheap.
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
    /// The job has not been started in this period.
    Now,
    /// The job has been started in this period.
    Later {
        /// The time since the first start of this period. A retry is a later start.
        started: Duration,
    },
}

/// The result of [`at_most_once`](Periodic::at_most_once).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ran<T> {
    /// The job ran here, with this result.
    Here(T),
    /// The job has been started in this period. The value is the time since the first start of this
    /// period.
    Before(Duration),
    /// The job runs elsewhere, or is about to start there.
    Elsewhere(Option<HolderInfo>),
}

impl Periodic {
    /// Jobs recorded in this store, under its locks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where records have no ages.
    pub fn new(store: &Store) -> Result<Self> {
        let records = store.records();
        if !records.tells_ages() {
            let message = "its records tell no ages, and without the store's clock nobody can say \
                           when a period is over";
            return Err(Error::new(ErrorKind::Unsupported, message).on(records.backend()));
        }
        metrics::describe_counter!(STARTS, "Starts of jobs that run once per period, by result");
        Ok(Self {
            locker: store.locker(),
            clock: store.clock(),
            records,
            retry_failed: false,
        })
    }

    /// Repeats a job within its period when it has not succeeded, because it failed or its host
    /// died. The job then runs at least once; without this setting it runs at most once.
    #[must_use]
    pub const fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs `work`, unless the job `name` was started within the period `every` or is running now.
    /// The work runs under the lock `name`. When the lock is lost, the future of the work is
    /// dropped at its next await.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a period of zero or of more than 366 days.
    /// [`ErrorKind::Lost`]. Failures of the store before the job began, and those of `work`.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`. A recorded start stays recorded.
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
        let ran = self.take_lock_and_run(&lock, every, work).await;
        let result = match &ran {
            Ok(Ran::Here(_)) => "here",
            Ok(Ran::Before(_)) => "before",
            Ok(Ran::Elsewhere(_)) => "elsewhere",
            Err(_) => "failed",
        };
        metrics::counter!(STARTS, "result" => result).increment(1);
        ran
    }

    /// Runs the work under the lock, if the job is due and the lock is free. This function reads
    /// the record before it requests the lock, so a job that is not due costs no lock.
    async fn take_lock_and_run<T, F>(
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
        let ran = self.run_under_lock(&guard, every, work).await;
        // The work has ended, and its result is known, so the answer to the release does not
        // matter.
        let _ = guard.release().await;
        ran
    }

    /// Records the start and runs the work while the lock is held. Another host may have started
    /// the job after the first read and before the grant of the lock, so `begin` reads the record
    /// again.
    async fn run_under_lock<T, F>(
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
            done = work(watch) => Some(done),
        };
        let done = match done {
            Some(Err(failed)) => {
                self.failed(guard).await;
                return Err(failed);
            }
            Some(Ok(done)) => Some(done),
            None => None,
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

    /// Reads whether the job is due. It starts nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for the period. [`ErrorKind::Corrupt`] for a record of
    /// another version, or a start in the future. Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn due(&self, name: &LockName, every: Duration) -> Result<Due> {
        check_period(every)?;
        let key = start_key(name)?;
        let entry = self.records.get(&key).await?;
        Ok(self
            .due_and_elapsed(name, &key, entry.as_ref(), every)
            .await?
            .0)
    }

    /// Records that the holder of the lock starts the job now. [`Due::Later`]: the job was started
    /// in this period, nothing is recorded, and the job must not start again. While the store is
    /// unreachable, the call repeats its request as long as the lock is held.
    ///
    /// # Errors
    /// As [`due`](Self::due), and [`ErrorKind::Lost`] when the lock is lost. After an error the job
    /// must not start, and the start that this call may have recorded is taken back as by
    /// [`not_started`](Self::not_started). The start of an earlier call stays recorded.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the start recorded or not.
    pub async fn begin(&self, guard: &Guard, every: Duration) -> Result<Due> {
        check_period(every)?;
        let mut written_over = None;
        let begun = self.record_start(guard, every, &mut written_over).await;
        let begun = begun.and_then(|due| guard.check().map(|()| due));
        // Without a write of this call, a record with this token is of a job that has run: its
        // holder has kept the lock since. Then the next holder must not run the job again.
        if begun.is_err()
            && let Some(before) = written_over
            && let Err(error) = self.take_back(guard, Some(before)).await
        {
            tracing::warn!(job = ?guard.name(), %error, "a job that did not start may be recorded");
        }
        begun
    }

    /// Takes back the start that [`begin`](Self::begin) has recorded under this lock, because the
    /// job could not begin. The job is then due again, on each host. Never call this after a part
    /// of the job has run: that part would run a second time.
    ///
    /// A retry within the period ([`retry_failed`](Self::retry_failed)) stays on record, because
    /// its record also tells when the period began. The retry counts as failed.
    ///
    /// # Errors
    /// Failures of the store, after the request was repeated for 5 seconds. The start then stays
    /// recorded, or not.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the start recorded or not. A repeated call is safe.
    pub async fn not_started(&self, guard: &Guard) -> Result<()> {
        self.take_back(guard, None).await
    }

    /// Takes back the start of this holder, unless its record is still the one that was stored
    /// `before`.
    async fn take_back(&self, guard: &Guard, before: Option<Expect>) -> Result<()> {
        let until = self.clock.now() + TAKING_BACK;
        loop {
            match self.try_take_back(guard, before).await {
                Err(error) if error.is_retryable() && self.clock.now() + RETRY_PAUSE < until => {}
                taken => return taken,
            }
            self.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes one attempt at [`take_back`](Self::take_back).
    async fn try_take_back(&self, guard: &Guard, before: Option<Expect>) -> Result<()> {
        let key = start_key(guard.name())?;
        // There is no record after an earlier attempt whose answer was lost. If the lock was lost
        // too, another holder may have recorded a start since then, which has another token.
        let Some(entry) = self.records.get(&key).await? else {
            return Ok(());
        };
        let run = Start::parse(&key, &entry)?;
        let is_older = before == Some(Expect::Version(entry.version));
        if is_older || run.token != guard.token().get() || run.since_ms > 0 {
            return Ok(());
        }
        // The condition names this very record, so an attempt that reaches the store late cannot
        // delete the start of a later holder.
        self.records.delete(&key, entry.version).await.map(drop)
    }

    /// Records the success of the job that [`begin`](Self::begin) started under this lock. While
    /// the store is unreachable, the call repeats its request as long as the lock is held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is lost; failures of the store.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the success recorded or not. A repeated call is safe.
    pub async fn succeeded(&self, guard: &Guard) -> Result<()> {
        loop {
            guard.check()?;
            match self.try_record_end(guard, true).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Records that the job that [`begin`](Self::begin) started under this lock has failed, for
    /// [`jobs`](Self::jobs). No start depends on this record, so the call makes one attempt, and
    /// only logs an error.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the failure recorded or not.
    pub async fn failed(&self, guard: &Guard) {
        let recorded = match guard.check() {
            Ok(()) => self.try_record_end(guard, false).await,
            Err(error) => Err(error),
        };
        match recorded {
            Ok(true) => {}
            Ok(false) => tracing::debug!(job = ?guard.name(), "a failure was not recorded"),
            Err(error) => {
                tracing::debug!(job = ?guard.name(), %error, "a failure was not recorded");
            }
        }
    }

    /// Makes one attempt to record the end of this holder's run. `false`: another client has
    /// written in between.
    async fn try_record_end(&self, guard: &Guard, ok: bool) -> Result<bool> {
        let key = end_key(guard.name())?;
        let entry = self.records.get(&key).await?;
        // This process may have been stopped until after the end of its lease, and the next holder
        // may have ended its own run meanwhile.
        let later = |entry: &Entry| {
            End::parse(&key, entry).is_ok_and(|end| end.token > guard.token().get())
        };
        if entry.as_ref().is_some_and(later) {
            return Ok(true);
        }
        let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        let end = End::now(guard, ok, &*self.clock).encode()?;
        let written = self.records.put(&key, &end, expect).await?;
        Ok(matches!(written, Written::Stored(_)))
    }

    /// Records a start of this holder. A start that is not due is not recorded. Failed attempts are
    /// repeated until the lock is lost.
    ///
    /// When a write of this call may have reached the store, `written_over` tells which record the
    /// last one of them expected there. This holds for an error too.
    async fn record_start(
        &self,
        guard: &Guard,
        every: Duration,
        written_over: &mut Option<Expect>,
    ) -> Result<Due> {
        loop {
            guard.check()?;
            match self.try_record_start(guard, every, written_over).await {
                Ok(Some(due)) => return Ok(due),
                Ok(None) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
            self.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes one attempt at [`record_start`](Self::record_start). `None`: another client has
    /// written in between.
    async fn try_record_start(
        &self,
        guard: &Guard,
        every: Duration,
        written_over: &mut Option<Expect>,
    ) -> Result<Option<Due>> {
        let name = guard.name();
        let key = start_key(name)?;
        let entry = self.records.get(&key).await?;
        let run = entry.as_ref().map(|entry| Start::parse(&key, entry));
        let run = run.transpose()?;
        let expect = entry
            .as_ref()
            .map_or(Expect::Absent, |entry| Expect::Version(entry.version));
        // The answer to an earlier attempt was lost, and the attempt has succeeded. The token alone
        // does not prove that, because a holder that keeps its lock writes its token each period.
        if written_over.is_some_and(|before| before != expect)
            && run.is_some_and(|run| run.token == guard.token().get())
        {
            return Ok(Some(Due::Now));
        }
        let since = match self
            .due_and_elapsed(name, &key, entry.as_ref(), every)
            .await?
        {
            (Due::Now, since) => since,
            (later, _) => return Ok(Some(later)),
        };
        let start = Start::now(guard, every, since, &*self.clock).encode()?;
        let written = self.records.put(&key, &start, expect).await;
        match &written {
            Ok(Written::Stored(_)) => *written_over = Some(expect),
            Err(error) if !error.did_not_happen() => *written_over = Some(expect),
            _ => {}
        }
        Ok(matches!(written?, Written::Stored(_)).then_some(Due::Now))
    }

    /// Decides whether the job is due, given the record of its last start. Also returns the time
    /// since the first start of the present period; zero when a new period begins.
    async fn due_and_elapsed(
        &self,
        name: &LockName,
        key: &RecordKey,
        entry: Option<&Entry>,
        every: Duration,
    ) -> Result<(Due, Duration)> {
        let Some(entry) = entry else {
            return Ok((Due::Now, Duration::ZERO));
        };
        let run = Start::parse(key, entry)?;
        let since_first_start =
            run.age(key, entry, &*self.clock)? + Duration::from_millis(run.since_ms);
        if since_first_start >= every.mul_f64(DUE_AFTER) {
            Ok((Due::Now, Duration::ZERO))
        } else if self.retry_failed && !self.has_succeeded(name, run.token).await? {
            Ok((Due::Now, since_first_start))
        } else {
            Ok((
                Due::Later {
                    started: since_first_start,
                },
                since_first_start,
            ))
        }
    }

    /// Whether the run that was started under this token has succeeded.
    async fn has_succeeded(&self, name: &LockName, token: u64) -> Result<bool> {
        let end = self.read_end(name).await?;
        Ok(end.is_some_and(|end| end.ok && end.token == token))
    }

    /// The last recorded end of a job.
    async fn read_end(&self, name: &LockName) -> Result<Option<End>> {
        let key = end_key(name)?;
        let entry = self.records.get(&key).await?;
        entry.map(|entry| End::parse(&key, &entry)).transpose()
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

fn check_period(every: Duration) -> Result<()> {
    if every.is_zero() || every > LONGEST_PERIOD {
        let message = format!(
            "the period is {every:?}: more than 0 and at most {LONGEST_PERIOD:?} (366 days) are \
             allowed"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}
