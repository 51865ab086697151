//! The recipes: uses that people build with a lock, each with a promise of its own.
//!
//! The guarded cache is left out. That recipe documents a number of loads without faults, and no
//! bound under faults.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, Error, ErrorKind, SystemClock};
use distlock_recipes::{
    Periodic, RecordsFence,
    election::Election,
    idempotent::Idempotent,
    unread::{Counter, LockedCounters, OptimisticCounters, UnreadCounters},
};

use crate::chaos::{
    history::{CallKind, Event, Micros, RecipeStep, now},
    worker::{referee_client::HistoryWriter, task::WorkerTask},
    worker_settings::EXTRA_WAIT,
};

impl WorkerTask {
    /// Uses a random recipe.
    pub(super) async fn use_recipe(&mut self) -> Result<()> {
        match self.rng.u32(..12) {
            0..3 => self.campaign().await?,
            3..6 => self.run_periodic_job().await?,
            6..9 => self.run_effect_once().await?,
            9..11 => self.count_message().await?,
            _ => self.show_fence_to_gate().await?,
        }
        self.pause().await;
        Ok(())
    }

    /// Records a step of a recipe.
    fn record_recipe_step(&self, step: RecipeStep) {
        self.history.record(Event::Recipe(step));
    }
}

/// Number of elections. With few elections, each election has several candidates at a time.
const ELECTIONS: u32 = 2;

impl WorkerTask {
    /// Takes part in an election for a while, and works as the leader.
    async fn campaign(&mut self) -> Result<()> {
        let election = format!("chaos-{}", self.rng.u32(..ELECTIONS));
        let candidate = |worker: u32, task: u32| format!("{worker}-{task}");
        let me = candidate(self.settings.worker, self.number);
        let ttl = self.settings.longest_ttl();
        let candidacy = Election::new(&self.store, &election, &me)?.ttl(ttl);
        // Some terms last longer than a lease, so that the lease needs a renewal or the work stops.
        let time = match self.rng.u32(..4) {
            0 => ttl * 2,
            _ => ttl / 10,
        };
        let (history, mut stop) = (&*self.history, self.stop.clone());
        let asked = now();
        let works = async |term: u64| {
            let _term = LeaderWork::begin(history, &election, term, asked);
            SystemClock.sleep(time).await;
        };
        let patience = self.settings.longest_ttl() * 3;
        let nominee = candidate(self.rng.u32(1..=4), self.rng.u32(..self.settings.tasks));
        let nominates = self.rng.u32(..4) == 0;
        let leads = async {
            if !nominates {
                let led = candidacy
                    .run_while_leader(async |term| works(term.number.get()).await)
                    .await;
                drop(led);
                return;
            }
            let Ok(leadership) = candidacy.campaign().await else {
                return;
            };
            let term = leadership.term().number.get();
            // The work must end before the leader resigns, so dropping the work comes first.
            tokio::select! {
                biased;
                _ = leadership.must_stop() => {}
                () = async {
                    // The nominee may be no candidate; then the nomination fails.
                    drop(leadership.nominate(&nominee).await);
                    works(term).await;
                } => {}
            }
            let _ = leadership.resign().await;
        };
        tokio::select! {
            () = leads => {}
            () = SystemClock.sleep(patience) => {}
            _ = stop.wait_for(|over| *over) => {}
        }
        Ok(())
    }
}

/// The work of a leader. Dropping the value records the end of the work.
struct LeaderWork<'a> {
    history: &'a HistoryWriter,
    election: &'a str,
    term: u64,
}

impl<'a> LeaderWork<'a> {
    /// Records that the work of a leader begins.
    fn begin(history: &'a HistoryWriter, election: &'a str, term: u64, asked: Micros) -> Self {
        history.record(Event::Recipe(RecipeStep::Leads {
            election: election.to_owned(),
            term,
            asked,
            at: now(),
        }));
        Self {
            history,
            election,
            term,
        }
    }
}

impl Drop for LeaderWork<'_> {
    fn drop(&mut self) {
        self.history.record(Event::Recipe(RecipeStep::LedUntil {
            election: self.election.to_owned(),
            term: self.term,
            at: now(),
        }));
    }
}

/// Period of each job, much longer than the start of a job takes.
const PERIOD: Duration = Duration::from_millis(800);
/// A killed host keeps the lock of its job for ten seconds, so a run needs many jobs.
const JOBS: u32 = 8;

impl WorkerTask {
    /// Starts a job, if it is due.
    async fn run_periodic_job(&mut self) -> Result<()> {
        // Some stores record no age of a record, and the recipe needs that age.
        let Ok(periodic) = Periodic::new(&self.store) else {
            return Ok(());
        };
        let job = format!("job {}", self.rng.u32(..JOBS));
        let fails = self.rng.u32(..6) == 0;
        let time = PERIOD.mul_f32(self.rng.f32() / 8.0);
        let (run, asked) = (self.history.next_number(), now());
        let task = &*self;
        let work = async |_| {
            task.record_recipe_step(RecipeStep::JobRuns {
                job: job.clone(),
                run,
                period_us: u64::try_from(PERIOD.as_micros()).unwrap_or_default(),
                asked,
                at: now(),
            });
            SystemClock.sleep(time).await;
            if fails {
                // A failed job does not run again in the same period.
                return Err(Error::new(ErrorKind::Unavailable, "the job failed"));
            }
            Ok(())
        };
        drop(periodic.at_most_once(&job, PERIOD, work).await);
        Ok(())
    }
}

/// Time for which all tasks ask for the same key.
const KEY_TIME: Micros = 400_000;

impl WorkerTask {
    /// Asks for an effect that other tasks ask for as well.
    async fn run_effect_once(&mut self) -> Result<()> {
        let key = format!("payment-{}", now() / KEY_TIME);
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait());
        let (value, fails) = (self.rng.u64(..), self.rng.u32(..6) == 0);
        let lock = self.locker.lock(format!("once {key}")).ttl(ttl).wait(wait);
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let guard = lock.acquire().await;
        call.finish_with(&guard);
        let Ok(guard) = guard else { return Ok(()) };
        let (task, asked) = (&*self, now());
        let effect = async || {
            SystemClock.sleep(Duration::from_millis(1)).await;
            if fails {
                return Err(Error::new(ErrorKind::Unavailable, "nothing was paid"));
            }
            let key = key.clone();
            task.record_recipe_step(RecipeStep::Made {
                key,
                value,
                asked,
                at: now(),
            });
            Ok(value)
        };
        let once = Idempotent::new(&self.store);
        if let Ok(once) = once.once(&key, guard.token(), effect).await {
            let received = once.into_inner();
            self.record_recipe_step(RecipeStep::Told {
                key,
                value: received,
                asked,
                at: now(),
            });
        }
        let _ = guard.release().await;
        Ok(())
    }
}

/// The user whose unread messages all tasks count.
const USER: &str = "anna";
/// Number of conversations of that user.
const CONVERSATIONS: u32 = 3;

impl WorkerTask {
    /// Counts one message, with a lock or without one. Both ways may be used at the same time.
    async fn count_message(&mut self) -> Result<()> {
        let counters: Box<dyn UnreadCounters> = if self.rng.bool() {
            let ttl = self.settings.longest_ttl();
            Box::new(LockedCounters::new(&self.store).ttl(ttl))
        } else {
            Box::new(OptimisticCounters::new(&self.store))
        };
        let conversation = self.rng.u32(..CONVERSATIONS);
        let counter = Counter::new(USER, conversation.to_string())?;
        let asked = now();
        // The recipe may wait for its lock longer than a run continues after its last fault.
        let mut stop = self.stop.clone();
        let unread = tokio::select! {
            unread = counters.increment(&counter, 1) => unread,
            _ = stop.wait_for(|over| *over) => return Ok(()),
        };
        if let Ok(unread) = unread {
            self.record_recipe_step(RecipeStep::Counted {
                conversation,
                in_conversation: unread.conversation,
                total: unread.total,
                asked,
                at: now(),
            });
        }
        Ok(())
    }
}

/// The lock, and the resource behind the gate.
const RESOURCE: &str = "gate";

impl WorkerTask {
    /// Takes a lock, and shows its fence at the gate, in some cases long after the lock is lost.
    async fn show_fence_to_gate(&mut self) -> Result<()> {
        let (ttl, wait) = (self.draw_ttl(), self.draw_wait());
        let lock = self.locker.lock(RESOURCE).ttl(ttl).wait(wait);
        let call = self
            .history
            .begin_call(CallKind::Acquire, wait + EXTRA_WAIT);
        let guard = lock.acquire().await;
        call.finish_with(&guard);
        let Ok(guard) = guard else { return Ok(()) };
        let (gate, fence) = (RecordsFence::new(&self.store), guard.fence());
        let late = self.rng.u32(..3) == 0;
        if late {
            let _ = guard.release().await;
            SystemClock.sleep(self.draw_wait() / 4).await;
        } else {
            // The guard is released when it is dropped, after the gate has answered.
            let _behind = guard;
            self.show_fence(&gate, &fence).await;
            return Ok(());
        }
        self.show_fence(&gate, &fence).await;
        Ok(())
    }

    /// Shows a fence to the gate, and records that the gate accepted it.
    async fn show_fence(&self, gate: &RecordsFence, fence: &distlock::Fence) {
        let asked = now();
        if gate.admit(RESOURCE, fence).await.is_ok() {
            self.record_recipe_step(RecipeStep::Admitted {
                token: fence.token.get(),
                asked,
                at: now(),
            });
        }
    }
}
