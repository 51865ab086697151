//! The jobs on record, for people: when each was started last, by whom, and how it ended.
//!
//! Reading decides nothing. A reset removes the record of the last start, on condition that it is
//! still the one that was read, so a start that another host records meanwhile stays.

use std::time::Duration;

use distlock_core::{Deleted, Entry, Error, ErrorKind, FencingToken, LockName, RecordKey, Result};

use super::{
    DUE_AFTER, Periodic,
    record::{STARTS, Start, start_key},
};

/// The number of times that a reset reads the record again because a host has written meanwhile.
const TRIES: u32 = 16;

/// The last start of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The name of the job and of its lock.
    pub name: LockName,
    /// The label of the holder that started it.
    pub started_by: String,
    /// The fencing token of that holder.
    pub token: FencingToken,
    /// The time since the last start.
    pub started: Duration,
    /// The period that the holder asked for.
    pub every: Duration,
    /// The time until the next start is due, for a caller with the same period; zero: now. A caller
    /// with [`retry_failed`](Periodic::retry_failed) starts a job without success earlier.
    pub due_in: Duration,
    /// The end of the run that was started last.
    pub outcome: Outcome,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The holder that started the job still holds the lock.
    Running,
    /// The job has succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
    /// The lock is free or has another holder, and no end is on record: the host died, the lock was
    /// lost, or the store was away at the end of the job.
    Unknown,
}

impl Periodic {
    /// The jobs on record whose names start with `prefix`, in byte order of their names: at most
    /// `limit` of them, from the first one after `after`. A job whose record cannot be read has an
    /// error with its [name](Error::name) in its place: [`ErrorKind::Corrupt`] for a record of
    /// another version, or a start in the future. A [`reset`](Self::reset) removes such a record.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn jobs(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<Result<Job>>> {
        let after = after.map(start_key).transpose()?;
        let prefix = format!("{STARTS}{prefix}");
        let page = self.records.scan(&prefix, after.as_ref(), limit).await?;
        let mut jobs = Vec::with_capacity(page.len());
        for (key, entry) in &page {
            let name = LockName::new(key.as_str().strip_prefix(STARTS).unwrap_or_default())?;
            match self.describe(&name, key, entry).await {
                // One bad record must not hide the other jobs.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    jobs.push(Err(error.about(&name)));
                }
                job => jobs.push(Ok(job?)),
            }
        }
        Ok(jobs)
    }

    /// Makes a job due: the record of its last start is removed, and the next start counts as the
    /// first one of a new period. A run that is still going on is not stopped, and no second one
    /// begins beside it. `false`: no start is on record, so the job is due already.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if hosts start the job again and again meanwhile. Failures of the
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the record removed or not. A repeated call is safe.
    pub async fn reset(&self, name: &LockName) -> Result<bool> {
        let key = start_key(name)?;
        for _ in 0..TRIES {
            let Some(entry) = self.records.get(&key).await? else {
                return Ok(false);
            };
            if self.records.delete(&key, entry.version).await? == Deleted::Done {
                return Ok(true);
            }
        }
        let message = format!("{name:?} was started again each of {TRIES} times");
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The outcome of the run of this start, if its end is on record.
    async fn outcome_on_record(&self, name: &LockName, start: &Start) -> Result<Option<Outcome>> {
        let end = self.read_end(name).await?.filter(|end| end.is_of(start));
        Ok(end.map(|end| match end.ok {
            true => Outcome::Succeeded,
            false => Outcome::Failed,
        }))
    }

    async fn describe(&self, name: &LockName, key: &RecordKey, entry: &Entry) -> Result<Job> {
        let start = Start::parse(key, entry)?;
        let started = start.age(key, entry, &*self.clock)?;
        let token = FencingToken::new(start.token)?;
        let outcome = match self.outcome_on_record(name, &start).await? {
            Some(outcome) => outcome,
            None => {
                let held = self.locker.inspect(name).await?.held;
                match held.and_then(|held| held.token) {
                    Some(holder) if holder == token => Outcome::Running,
                    // The job may have ended between the two reads.
                    _ => self
                        .outcome_on_record(name, &start)
                        .await?
                        .unwrap_or(Outcome::Unknown),
                }
            }
        };
        let every = Duration::from_millis(start.every_ms);
        let period = started + Duration::from_millis(start.since_ms);
        Ok(Job {
            due_in: every.mul_f64(DUE_AFTER).saturating_sub(period),
            started_by: start.by,
            name: name.clone(),
            token,
            started,
            every,
            outcome,
        })
    }
}
