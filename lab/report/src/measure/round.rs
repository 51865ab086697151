//! One round of one arm: tasks run cycles until the measured time has passed.
//!
//! Invariant: every task runs at least one cycle, and a failed cycle is counted as an error.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::sync::Mutex;
use tokio::task::{JoinSet, coop::consume_budget};

use super::subject::{Arm, Counters, Subject, hold_for, now, pause_after_error};
use crate::{
    results::sample::{Latencies, Sample, nanos},
    workload::{Options, Workload},
};

/// The work of one arm in one round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    arm: String,
    workload: Workload,
    number: u32,
    callers: u32,
    names: String,
    /// The shared lock of the workload, if the options name one.
    shared: Option<String>,
    /// How long each lock is held.
    hold: Duration,
    warmup: Duration,
    time: Duration,
}

impl Round {
    /// A round of an arm. Names of locks that are not shared start with `names`.
    pub(super) fn new(
        arm: &Arm,
        workload: Workload,
        number: u32,
        callers: u32,
        names: &str,
        options: &Options,
    ) -> Self {
        Self {
            arm: arm.name().to_owned(),
            workload,
            number,
            callers,
            names: names.to_owned(),
            shared: options.name.clone(),
            hold: options.hold,
            warmup: options.warmup,
            time: options.duration / options.rounds,
        }
    }

    /// The name of the lock that `task` takes in each cycle.
    fn lock_name(&self, task: u32) -> String {
        match &self.shared {
            Some(name) if self.workload.shares_one_name() => name.clone(),
            None if self.workload.shares_one_name() => format!("{}:shared", self.names),
            _ => format!("{}:{task:05}", self.names),
        }
    }
}

/// Runs the warm-up and then the measured time of one round, and returns the sample of the round.
pub(crate) async fn run_round<S: Subject>(subject: Arc<S>, round: Round) -> Sample {
    if !round.warmup.is_zero() {
        run_tasks(&subject, &round, round.warmup).await;
    }
    let before = subject.counters();
    let start = now();
    let results = run_tasks(&subject, &round, round.time).await;
    let Counters {
        operations,
        statements,
        retries,
        loads,
    } = subject.counters().since(before);
    let end = results.iter().map(|t| t.ended).max().unwrap_or(start);
    let mut latencies = Latencies::new();
    results.iter().for_each(|t| latencies.add(&t.latencies));
    Sample {
        arm: round.arm,
        workload: round.workload,
        round: round.number,
        elapsed_ns: nanos(end.duration_since(start)),
        cycles_per_task: results.iter().map(|t| t.cycles).collect(),
        errors: results.iter().map(|t| t.errors).sum(),
        first_error: results.into_iter().find_map(|t| t.first_error),
        operations,
        statements,
        retries,
        loads,
        latencies,
    }
}

/// Runs one task per caller until `time` has passed. The results are in the order of the tasks.
async fn run_tasks<S: Subject>(subject: &Arc<S>, round: &Round, time: Duration) -> Vec<TaskResult> {
    let last_release = (round.workload == Workload::Handoff).then(Arc::<LastRelease>::default);
    let until = now() + time;
    let mut tasks = JoinSet::new();
    for task in 0..round.callers {
        let subject = Arc::clone(subject);
        let (name, hold) = (round.lock_name(task), round.hold);
        let last_release = last_release.clone();
        tasks.spawn(async move {
            let result =
                run_task(&*subject, &name, task, hold, until, last_release.as_deref()).await;
            (task, result)
        });
    }
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(result) => results.push(result),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    results.sort_by_key(|(task, _)| *task);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The results of one task.
struct TaskResult {
    cycles: u64,
    errors: u64,
    first_error: Option<String>,
    latencies: Latencies,
    /// Durations that are not in the histogram yet. A histogram is large: a write to it in each
    /// cycle would evict the data of the measured code from the processor's cache.
    recent: Vec<Duration>,
    ended: Instant,
}

/// The number of durations that are collected before they go into the histogram.
const MAX_RECENT: usize = 512;

impl TaskResult {
    /// Adds one duration to the recent ones. Moves the recent durations into the histogram when
    /// their number reaches [`MAX_RECENT`].
    fn record_latency(&mut self, time: Duration) {
        self.recent.push(time);
        if self.recent.len() >= MAX_RECENT {
            self.flush_recent();
        }
    }

    /// Moves the recent durations into the histogram.
    fn flush_recent(&mut self) {
        for time in self.recent.drain(..) {
            self.latencies.record(time);
        }
    }

    fn record_error(&mut self, error: &impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

/// Runs cycles of one task until the moment `until`. With `last_release`, a latency is the time
/// from another task's release to this task's grant. Without `last_release`, a latency is the time
/// of the whole cycle.
async fn run_task<S: Subject>(
    subject: &S,
    name: &str,
    task: u32,
    hold: Duration,
    until: Instant,
    last_release: Option<&LastRelease>,
) -> TaskResult {
    let mut result = TaskResult {
        cycles: 0,
        errors: 0,
        first_error: None,
        latencies: Latencies::new(),
        recent: Vec::with_capacity(MAX_RECENT),
        ended: now(),
    };
    // The end is checked after the cycle, so that every task runs at least one cycle, even if the
    // machine was too busy to start the task in time.
    loop {
        let start = now();
        let done = match subject.acquire(name).await {
            Ok(held) => {
                if let Some(released) = last_release.and_then(|all| all.take_if_by_other(task)) {
                    result.record_latency(now().duration_since(released));
                }
                hold_for(hold).await;
                if let Some(last_release) = last_release {
                    last_release.set(task);
                }
                subject.release(held).await
            }
            Err(error) => Err(error),
        };
        result.ended = now();
        match done {
            Ok(()) => {
                result.cycles += 1;
                if last_release.is_none() {
                    result.record_latency(result.ended.duration_since(start));
                }
            }
            Err(error) => {
                result.record_error(&error);
                pause_after_error().await;
            }
        }
        if result.ended >= until {
            result.flush_recent();
            return result;
        }
        // Lets other tasks of this thread run. A subject whose futures are always ready would
        // otherwise hold the thread until the measured time has passed.
        consume_budget().await;
    }
}

/// The last release of the lock: the time, and the number of the task that released it. Only the
/// task that was just granted the lock reads it.
#[derive(Default)]
struct LastRelease(Mutex<Option<(u32, Instant)>>);

impl LastRelease {
    /// Removes the last release, and returns its time if another task than `task` made it.
    fn take_if_by_other(&self, task: u32) -> Option<Instant> {
        self.0
            .lock()
            .take()
            .and_then(|(other, released)| (other != task).then_some(released))
    }

    /// Stores that `task` releases the lock at this moment.
    fn set(&self, task: u32) {
        *self.0.lock() = Some((task, now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_tasks_release_is_a_hand_over() {
        let last_release = LastRelease::default();
        assert!(last_release.take_if_by_other(1).is_none());
        last_release.set(1);
        assert!(last_release.take_if_by_other(1).is_none());
        last_release.set(1);
        assert!(last_release.take_if_by_other(2).is_some());
        assert!(last_release.take_if_by_other(2).is_none());
    }
}
