//! The one task of this process that reads and writes the record of one name.
//!
//! This module owns the order of the requests. Invariant: an entry goes into the record only by a
//! compare-and-swap that compared it with all others, and a guard whose entry is not in a record
//! that was read is lost. The task must never remove an entry whose guard may be valid.
//!
//! Changes that come while a write is in flight go out together in the next one. The task ends when
//! this process has no guard and no caller of the name.

use std::{mem, sync::Arc, time::Duration};

use distlock_core::{
    Deleted, Epoch, Error, ErrorKind, Expect, FencingToken, Moment, Result, Version, Written,
};

use super::{
    Kind,
    hub::{Hub, Joined, Known, Membership},
    meters,
    plan::{Next, Plan},
    record::Record,
};

/// The pauses after failures of the store in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The number of failures in a row after which entries that were given up stay in the record. The
/// next caller whom they block removes them.
const GIVE_UP_AFTER: u32 = 12;

/// The running task. If its runtime drops it, the next caller starts another one.
pub(super) struct Running {
    hub: Arc<Hub>,
    /// The task has ended by itself, and has said so in the state.
    is_over: bool,
}

impl Running {
    pub(super) const fn new(hub: Arc<Hub>) -> Self {
        Self {
            hub,
            is_over: false,
        }
    }

    pub(super) async fn run(mut self) {
        self.hub.run().await;
        self.is_over = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let _kept;
        let mut state = self.hub.state.lock();
        state.is_running = false;
        state.known = None;
        state.joins.clear();
        state.resizes.clear();
        _kept = mem::take(&mut state.kept);
    }
}

enum Answer {
    /// `None`: the record was deleted.
    Stored(Option<Version>),
    Conflict,
}

impl Hub {
    async fn run(self: &Arc<Self>) {
        let mut failures = 0;
        loop {
            let pause = {
                let now = self.clock.now();
                // Declared before the lock of the state, and so dropped after it.
                let _released;
                let mut state = self.state.lock();
                _released = state.no_longer_kept(now);
                match state.next(now) {
                    Next::Work => None,
                    Next::LookAt(at) => Some(at.since(now)),
                    Next::Nothing => {
                        state.is_running = false;
                        return;
                    }
                }
            };
            if let Some(pause) = pause {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = self.clock.sleep(pause) => {}
                }
                continue;
            }
            match self.round().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    self.failed(&error, failures);
                    let pause = FIRST_PAUSE.saturating_mul(failures).min(LAST_PAUSE);
                    let pause = error.retry_pause().unwrap_or(pause);
                    self.clock.sleep(pause).await;
                }
            }
        }
    }

    /// Answers everybody that waits for an answer of the store.
    fn failed(&self, error: &Error, failures: u32) {
        tracing::debug!(%error, name = ?self.name, "the list of holders was not read or written");
        let mut state = self.state.lock();
        state.known = None;
        state.wants = None;
        state.refuse_all(error);
        let is_over = error.kind() == ErrorKind::Closed;
        // A record that is full becomes smaller by those who leave.
        let may_pass = error.is_retryable() || error.kind() == ErrorKind::LimitExceeded;
        if is_over || failures >= GIVE_UP_AFTER || !may_pass {
            state.leaves.clear();
        }
        if is_over {
            // Nobody can look for the entries any more, so the guards end at their deadlines.
            state.holders.clear();
        }
    }

    /// One read if it is needed, and one write if something changes.
    async fn round(self: &Arc<Self>) -> Result<()> {
        let needs_read = self.state.lock().needs_read(self.clock.now());
        if needs_read {
            self.read().await?;
        }
        let plan = self.state.lock().plan(&self.name);
        let Some(plan) = plan else {
            return Ok(());
        };
        let sent = self.clock.now();
        match self.write(&plan).await {
            Ok(Answer::Stored(version)) => {
                meters::written("stored", plan.dead);
                self.settle(plan, version, sent)
            }
            Ok(Answer::Conflict) => {
                meters::written("conflict", 0);
                self.take_back(plan);
                self.state.lock().queue_the_slow();
                Ok(())
            }
            Err(error) => {
                meters::written("failed", 0);
                // Their callers get the error. A write that arrives later leaves dead entries.
                self.take_back(plan);
                Err(error)
            }
        }
    }

    /// The record was not written as planned: those who wait go on waiting.
    fn take_back(&self, plan: Plan) {
        let mut state = self.state.lock();
        state.known = None;
        let joins = plan.joins.into_iter().map(|(mut join, _)| {
            join.conflicts += 1;
            join
        });
        // They came before those who have come since.
        drop(state.joins.splice(..0, joins));
        drop(state.resizes.splice(..0, plan.resizes));
    }

    async fn read(&self) -> Result<()> {
        let sent = self.clock.now();
        let keys = [self.keys.record.clone(), self.keys.waiting.clone()];
        let read = self.bounded(self.records.get_many(&keys));
        let (read, epoch) = tokio::join!(read, self.epoch_of_records());
        let epoch = epoch?;
        let [record, waiting] =
            <[_; 2]>::try_from(read.map_err(Error::of_read)?).map_err(|read| {
                let problem = format!("{} records were read instead of 2", read.len());
                Error::new(ErrorKind::Internal, problem)
            })?;
        let mut state = self.state.lock();
        let (version, record) = match &record {
            Some(stored) => {
                let record = Record::parse(&self.keys.record, stored, Kind::of(state.capacity))?;
                (Some(stored.version), record)
            }
            None => (None, Record::empty(state.capacity)),
        };
        state.saw(&record, sent);
        state.wants = state.wants.filter(|since| *since > sent);
        state.has_joined = false;
        state.known = Some(Known {
            version,
            record,
            is_waited_for: waiting.is_some(),
            asked: sent,
            sent,
            epoch,
        });
        Ok(())
    }

    /// The epoch of the versions, if it is not that of the locks.
    async fn epoch_of_records(&self) -> Result<Option<Epoch>> {
        let Some(apart) = &self.records_apart else {
            return Ok(None);
        };
        let read = self.bounded(apart.inspect(&self.keys.line)).await;
        Ok(read.map_err(Error::of_read)?.epoch)
    }

    async fn write(&self, plan: &Plan) -> Result<Answer> {
        let (records, key) = (&self.records, &self.keys.record);
        if plan.record.entries.is_empty() && !plan.is_waited_for {
            let Some(version) = plan.expect else {
                return Ok(Answer::Stored(None));
            };
            let deleted = self.bounded(records.delete(key, version)).await?;
            return Ok(match deleted {
                Deleted::Done => Answer::Stored(None),
                Deleted::Conflict => Answer::Conflict,
            });
        }
        let expect = plan.expect.map_or(Expect::Absent, Expect::Version);
        let value = plan.record.encode()?;
        let written = self.bounded(records.put(key, &value, expect)).await?;
        Ok(match written {
            Written::Stored(version) => Answer::Stored(Some(version)),
            Written::Conflict => Answer::Conflict,
        })
    }

    /// The write has happened: answers all whose entries are in it, and those who have left.
    fn settle(self: &Arc<Self>, plan: Plan, version: Option<Version>, sent: Moment) -> Result<()> {
        let token = version.map(|version| FencingToken::new(version.get()));
        let token = match token.transpose() {
            Ok(token) => token,
            Err(error) => {
                // Their entries are in the record: their callers give them up with the error.
                self.take_back(plan);
                return Err(error);
            }
        };
        let mut entered = Vec::new();
        {
            let mut state = self.state.lock();
            state.saw(&plan.record, sent);
            state.have_left(&plan.left);
            state.have_resized(plan.resizes);
            let epoch = state.known.as_ref().and_then(|known| known.epoch.clone());
            for (join, mode) in plan.joins {
                let Some(token) = token else { continue };
                join.holder.entered(token, mode, epoch.clone(), sent);
                let holder = Arc::clone(&join.holder);
                state.holders.insert(join.id.clone(), holder);
                entered.push(join);
            }
            if let Some(known) = &mut state.known {
                known.version = version;
                known.record = plan.record;
                known.sent = sent;
            }
        }
        // Not under the mutex: a caller that has gone drops the membership, which removes the entry
        // again and locks the state.
        for join in entered {
            let membership = Membership::new(Arc::clone(self), join.id);
            let _ = join.answer.send(Ok(Joined::Entered(membership)));
        }
        Ok(())
    }
}
