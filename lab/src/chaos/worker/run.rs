//! The main loop of a task. The task draws one use after another until its stop, and then answers
//! the roll call.
//!
//! Locks that the store still shows after all workers have ended.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, Locker, Released, SystemClock};

use super::task::WorkerTask;
use crate::chaos::{
    history::{CallKind, Event, now},
    options::Workload,
    worker_settings::{EXTRA_WAIT, RETRY_PAUSE},
};

/// The TTL is long, so a lock that was not released shows up as a leftover.
const ROLL_CALL_TTL: Duration = Duration::from_secs(60);

impl WorkerTask {
    /// Runs the task to its end.
    pub(super) async fn run(mut self) -> Result<()> {
        let workloads = self.suitable_workloads();
        while !self.is_stopped() {
            match (Workload::draw(&workloads, &mut self.rng), self.is_brief) {
                (Workload::Locks, false) => self.use_contended_lock().await?,
                (Workload::Locks, true) => self.use_quiet_lock().await?,
                (Workload::Records, _) => self.use_record().await,
                (Workload::LocalQueues, _) => self.wait_in_local_queue().await?,
                (Workload::Recipes, _) => self.use_recipe().await?,
                (Workload::SharedLocks, _) => self.use_shared_lock().await?,
                (Workload::FairWaiters, _) => self.wait_in_order().await?,
            }
        }
        self.answer_roll_call().await;
        Ok(())
    }

    /// Returns the kinds of use of this task. A brief task has only the quick kinds, if the run has
    /// a quick kind.
    fn suitable_workloads(&self) -> Vec<Workload> {
        let all = &self.settings.workloads;
        let quick = all.iter().filter(|it| self.is_brief && it.is_quick());
        let quick: Vec<_> = quick.copied().collect();
        if quick.is_empty() { all.clone() } else { quick }
    }

    /// Makes one random use of the quiet locks, which few tasks compete for.
    async fn use_quiet_lock(&mut self) -> Result<()> {
        match self.rng.u32(..80) {
            0..2 => self.inspect_or_list().await,
            2..10 => self.cancel_acquire().await,
            10..16 => self.use_two_locks().await?,
            _ => self.use_lock_briefly().await?,
        }
        Ok(())
    }

    /// Makes one random use of the contended locks, which all tasks compete for.
    async fn use_contended_lock(&mut self) -> Result<()> {
        match self.rng.u32(..80) {
            0..3 => self.inspect_or_list().await,
            3..11 => self.cancel_acquire().await,
            11..16 => self.use_two_locks().await?,
            16..20 => self.run_closure().await?,
            20..24 => self.acquire_reentrant().await?,
            _ => self.use_one_lock().await?,
        }
        Ok(())
    }

    /// Acquires each contended lock once more, and records whether that worked in time.
    async fn answer_roll_call(&mut self) {
        let within = self.settings.longest_ttl() + EXTRA_WAIT;
        for name in self.settings.names.clone() {
            let lock = self.locker.lock(&name).ttl(ROLL_CALL_TTL).wait(within);
            let call = self
                .history
                .begin_call(CallKind::Acquire, within + EXTRA_WAIT);
            let guard = lock.acquire().await;
            call.finish_with(&guard);
            let released = match guard {
                Ok(guard) => Ok(guard.release().await),
                Err(error) => Err(error),
            };
            self.record_roll_call(&name, released);
        }
        // One task of each client is enough: it needs the lock alone, and all permits.
        if self.number != 0 || !self.settings.workloads.contains(&Workload::SharedLocks) {
            return;
        }
        for (name, all) in self.shared_locks.alone() {
            let call = self
                .history
                .begin_call(CallKind::Acquire, within + EXTRA_WAIT);
            let guard = all.ttl(ROLL_CALL_TTL).wait(within).acquire().await;
            call.finish_with(&guard);
            let released = match guard {
                Ok(guard) => Ok(guard.release().await),
                Err(error) => Err(error),
            };
            self.record_roll_call(&name, released);
        }
    }

    /// Records whether a lock was acquired, and released as it should be.
    fn record_roll_call(&self, name: &str, released: distlock::Result<Released>) {
        let problem = match released {
            Ok(released) => (!released.is_clean()).then(|| format!("{name:?}: {released:?}")),
            Err(error) => Some(error.to_string()),
        };
        self.history.record(Event::RollCall {
            at: now(),
            task: self.number,
            problem,
        });
    }
}

/// Returns the names and holders of locks that are still held long after the last worker has ended.
/// The function waits longer than the longest TTL of the run, and than the store's default TTL,
/// which recipes use.
pub(crate) async fn leftovers(locker: &Locker, longest_ttl: Duration) -> Vec<(String, String)> {
    let longest = longest_ttl.max(locker.capabilities().default_ttl);
    let until = SystemClock.now() + longest + EXTRA_WAIT;
    loop {
        let left = match locker.list("").await {
            Ok(held) => held
                .into_iter()
                .filter_map(|it| Some((it.name.to_string(), it.held?.holder)))
                .collect(),
            Err(error) => vec![("the store".to_owned(), error.to_string())],
        };
        if left.is_empty() || SystemClock.now() >= until {
            return left;
        }
        SystemClock.sleep(RETRY_PAUSE).await;
    }
}
